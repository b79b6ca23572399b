package reconcile

import (
	"slices"
	"strings"

	"anneal/blobs"
	"anneal/domain"
	"anneal/projections"
)

// References holds the data outside of the log to which resources refer: prefixes and files of the
// bucket, and data keys of the key store.
type References struct {
	prefixes map[string]bool // prefixes, each ending in a slash; all files below them are referred to
	files    map[string]bool
	keys     map[string]bool
	stored   map[string]map[string]int64 // sizes of the files that an event has recorded, by prefix and name
}

func newReferences() *References {
	return &References{map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]map[string]int64{}}
}

// stores adds files that an event has recorded. Such files exist in the store.
func (r *References) stores(files domain.Files) {
	r.prefix(files.Prefix)
	if len(files.Sizes) > 0 {
		r.stored[files.Prefix] = files.Sizes
	}
}

func (r *References) prefix(prefix string) {
	if prefix != "" {
		r.prefixes[prefix] = true
	}
}

func (r *References) file(key string) {
	if key != "" {
		r.files[key] = true
	}
}

func (r *References) sealed(value *domain.Sealed) {
	if value != nil && value.KeyID != "" {
		r.keys[value.KeyID] = true
	}
}

// enumerators maps a collection to the function that adds the references of a resource of this
// collection. It has an entry for each kind whose resources refer to files or data keys, except the
// kinds of jobs, for which refer calls the function job. TestEveryKindIsEnumerated checks that no
// domain.Files or domain.Sealed in any state is left out.
var enumerators = map[string]func(*References, domain.AnyRow){
	domain.Secrets.Collection:       typed(secret),
	domain.Models.Collection:        typed(model),
	domain.Datasets.Collection:      typed(dataset),
	domain.Evaluators.Collection:    typed(evaluator),
	domain.Deployments.Collection:   typed(deployment),
	domain.BatchFiles.Collection:    typed(batchFile),
	domain.Batches.Collection:       typed(batch),
	domain.Subscriptions.Collection: typed(subscription),
	domain.TrainingRuns.Collection:  typed(trainingRun),
}

// uploading lists the collections of resources whose files clients upload to signed URLs.
var uploading = []string{domain.Models.Collection, domain.Datasets.Collection, domain.Evaluators.Collection}

func typed[S any](add func(*References, *projections.Row[S])) func(*References, domain.AnyRow) {
	return func(r *References, row domain.AnyRow) { add(r, row.(*projections.Row[S])) }
}

// refer adds the references of a row of any kind to r.
func (r *References) refer(kind domain.AnyKind, row domain.AnyRow) {
	if add := enumerators[kind.CollectionID()]; add != nil {
		add(r, row)
	} else if one, ok := projections.JobOf(row); ok {
		job(r, one)
	}
}

func secret(r *References, row *projections.Row[domain.Secret]) { r.sealed(&row.State.Value) }

func dataset(r *References, row *projections.Row[domain.Dataset]) {
	d := &row.State
	r.stores(d.Files)
	switch {
	case d.Filling():
		r.prefix(blobs.DerivedPrefix(row.Name, row.CreateEvent))
	case d.From == nil && d.State != domain.DatasetReady:
		r.prefix(blobs.StagingPrefix(row.Name, row.CreateEvent, d.Upload+1))
	}
}

func model(r *References, row *projections.Row[domain.Model]) {
	m := &row.State
	r.stores(m.Files)
	for precision, c := range m.Copies {
		r.stores(c.Files)
		if c.State == domain.CopyPreparing {
			r.prefix(blobs.CopyPrefix(row.Name, row.CreateEvent, precision, c.Attempt))
		}
	}
	if m.State != domain.ModelReady {
		r.prefix(blobs.StagingPrefix(row.Name, row.CreateEvent, m.Upload+1))
	}
}

func evaluator(r *References, row *projections.Row[domain.Evaluator]) {
	e := &row.State
	r.stores(e.Files)
	r.file(e.BuildLog)
	for _, build := range e.Built {
		r.stores(build.Files)
	}
	if e.State == domain.EvaluatorBuilding {
		r.prefix(blobs.BuildPrefix(row.Name, row.CreateEvent, e.Revision))
	}
	r.prefix(blobs.StagingPrefix(row.Name, row.CreateEvent, e.Uploads+1))
}

