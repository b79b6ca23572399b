package projections

import (
	"fmt"
	"io"
	"time"

	"anneal/domain"
	"anneal/eventlog"
)

// A fold is the table of one kind that the world's writer changes, and the
// last copy of it that was lent to readers. The world's lock guards it.
type fold[S domain.State] struct {
	kind       *domain.Kind[S]
	table      *Table[S]
	lent       *Table[S]
	changed    bool // since lent was made
	generation uint64
	place      func(*View) **Table[S] // where a view keeps this table; nil when it has no field for it
}

// tables is a fold of any kind.
type tables interface {
	collection() string
	// decode reads an event's record; the result goes to change. It touches
	// nothing that the lock guards.
	decode(eventlog.Event) (any, error)
	// change applies a decoded event, or leaves everything as it was.
	change(eventlog.Event, any) error
	// row implements eventlog.Rows for one kind.
	row(domain.Name) eventlog.Row
	// after is a state once a record is folded into it, which changes nothing.
	after(state any, record domain.Record) (any, error)
	// lend puts an immutable copy of the table into a view.
	lend(*View)
	// restore puts a row of a snapshot back.
	restore(line) error
	// describe writes down what can be folded: see World.schema.
	describe(io.Writer)
}

// register adds a kind to a world that has not seen an event yet.
func register[S domain.State](w *World, kind *domain.Kind[S], place func(*View) **Table[S]) {
	f := &fold[S]{kind: kind, table: newTable[S](kind.Collection), changed: true, place: place}
	w.folds[kind.Collection] = f
}

func (f *fold[S]) collection() string { return f.kind.Collection }

func (f *fold[S]) decode(e eventlog.Event) (any, error) { return f.kind.Decode(e.Record) }

// change folds the event into its row. A row made since the last view was lent
// is nobody else's and changes in place; any other is copied first.
func (f *fold[S]) change(e eventlog.Event, decoded any) error {
	old, existed := f.table.rows.Get(e.Name)
	row := old
	switch {
	case !existed:
		row = &Row[S]{Name: e.Name, generation: f.generation}
	case old.generation != f.generation:
		clone := *old
		row = &clone
		row.generation = f.generation
	}
	if err := evolve(&row.State, decoded.(domain.Event[S])); err != nil {
		return err
	}
	created := row.CreateTime
	row.Version, row.UpdateTime = e.Position, canonicalTime(e.Time)
	f.changed = true

	switch exists := row.State.Exists(); {
	case exists && !existed:
		row.CreateTime, row.CreateEvent = row.UpdateTime, e.ID
		f.table.put(row, true)
	case exists && row != old:
		f.table.put(row, false)
	case !exists && existed:
		f.table.remove(e.Name, created, e.Position)
	case !exists:
		f.table.gone.Set(e.Name, e.Position)
	}
	return nil
}

// evolve turns a panic into an error, so that the event at fault is named.
func evolve[S any](state *S, e domain.Event[S]) (err error) {
	before := *state
	defer func() {
		if reason := recover(); reason != nil {
			*state, err = before, fmt.Errorf("it panics: %v", reason)
		}
	}()
	e.Evolve(state)
	return nil
}

func (f *fold[S]) row(name domain.Name) eventlog.Row {
	if row, ok := f.table.rows.Get(name); ok {
		return eventlog.Row{State: row.State, Version: row.Version, CreateTime: row.CreateTime, CreateEvent: row.CreateEvent, UpdateTime: row.UpdateTime}
	}
	version, _ := f.table.gone.Get(name)
	return eventlog.Row{Version: version}
}

func (f *fold[S]) after(state any, record domain.Record) (any, error) {
	next, _ := state.(S)
	err := f.kind.Fold(&next, record)
	return next, err
}

func (f *fold[S]) lend(v *View) {
	if f.changed {
		f.lent, f.changed = f.table.copy(), false
		f.generation++
	}
	v.tables[f.kind.Collection] = f.lent
	if f.place != nil {
		*f.place(v) = f.lent
	}
}

// TableOf is the view's table of a kind: what the field of that kind holds.
func TableOf[S domain.State](v *View, kind *domain.Kind[S]) *Table[S] {
	t, ok := v.tables[kind.Collection].(*Table[S])
	if !ok {
		panic(fmt.Sprintf("projections: the world does not fold %s", kind.Collection))
	}
	return t
}

// canonicalTime is the same instant, written down and compared the same way
// whether it came from the log or from a snapshot.
func canonicalTime(t time.Time) time.Time { return t.UTC().Round(0) }
