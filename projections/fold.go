package projections

import (
	"fmt"
	"io"
	"reflect"
	"time"

	"anneal/domain"
	"anneal/eventlog"
)

// A fold holds the table of one kind into which events are folded. Its field shared is the last copy
// of the table that was made for views. The world's lock guards a fold.
type fold struct {
	kind    domain.AnyKind
	job     bool // the resources of the kind are training jobs
	serves  bool // the resources of the kind are deployments
	table   *table
	shared  *table
	changed bool // the table has changed since shared was copied
}

func newFold(kind domain.AnyKind) *fold {
	return &fold{kind: kind, job: domain.IsJob(kind), serves: kind.CollectionID() == domain.Deployments.Collection,
		table: newTable(kind), changed: true}
}

// change applies a decoded event to the table. After an error, the table is unchanged. A row that
// was written since the last copy of the table is changed in place; other rows are cloned first,
// because views share them.
func (f *fold) change(e eventlog.Event, decoded any) error {
	old, existed := f.table.rows.Get(e.Name)
	row := old.row
	switch {
	case !existed:
		row = f.kind.NewRow(e.Name)
	case !f.table.isUnshared(f.table.listedIn(e.Name), old.slot):
		row = old.row.Clone()
	}
	exists, err := apply(row, decoded, e)
	if err != nil {
		return err
	}
	f.changed = true
	switch {
	case exists && row != old.row:
		f.table.put(row, old)
	case exists:
		f.table.index(row)
	case existed:
		f.table.remove(e.Name, row.Head().CreateTime, e.Position)
	default:
		f.table.deleted.Set(e.Name, e.Position)
	}
	return nil
}

// apply applies a decoded event to a row, and reports whether the resource then exists. It returns
// a panic of the event's Evolve as an error, so that the world can name the event.
func apply(row domain.AnyRow, decoded any, e eventlog.Event) (exists bool, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("applying the event panics: %v", reason)
		}
	}()
	return row.Apply(decoded, e.Position, e.ID, canonicalTime(e.Time)), nil
}

// row returns the row of a resource as eventlog.Rows defines it.
func (f *fold) row(name domain.Name) eventlog.Row {
	if one, ok := f.table.rows.Get(name); ok {
		head := one.row.Head()
		return eventlog.Row{State: one.row.Value(), Version: head.Version, CreateTime: head.CreateTime,
			CreateEvent: head.CreateEvent, UpdateTime: head.UpdateTime}
	}
	version, _ := f.table.deleted.Get(name)
	return eventlog.Row{Version: version}
}

// version returns the position of a resource's last event; 0 when the resource has never existed.
func (f *fold) version(name domain.Name) uint64 {
	if one, ok := f.table.rows.Get(name); ok {
		return one.row.Head().Version
	}
	version, _ := f.table.deleted.Get(name)
	return version
}

// share returns an immutable copy of the table: the previous copy if the table has not changed
// since.
func (f *fold) share() *table {
	if f.changed {
		f.shared, f.changed = f.table.copy(), false
		f.table.cow = new(cowContext)
	}
	return f.shared
}

// describe writes a description of the Go types of the kind's state and events to w, for
// World.schema.
func (f *fold) describe(w io.Writer) {
	describeType(w, f.kind.StateType(), map[reflect.Type]bool{})
	for name, t := range f.kind.EventTypes() {
		fmt.Fprintf(w, "event %s ", name)
		describeType(w, t, map[reflect.Type]bool{})
	}
}

// canonicalTime returns the same instant in UTC and without a monotonic clock reading, which a
// snapshot does not preserve.
func canonicalTime(t time.Time) time.Time { return t.UTC().Round(0) }
