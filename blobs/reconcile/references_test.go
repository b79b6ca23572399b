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

// notReferences are the files in states that the resource does not keep.
var notReferences = map[string]string{
	"Deployment.Hot.Refused.Files": "they answer nothing and will not",
	"JobLife.Results":              "they are the model's that came of the job, and go with it",
}

// filler gives every text, number and folder in a state a value of its own.
type filler struct {
	n       int
	folders map[string]string // by path
	keys    map[string]string
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
			value.Folder = fmt.Sprintf("models/acme/%d/", f.n)
			f.folders[path] = value.Folder
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

// probe enumerates one row of a kind that holds something in every field.
func (f *filler) probe(kind domain.AnyKind) *References {
	row := kind.NewRow(domain.NewName("acme", kind.CollectionID(), "one"))
	f.fill(kind.StateType().Name(), reflect.ValueOf(row.Pointer()).Elem())
	r := newReferences()
	r.refer(kind, row)
	return r
}

// Every kind is enumerated, and with it all files and sealed values that its states hold: a new
// kind, or a new field, cannot be forgotten.
func TestEveryKindIsEnumerated(t *testing.T) {
	for _, kind := range domain.Kinds {
		f := &filler{folders: map[string]string{}, keys: map[string]string{}}
		r := f.probe(kind)
		for path, folder := range f.folders {
			_, exempt := notReferences[path]
			require.Equal(t, !exempt, r.folders[folder], "%s: %s holds files", kind.CollectionID(), path)
		}
		for path, id := range f.keys {
			require.True(t, r.keys[id], "%s: %s holds a sealed value", kind.CollectionID(), path)
		}
	}
}

// What is being made is referred to before it is recorded.
func TestWorkInProgressIsReferredTo(t *testing.T) {
	refers := func(collection string, add func(*References)) world {
		r := newReferences()
		add(r)
		return world{collection: {nil, r}}
	}
	name := func(collection string) domain.Name { return domain.NewName("acme", collection, "one") }
	for what, one := range map[string]struct {
		w   world
		key string
	}{
		"rows that are PUT": {refers("datasets", func(r *References) {
			dataset(r, &projections.Row[domain.Dataset]{Name: name("datasets"), CreateEvent: "e", State: domain.Dataset{State: domain.DatasetUploading, Upload: 1}})
		}), blobs.Arrivals(name("datasets"), "e", 2) + "rows.jsonl"},
		"rows that are derived": {refers("datasets", func(r *References) {
			dataset(r, &projections.Row[domain.Dataset]{Name: name("datasets"), CreateEvent: "e",
				State: domain.Dataset{State: domain.DatasetUploading, From: &domain.Derivation{}, Status: domain.StatusOf(nil)}})
		}), blobs.DerivedFolder(name("datasets"), "e") + "rows.jsonl"},
		"a copy that is prepared": {refers("models", func(r *References) {
			model(r, &projections.Row[domain.Model]{Name: name("models"), CreateEvent: "e",
				State: domain.Model{State: domain.ModelReady, Copies: map[string]domain.ModelCopy{"FP8": {Attempt: 2, State: domain.CopyPreparing}}}})
		}), blobs.CopyFolder(name("models"), "e", "FP8", 2) + "config.json"},
		"a build": {refers("evaluators", func(r *References) {
			evaluator(r, &projections.Row[domain.Evaluator]{Name: name("evaluators"), CreateEvent: "e", State: domain.Evaluator{State: domain.EvaluatorBuilding, Revision: 3}})
		}), blobs.BuildFolder(name("evaluators"), "e", 3) + "x.log"},
		"results": {refers("supervisedFineTuningJobs", func(r *References) {
			job(r, projections.Row[domain.Job]{Name: name("supervisedFineTuningJobs"), CreateEvent: "e",
				State: &domain.SupervisedJob{JobLife: domain.JobLife{Attempt: 2, Nodes: []domain.Name{"n"}}}})
		}), blobs.ResultFolder(name("supervisedFineTuningJobs"), "e", 2) + "model.safetensors"},
	} {
		require.True(t, one.w.blob(one.key), what)
		require.True(t, ours(one.key), what)
		require.False(t, one.w.blob(strings.Replace(one.key, "/e/", "/other/", 1)), "%s of another with the name", what)
	}
}

func TestOrphans(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	old, young := now.Add(-Grace), now.Add(-time.Second)
	r := newReferences()
	r.folder("models/acme/e/1/")
	r.file("jobs/acme/e/metrics.jsonl")
	r.keys["used"] = true
	w := world{"models": {nil, r}}
	listed := []blobs.File{{Key: "models/acme/e/1/a", Time: old}, {Key: "models/acme/e/2/a", Time: old}, {Key: "jobs/acme/e/metrics.jsonl", Time: old},
		{Key: "jobs/acme/e/other.jsonl", Time: old}, {Key: "models/acme/e/3/first", Time: old}, {Key: "models/acme/e/3/last", Time: young},
		{Key: "transient/acme/r/audio", Time: old}, {Key: "backups/ours", Time: old}}
	require.Equal(t, []string{"models/acme/e/2/a", "jobs/acme/e/other.jsonl", "transient/acme/r/audio"}, orphanBlobs(listed, w, old, now, Grace),
		"neither what is referred to, nor what is stored beside something young, nor what is not ours")
	require.Len(t, orphanBlobs(listed, w, old, now, 0), 5)

	keys := []secrets.DataKey{{ID: "used"}, {ID: "old", Time: old}, {ID: "young", Time: young}, {ID: "unknown"}}
	require.Equal(t, []string{"old"}, orphanKeys(keys, w, old, now.Add(-time.Minute), now, KeyGrace), "a key of unknown age is as old as the process")
	require.Equal(t, []string{"old", "unknown"}, orphanKeys(keys, w, old, old, now, KeyGrace))
}
