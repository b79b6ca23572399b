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

// change applies a decoded event to the table of f, and to the history of job waits if the event
// starts a job.
func (w *World) change(f *fold, e eventlog.Event, decoded any) error {
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
