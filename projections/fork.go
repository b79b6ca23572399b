package projections

import "anneal/domain"

// Fork returns a world with the rows and the history of job waits of w, at the same position. From
// then on, the two worlds change independently. The fork has no live status, no archive and no
// snapshots.
func Fork(w *World) *World {
	w.mu.Lock()
	defer w.mu.Unlock()
	fork := NewWorldOf()
	fork.fields, fork.at, fork.saved, fork.now, fork.waits = w.fields, w.at, w.at.Position, w.now, w.waits.Fork()
	for collection, f := range w.folds {
		table := f.share().copy()
		fork.folds[collection] = &fold{kind: f.kind, job: f.job, serves: f.serves, table: table, changed: true}
	}
	return fork
}

// CurrentJob returns the row of a job of any kind at the position of w; false when there is none. The row
// is valid until the next event is folded, and must not be changed. Only the goroutine that folds events
// may call CurrentJob: others use a View.
func CurrentJob(w *World, name domain.Name) (Row[domain.Job], bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.folds[name.Collection()]
	if f == nil {
		return Row[domain.Job]{}, false
	}
	row, ok := f.table.row(name)
	if !ok {
		return Row[domain.Job]{}, false
	}
	return JobOf(row)
}
