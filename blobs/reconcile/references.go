package reconcile

import (
	"slices"
	"strings"

	"anneal/blobs"
	"anneal/domain"
	"anneal/projections"
)

// References are what resources refer to outside of the log: folders and files
// of the blob bucket, and data keys of the vault.
type References struct {
	folders map[string]bool // each ends in a slash; all below it is referred to
	files   map[string]bool
	keys    map[string]bool
}

func newReferences() *References {
	return &References{map[string]bool{}, map[string]bool{}, map[string]bool{}}
}

func (r *References) folder(folder string) {
	if folder != "" {
		r.folders[folder] = true
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

// enumerators add what a resource refers to, by the collections of the kinds whose resources refer
// to files or data keys. Jobs of every kind are enumerated by job. A test fills the state of every
// kind: each domain.Files and domain.Sealed in it must be referred to.
var enumerators = map[string]func(*References, domain.AnyRow){
	domain.Secrets.Collection:     typed(secret),
	domain.Models.Collection:      typed(model),
	domain.Datasets.Collection:    typed(dataset),
	domain.Evaluators.Collection:  typed(evaluator),
	domain.Deployments.Collection: typed(deployment),
}

func typed[S any](add func(*References, *projections.Row[S])) func(*References, domain.AnyRow) {
	return func(r *References, row domain.AnyRow) { add(r, row.(*projections.Row[S])) }
}

// refer adds what a row of any kind refers to.
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
	r.folder(d.Files.Folder)
	switch {
	case d.Filling():
		r.folder(blobs.DerivedFolder(row.Name, row.CreateEvent))
	case d.From == nil && d.State != domain.DatasetReady:
		r.folder(blobs.Arrivals(row.Name, row.CreateEvent, d.Upload+1))
	}
}

func model(r *References, row *projections.Row[domain.Model]) {
	m := &row.State
	r.folder(m.Files.Folder)
	for precision, made := range m.Copies {
		r.folder(made.Files.Folder)
		if made.State == domain.CopyPreparing {
			r.folder(blobs.CopyFolder(row.Name, row.CreateEvent, precision, made.Attempt))
		}
	}
	if m.State != domain.ModelReady {
		r.folder(blobs.Arrivals(row.Name, row.CreateEvent, m.Upload+1))
	}
}

func evaluator(r *References, row *projections.Row[domain.Evaluator]) {
	e := &row.State
	r.folder(e.Files.Folder)
	r.file(e.BuildLog)
	for _, build := range e.Built {
		r.folder(build.Files.Folder)
	}
	if e.State == domain.EvaluatorBuilding {
		r.folder(blobs.BuildFolder(row.Name, row.CreateEvent, e.Revision))
	}
	r.folder(blobs.Arrivals(row.Name, row.CreateEvent, e.Uploads+1))
}

// job adds the metrics, the checkpoints that the job remembers, and what its
// current attempt may be storing as its results. Results that are recorded are
// the model's that came of them, and go with it.
func job(r *References, row projections.Row[domain.Job]) {
	life := row.State.Life()
	r.file(blobs.MetricsFile(row.Name, row.CreateEvent))
	r.file(blobs.EarlierMetricsFile(row.Name, row.CreateTime))
	for _, c := range life.Checkpoints {
		r.folder(c.Files.Folder)
	}
	if len(life.Nodes) > 0 {
		r.folder(blobs.ResultFolder(row.Name, row.CreateEvent, life.Attempt))
	}
	if life.Outcome != nil { // its model is being registered
		r.folder(life.Outcome.Results.Folder)
		r.folder(life.Outcome.Model.Files.Folder)
	}
	if tracker := row.State.Spec().Tracker; tracker != nil {
		r.sealed(tracker.APIKey)
	}
}

func deployment(r *References, row *projections.Row[domain.Deployment]) {
	for _, weights := range []*domain.HotWeights{row.State.Hot.Served, row.State.Hot.Offered} {
		if weights != nil {
			r.folder(weights.Files.Folder)
		}
	}
	for _, key := range row.State.DirectRouteAPIKeys {
		r.sealed(&key)
	}
}

// A world is what all kinds refer to at one position of the log.
type world map[string]kindReferences // by collection

type kindReferences struct {
	version any
	*References
}

// referencesOf enumerates what a view refers to. Kinds of which no row has
// changed since before are taken from there.
func referencesOf(v *projections.View, before world) world {
	now := make(world, len(domain.Kinds))
	for _, kind := range domain.Kinds {
		collection := kind.CollectionID()
		version := v.TableVersion(kind)
		if last, ok := before[collection]; ok && last.version == version {
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

// blob tells whether a resource refers to a file of the bucket.
func (w world) blob(key string) bool {
	for _, r := range w {
		if r.files[key] {
			return true
		}
		for i := range len(key) {
			if key[i] == '/' && r.folders[key[:i+1]] {
				return true
			}
		}
	}
	return false
}

// dataKey tells whether a resource refers to a data key.
func (w world) dataKey(id string) bool {
	for _, r := range w {
		if r.keys[id] {
			return true
		}
	}
	return false
}

// dropped is what resources referred to before and no longer do. Folders of
// which files may be referred to otherwise are among them.
func (w world) dropped(before world) *References {
	gone := newReferences()
	for collection, old := range before {
		if w[collection].References == old.References {
			continue
		}
		same := w[collection].References
		for folder := range old.folders {
			if !same.folders[folder] && !w.blob(folder) {
				gone.folders[folder] = true
			}
		}
		for key := range old.files {
			if !same.files[key] && !w.blob(key) {
				gone.files[key] = true
			}
		}
		for id := range old.keys {
			if !same.keys[id] && !w.dataKey(id) {
				gone.keys[id] = true
			}
		}
	}
	return gone
}

func (r *References) empty() bool { return len(r.folders)+len(r.files)+len(r.keys) == 0 }

// ours tells whether a key of the bucket lies where this program stores files.
func ours(key string) bool {
	return slices.ContainsFunc(blobs.Roots(), func(root string) bool { return strings.HasPrefix(key, root) })
}
