package reconcile

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog/secrets"
	"anneal/projections"
)

// notReferences lists the fields of states that hold files but are no references to these files,
// each with the reason.
var notReferences = map[string]string{
	"Deployment.Hot.Refused.Files": "refused weights are never served",
	"JobLife.Results":              "they belong to the model that was registered from the job",
}

// A filler sets every text, number and prefix in a state to a unique value, and records the
// prefixes and keys.
type filler struct {
	n        int
	prefixes map[string]string // by path of the field
	keys     map[string]string
}

func (f *filler) fill(path string, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		f.n++
		v.SetString(fmt.Sprintf("v%d", f.n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(path, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		f.fill(path+"[]", v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		f.fill(path, key)
		f.fill(path+"[]", value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		switch value := v.Addr().Interface().(type) {
		case *time.Time:
			return
		case *domain.Files:
			f.n++
			value.Prefix = fmt.Sprintf("models/acme/%d/", f.n)
			f.prefixes[path] = value.Prefix
			return
		case *domain.Sealed:
			f.n++
			value.KeyID, value.Ciphertext = fmt.Sprintf("key-%d", f.n), []byte{1}
			f.keys[path] = value.KeyID
			return
		}
		for i := range v.NumField() {
			field := v.Type().Field(i)
			at := path + "." + field.Name
			if field.Anonymous {
				at = path
				if field.Type == reflect.TypeFor[domain.JobLife]() {
					at = "JobLife"
				}
			}
			if field.IsExported() {
				f.fill(at, v.Field(i))
			}
		}
	}
}

// probe returns the references of one row of a kind with a value in every field of the state.
func (f *filler) probe(kind domain.AnyKind) *References {
	row := kind.NewRow(domain.NewName("acme", kind.CollectionID(), "one"))
	f.fill(kind.StateType().Name(), reflect.ValueOf(row.Pointer()).Elem())
	r := newReferences()
	r.refer(kind, row)
	return r
}

// TestEveryKindIsEnumerated checks that refer adds all files and sealed values in the state of
// every kind, so that a new kind or field cannot be forgotten.
func TestEveryKindIsEnumerated(t *testing.T) {
	for _, kind := range domain.Kinds {
		f := &filler{prefixes: map[string]string{}, keys: map[string]string{}}
		r := f.probe(kind)
		for path, prefix := range f.prefixes {
			_, exempt := notReferences[path]
			require.Equal(t, !exempt, r.prefixes[prefix], "%s: %s holds files", kind.CollectionID(), path)
		}
		for path, id := range f.keys {
			require.True(t, r.keys[id], "%s: %s holds a sealed value", kind.CollectionID(), path)
		}
	}
}

// TestWorkInProgressIsReferredTo checks that a resource refers to the data that work in progress
// stores before the event of the data is recorded.
func TestWorkInProgressIsReferredTo(t *testing.T) {
	refers := func(collection string, add func(*References)) references {
		r := newReferences()
		add(r)
		return references{collection: {nil, r}}
	}
	name := func(collection string) domain.Name { return domain.NewName("acme", collection, "one") }
	for what, c := range map[string]struct {
		refs references
		key  string
	}{
		"uploaded rows": {refers("datasets", func(r *References) {
			dataset(r, &projections.Row[domain.Dataset]{Name: name("datasets"), CreateEvent: "e",
				State: domain.Dataset{State: domain.DatasetUploading, Upload: 1}})
		}), blobs.StagingPrefix(name("datasets"), "e", 2) + "rows.jsonl"},
		"derived rows": {refers("datasets", func(r *References) {
			dataset(r, &projections.Row[domain.Dataset]{Name: name("datasets"), CreateEvent: "e",
				State: domain.Dataset{State: domain.DatasetUploading, From: &domain.Derivation{}, Status: domain.StatusOf(nil)}})
		}), blobs.DerivedPrefix(name("datasets"), "e") + "rows.jsonl"},
		"a copy being prepared": {refers("models", func(r *References) {
			model(r, &projections.Row[domain.Model]{Name: name("models"), CreateEvent: "e",
				State: domain.Model{State: domain.ModelReady,
					Copies: map[string]domain.ModelCopy{"FP8": {Attempt: 2, State: domain.CopyPreparing}}}})
		}), blobs.CopyPrefix(name("models"), "e", "FP8", 2) + "config.json"},
		"a build": {refers("evaluators", func(r *References) {
			evaluator(r, &projections.Row[domain.Evaluator]{Name: name("evaluators"), CreateEvent: "e",
				State: domain.Evaluator{State: domain.EvaluatorBuilding, Revision: 3}})
		}), blobs.BuildPrefix(name("evaluators"), "e", 3) + "x.log"},
		"results": {refers("supervisedFineTuningJobs", func(r *References) {
			job(r, projections.Row[domain.Job]{Name: name("supervisedFineTuningJobs"), CreateEvent: "e",
				State: &domain.SupervisedJob{JobLife: domain.JobLife{Attempt: 2, Nodes: []domain.Name{"n"}}}})
		}), blobs.ResultPrefix(name("supervisedFineTuningJobs"), "e", 2) + "model.safetensors"},
		"log of an earlier attempt": {refers("supervisedFineTuningJobs", func(r *References) {
			job(r, projections.Row[domain.Job]{Name: name("supervisedFineTuningJobs"), CreateEvent: "e",
				State: &domain.SupervisedJob{JobLife: domain.JobLife{Attempt: 2}}})
		}), blobs.TrainerLog(name("supervisedFineTuningJobs"), "e", 1)},
		"operations of training runs": {refers("rlorTrainerJobs", func(r *References) {
			job(r, projections.Row[domain.Job]{Name: name("rlorTrainerJobs"), CreateEvent: "e", State: &domain.TrainerJob{}})
		}), blobs.JournalPrefix("acme", "e") + "runs/r/operations/1"},
		"rollouts": {refers("reinforcementFineTuningJobs", func(r *References) {
			job(r, projections.Row[domain.Job]{Name: name("reinforcementFineTuningJobs"), CreateEvent: "e",
				State: &domain.ReinforcementJob{JobLife: domain.JobLife{Attempt: 9}}})
		}), blobs.RolloutsPrefix(name("reinforcementFineTuningJobs"), "e", 2) + "rollouts.jsonl"},
	} {
		require.True(t, c.refs.blob(c.key), what)
		require.True(t, isManaged(c.key), what)
		other := strings.NewReplacer("/e/", "/other/", "/e-", "/other-").Replace(c.key)
		require.False(t, c.refs.blob(other), "%s of another resource of that name", what)
	}
}

func TestOrphans(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	old, young := now.Add(-Grace), now.Add(-time.Second)
	r := newReferences()
	r.prefix("models/acme/e/1/")
	r.file("jobs/acme/e/metrics.jsonl")
	r.keys["used"] = true
	w := references{"models": {nil, r}}
	listed := []blobs.File{{Key: "models/acme/e/1/a", Time: old}, {Key: "models/acme/e/2/a", Time: old},
		{Key: "jobs/acme/e/metrics.jsonl", Time: old},
		{Key: "jobs/acme/e/other.jsonl", Time: old}, {Key: "models/acme/e/3/first", Time: old},
		{Key: "models/acme/e/3/last", Time: young},
		{Key: "transient/acme/r/audio", Time: old}, {Key: "backups/ours", Time: old}}
	require.Equal(t, []string{"models/acme/e/2/a", "jobs/acme/e/other.jsonl", "transient/acme/r/audio"},
		orphanBlobs(listed, w, old, now, Grace),
		"referenced files, files beside a new file, and files outside of Roots are kept")
	require.Len(t, orphanBlobs(listed, w, old, now, 0), 5)

	r.prefix("jobs/acme/e/logs/")
	r.prefix("jobs/acme/e/rollouts/")
	recent := now.Add(-blobs.SupersededTime)
	r.file("jobs/acme/e/trainer-3.log")
	r.file("jobs/acme/e/trainer-11.log")
	listed = []blobs.File{{Key: "jobs/acme/e/logs/1/trainer.log", Time: recent},
		{Key: "jobs/acme/e/trainer-3.log", Time: recent}, {Key: "jobs/acme/e/trainer-11.log", Time: now},
		{Key: "jobs/acme/e/logs/2/trainer.log", Time: recent.Add(time.Second)},
		{Key: "jobs/acme/e/logs/10/trainer.log", Time: old}, {Key: "jobs/acme/e/rollouts/2/rollouts.jsonl", Time: old}}
	require.Equal(t, []string{"jobs/acme/e/logs/1/trainer.log", "jobs/acme/e/trainer-3.log",
		"jobs/acme/e/logs/10/trainer.log"}, orphanBlobs(listed, w, old, now, Grace),
		"the log of attempt 10 supersedes that of attempt 1, which is old enough")

	keys := []secrets.DataKey{{ID: "used"}, {ID: "old", Time: old}, {ID: "young", Time: young}, {ID: "unknown"}}
	require.Equal(t, []string{"old"}, orphanKeys(keys, w, old, now.Add(-time.Minute), now, KeyGrace),
		"a key of unknown age counts as created at the start of the process")
	require.Equal(t, []string{"old", "unknown"}, orphanKeys(keys, w, old, old, now, KeyGrace))
}