// job adds the references of a job: its metrics, the state of its experiment tracker, the logs and
// rollouts of all attempts (see blobs.Superseded), the checkpoints that it keeps, and the prefix
// below which the current attempt may store its results. Results that are recorded belong to the
// model that was registered from them.
func job(r *References, row projections.Row[domain.Job]) {
	life := row.State.Life()
	r.file(blobs.MetricsFile(row.Name, row.CreateEvent))
	r.file(blobs.EarlierMetricsFile(row.Name, row.CreateTime))
	r.prefix(blobs.RolloutsRoot(row.Name, row.CreateEvent))
	r.prefix(blobs.LogRoot(row.Name, row.CreateEvent))
	for attempt := 1; attempt <= life.Attempt; attempt++ {
		r.file(blobs.TrainerLog(row.Name, row.CreateEvent, attempt))
	}
	r.file(blobs.TrackerFile(row.Name, row.CreateEvent))
	if row.Name.Collection() == domain.TrainerJobs.Collection {
		r.prefix(blobs.JournalPrefix(row.Name.Account(), row.CreateEvent))
	}
	for _, c := range life.Checkpoints {
		r.stores(c.Files)
	}
	if len(life.Nodes) > 0 {
		r.prefix(blobs.ResultPrefix(row.Name, row.CreateEvent, life.Attempt))
		r.prefix(blobs.InlinePrefix(row.Name, row.CreateEvent, life.Attempt))
	}
	if life.Outcome != nil { // the results of the last attempt are being registered as a model
		r.stores(life.Outcome.Results)
		r.stores(life.Outcome.Model.Files)
	}
	if tracker := row.State.Spec().Tracker; tracker != nil {
		r.sealed(tracker.APIKey)
	}
	r.sealed(row.State.Spec().MetricsURL)
}

func trainingRun(r *References, row *projections.Row[domain.TrainingRun]) {
	for _, c := range row.State.Checkpoints {
		r.stores(c.Files)
	}
}

func deployment(r *References, row *projections.Row[domain.Deployment]) {
	for _, weights := range []*domain.HotWeights{row.State.Hot.Served, row.State.Hot.Offered} {
		if weights != nil {
			r.stores(weights.Files)
		}
	}
	for _, key := range row.State.DirectRouteAPIKeys {
		r.sealed(&key)
	}
}

func batchFile(r *References, row *projections.Row[domain.BatchFile]) {
	r.stores(row.State.Files)
}

// batch adds the references of a live batch: its partial results, and the result files that are
// written from them.
func batch(r *References, row *projections.Row[domain.Batch]) {
	if row.State.Live() {
		r.prefix(blobs.BatchPrefix(row.Name, row.CreateEvent))
		for _, which := range domain.BatchResultFiles {
			r.prefix(blobs.BatchOutputPrefix(row.Name, row.CreateEvent, which))
		}
	}
}

func subscription(r *References, row *projections.Row[domain.Subscription]) {
	r.file(blobs.DeliveryFile(row.Name, row.CreateEvent))
	for _, secret := range []*domain.SigningSecret{row.State.Signing, row.State.Previous} {
		if secret != nil {
			r.sealed(&secret.Value)
		}
	}
}

// references holds the References of the resources of all kinds in one view, by collection.
type references map[string]kindReferences

type kindReferences struct {
	version any
	*References
}

// referencesOf returns the references of all resources in a view. previous is the result for an
// earlier view, or nil; it is reused for kinds whose rows have not changed since.
func referencesOf(v *projections.View, previous references) references {
	now := make(references, len(domain.Kinds))
	for _, kind := range domain.Kinds {
		collection := kind.CollectionID()
		version := v.TableVersion(kind)
		if last, ok := previous[collection]; ok && last.version == version {
			now[collection] = last
			continue
		}
		one := kindReferences{version, newReferences()}
		for row := range v.RowsOf(kind) {
			one.refer(kind, row)
		}
		now[collection] = one
	}
	return now
}

// changed reports whether resources of at least one of the collections have changed since the view
// of previous.
func (r references) changed(previous references, collections []string) bool {
	return slices.ContainsFunc(collections, func(c string) bool { return r[c].References != previous[c].References })
}

// blob reports whether a resource refers to the file under key.
func (r references) blob(key string) bool {
	for _, kind := range r {
		if kind.files[key] {
			return true
		}
		for i := range len(key) {
			if key[i] == '/' && kind.prefixes[key[:i+1]] {
				return true
			}
		}
	}
	return false
}

// dataKey reports whether a resource refers to a data key.
func (r references) dataKey(id string) bool {
	for _, kind := range r {
		if kind.keys[id] {
			return true
		}
	}
	return false
}

// dropped returns the references that are in previous and not in r. r may still refer to single
// files below a prefix in the result.
func (r references) dropped(previous references) *References {
	dropped := newReferences()
	for collection, old := range previous {
		if r[collection].References == old.References {
			continue
		}
		same := r[collection].References
		for prefix := range old.prefixes {
			if !same.prefixes[prefix] && !r.blob(prefix) {
				dropped.prefixes[prefix] = true
			}
		}
		for key := range old.files {
			if !same.files[key] && !r.blob(key) {
				dropped.files[key] = true
			}
		}
		for id := range old.keys {
			if !same.keys[id] && !r.dataKey(id) {
				dropped.keys[id] = true
			}
		}
	}
	return dropped
}

func (r *References) empty() bool { return len(r.prefixes)+len(r.files)+len(r.keys) == 0 }

// isManaged reports whether a key is below a prefix in blobs.Roots, where anneal stores files.
func isManaged(key string) bool {
	return slices.ContainsFunc(blobs.Roots(), func(root string) bool { return strings.HasPrefix(key, root) })
}
