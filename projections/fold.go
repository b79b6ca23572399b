package projections

import (
	"fmt"
	"io"
	"reflect"
	"time"

	"anneal/domain"
	"anneal/eventlog"
)

// A fold is the table of one kind that the world's writer changes, and the last copy of it that a
// view was given. The world's lock guards it.
type fold struct {
	kind       domain.AnyKind
	table      *table
	shared     *table
	changed    bool   // since shared was copied
	generation uint64 // of the table: counts the copies
}

func newFold(kind domain.AnyKind) *fold {
	return &fold{kind: kind, table: newTable(kind), changed: true}
}

// change applies a decoded event, or leaves everything unchanged. A row that was written since the
// last copy belongs to the table alone and changes in place; any other is cloned first.
func (f *fold) change(e eventlog.Event, decoded any) error {
	old, existed := f.table.rows.Get(e.Name)
	row := old.row
	switch {
	case !existed:
		row = f.kind.NewRow(e.Name)
	case old.generation != f.generation:
		row = old.row.Clone()
	}
	exists, err := apply(row, decoded, e)
	if err != nil {
		return err
	}
	f.changed = true
	switch {
	case exists && !existed:
		f.table.put(cell{row, f.generation}, true)
	case exists && row != old.row:
		f.table.put(cell{row, f.generation}, false)
	case !exists && existed:
		f.table.remove(e.Name, row.Head().CreateTime, e.Position)
	case !exists:
		f.table.gone.Set(e.Name, e.Position)
	}
	return nil
}

// apply turns a panic of the event into an error, so that the world can name the event.
func apply(row domain.AnyRow, decoded any, e eventlog.Event) (exists bool, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("it panics: %v", reason)
		}
	}()
	return row.Apply(decoded, e.Position, e.ID, canonicalTime(e.Time)), nil
}

// row implements eventlog.Rows for one kind.
func (f *fold) row(name domain.Name) eventlog.Row {
	if one, ok := f.table.rows.Get(name); ok {
		head := one.row.Head()
		return eventlog.Row{State: one.row.Value(), Version: head.Version, CreateTime: head.CreateTime,
			CreateEvent: head.CreateEvent, UpdateTime: head.UpdateTime}
	}
	version, _ := f.table.gone.Get(name)
	return eventlog.Row{Version: version}
}

// share returns an immutable copy of the table.
func (f *fold) share() *table {
	if f.changed {
		f.shared, f.changed = f.table.copy(), false
		f.generation++
	}
	return f.shared
}

// restore puts a line of a snapshot back.
func (f *fold) restore(l line) error {
	f.changed = true
	if l.State == nil {
		f.table.gone.Set(l.Name, l.Version)
		return nil
	}
	if l.CreateTime == nil || l.UpdateTime == nil || l.CreateEvent == "" {
		return fmt.Errorf("%s lacks its times or the ID of its first event", l.Name)
	}
	row := f.kind.NewRow(l.Name)
	head := domain.Row[struct{}]{Name: l.Name, Version: l.Version, CreateEvent: l.CreateEvent,
		CreateTime: canonicalTime(*l.CreateTime), UpdateTime: canonicalTime(*l.UpdateTime)}
	if err := row.Restore(head, l.State); err != nil {
		return fmt.Errorf("%s: %w", l.Name, err)
	}
	f.table.put(cell{row, f.generation}, true)
	return nil
}

// describe writes what the kind can fold: see World.schema.
func (f *fold) describe(w io.Writer) {
	describeType(w, f.kind.StateType(), map[reflect.Type]bool{})
	for name, t := range f.kind.EventTypes() {
		fmt.Fprintf(w, "event %s ", name)
		describeType(w, t, map[reflect.Type]bool{})
	}
}

// canonicalTime returns the same instant in the one form that the log and snapshots share.
func canonicalTime(t time.Time) time.Time { return t.UTC().Round(0) }
