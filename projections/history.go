package projections

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections/waits"
)

// change applies a decoded event to the table of f, and to the history of waits if the event starts a
// job or places a replica.
func (w *World) change(f *fold, e eventlog.Event, decoded any) error {
	if f.serves && e.Type == "replica.placed.v1" {
		return placeReplica(w, f, e, decoded)
	}
	if !f.job {
		return f.change(e, decoded)
	}
	var attempt int
	var wait *domain.JobWait
	if life := f.life(e.Name); life != nil {
		attempt, wait = life.Attempt, life.Wait
	}
	if err := f.change(e, decoded); err != nil {
		return err
	}
	life := f.life(e.Name)
	if life == nil || life.StartTime == nil || life.Attempt == attempt {
		return nil
	}
	kind, units := life.Resources.Units()
	w.waits.Start(waits.Start{At: life.StartTime.Unix(), Type: kind, Units: units * int64(len(life.Nodes))})
	if wait != nil {
		w.waits.Observe(wait.Situation, wait.Estimate, max(0, life.StartTime.Unix()-wait.Time.Unix()))
	}
	return nil
}

// placeReplica applies the event of a replica that is placed. If the deployment then no longer lacks
// replicas within its minimum, or no replica at all, it adds to the history for how long it has lacked
// them.
func placeReplica(w *World, f *fold, e eventlog.Event, decoded any) error {
	before, waited := domain.ReplicaShortage{}, false
	if d := f.deployment(e.Name); d != nil {
		before, waited = d.Short, waitsForCapacity(w, d)
	}
	if err := f.change(e, decoded); err != nil {
		return err
	}
	d := f.deployment(e.Name)
	if !waited || d == nil || before.Since().IsZero() {
		return nil
	}
	below, left := !before.Minimum.IsZero(), d.Short.Desired
	if below {
		left = d.Short.Minimum
	}
	if left.IsZero() {
		w.waits.ObserveReplica(below, d.AcceleratorCount, canonicalTime(e.Time).Unix()-before.Since().Unix())
	}
	return nil
}

// waitsForCapacity reports whether a deployment that lacks replicas waits for capacity only, and not
// for its model, for another attempt after a failure, or, above maxReplicaCount, until nothing else
// waits for capacity.
func waitsForCapacity(w *World, d *domain.Deployment) bool {
	models, ok := w.folds[domain.Models.Collection]
	if !ok {
		return false
	}
	model, ok := models.table.rows.Get(domain.Name(d.BaseModel))
	return ok && !model.row.Head().UpdateTime.After(d.Short.Since()) && d.Failures == 0 &&
		len(d.Replicas) < d.MaxReplicas()
}

// deployment returns the state of a deployment; nil when it does not exist.
func (f *fold) deployment(name domain.Name) *domain.Deployment {
	one, ok := f.table.rows.Get(name)
	if !ok {
		return nil
	}
	return one.row.Pointer().(*domain.Deployment)
}

// life returns the lifecycle state of a job; nil when the job does not exist.
func (f *fold) life(name domain.Name) *domain.JobLife {
	one, ok := f.table.rows.Get(name)
	if !ok {
		return nil
	}
	return one.row.Pointer().(domain.Job).Life()
}

// A historyLine is a line of a snapshot that contains a part of the history of job waits.
type historyLine struct {
	History waits.Line `json:"history"`
}

const (
	historyPrefix = `{"history":`
	historyTable  = "waits" // key of the history of job waits in digests, where the keys of tables are collections
)

// linesOf yields the lines of all tables and of the history of job waits, each with the key of its
// table in digests.
func linesOf(v *View, yield func(table string, line []byte, deleted bool) error) error {
	for _, collection := range slices.Sorted(maps.Keys(v.tables)) {
		err := v.tables[collection].lines(func(_ domain.Name, line []byte, deleted bool) error {
			return yield(collection, line, deleted)
		})
		if err != nil {
			return err
		}
	}
	return historyLines(v, func(line []byte) error { return yield(historyTable, line, false) })
}

// historyLines yields the lines of the history of job waits as JSON.
func historyLines(v *View, yield func(line []byte) error) error {
	return v.Waits.Lines(func(l waits.Line) error {
		text, err := json.Marshal(historyLine{l})
		if err != nil {
			return err
		}
		return yield(text)
	})
}

func (w *World) restoreHistory(text []byte) error {
	var l historyLine
	err := json.Unmarshal(text, &l)
	if err == nil {
		err = w.waits.Restore(l.History)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return nil
}
