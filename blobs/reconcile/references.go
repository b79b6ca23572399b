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

// An enumerator adds what the resources of one kind refer to.
type enumerator interface {
	collection() string
	// version is the kind's table in a view: another one when a row has changed.
	version(*projections.View) any
	refer(*References, *projections.View)
}

type kind[S domain.State] struct {
	*domain.Kind[S]
	row func(*References, *projections.Row[S])
}

func (k kind[S]) collection() string { return k.Collection }

func (k kind[S]) version(v *projections.View) any { return projections.TableOf(v, k.Kind) }

func (k kind[S]) refer(r *References, v *projections.View) {
	for row := range projections.TableOf(v, k.Kind).All() {
		k.row(r, row)
	}
}

// nothing is for kinds whose resources are in the log alone.
func nothing[S domain.State](*References, *projections.Row[S]) {}

// kinds are all kinds of the world. A test holds each against its state: every
// domain.Files and domain.Sealed in it must be referred to.
var kinds = []enumerator{
	kind[domain.Account]{domain.Accounts, nothing[domain.Account]},
	kind[domain.APIKey]{domain.APIKeys, nothing[domain.APIKey]},
	kind[domain.Secret]{domain.Secrets, secret},
	kind[domain.Model]{domain.Models, model},
	kind[domain.Dataset]{domain.Datasets, dataset},
	kind[domain.Evaluator]{domain.Evaluators, evaluator},
	kind[domain.SupervisedJob]{domain.SupervisedJobs, supervisedJob},
	kind[domain.DPOJob]{domain.DPOJobs, dpoJob},
	kind[domain.ReinforcementJob]{domain.ReinforcementJobs, reinforcementJob},
	kind[domain.TrainerJob]{domain.TrainerJobs, trainerJob},
	kind[domain.DeploymentShape]{domain.DeploymentShapes, nothing[domain.DeploymentShape]},
	kind[domain.Deployment]{domain.Deployments, deployment},
	kind[domain.DeployedModel]{domain.DeployedModels, nothing[domain.DeployedModel]},
	kind[domain.Node]{domain.Nodes, nothing[domain.Node]},
	kind[domain.Quota]{domain.Quotas, nothing[domain.Quota]},
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

func supervisedJob(r *References, row *projections.Row[domain.SupervisedJob]) {
	job(r, row, &row.State.JobLife, row.State.TrackerConfig)
}

func dpoJob(r *References, row *projections.Row[domain.DPOJob]) {
	job(r, row, &row.State.JobLife, row.State.TrackerConfig)
}

func reinforcementJob(r *References, row *projections.Row[domain.ReinforcementJob]) {
	job(r, row, &row.State.JobLife, row.State.TrackerConfig)
}

func trainerJob(r *References, row *projections.Row[domain.TrainerJob]) {
	job(r, row, &row.State.JobLife, row.State.TrackerConfig)
}

// job adds the metrics, the checkpoints that the job remembers, and what its
// current attempt may be storing as its results. Results that are recorded are
// the model's that came of them, and go with it.
func job[S domain.State](r *References, row *projections.Row[S], life *domain.JobLife, tracker *domain.TrackerConfig) {
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
	if tracker != nil {
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
	now := make(world, len(kinds))
	for _, k := range kinds {
		version := k.version(v)
		if last, ok := before[k.collection()]; ok && last.version == version {
			now[k.collection()] = last
			continue
		}
		one := kindReferences{version, newReferences()}
		k.refer(one.References, v)
		now[k.collection()] = one
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
