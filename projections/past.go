package projections

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/archive"
	"anneal/projections/live"
	"anneal/projections/waits"
)

// everyAccount is the argument of table.of, and of similar functions, that stands for the rows of
// all accounts.
const everyAccount = ""

// ReasonNoArchive is the reason of the error when an earlier state is requested from a world
// without an archive.
const ReasonNoArchive = "NO_ARCHIVE"

// Archive makes the world add each event that it folds to an archive, which ViewAt needs. It
// returns an error unless the archive ends at the position of the world. Call Archive before Run
// and Apply.
func (w *World) Archive(a *archive.Archive) error {
	if last, _ := a.Last(); last < w.Position() {
		return fmt.Errorf("the archive of earlier states ends at position %d, before position %d of the world", last,
			w.Position())
	}
	w.archive = a
	return nil
}

// archiveEvent adds an event that f has folded to an archive; a nil archive is ignored. previous is
// the position of the previous event of the resource.
func archiveEvent(target *archive.Archive, f *fold, e eventlog.Event, previous uint64) {
	if target == nil {
		return
	}
	var state []byte
	if previous > 0 && archive.CarriesState(e.Position) {
		var err error
		if one, exists := f.table.rows.Get(e.Name); exists {
			state, err = encodeRow(one.row)
		} else {
			state, err = json.Marshal(line{Name: e.Name, Version: e.Position})
		}
		if err != nil {
			state = nil // store no state: ViewAt then folds earlier events of the resource
		}
	}
	target.Add(e, previous, state)
}

// A Moment is the earlier log position of a view that ViewAt returned. Tables find their rows in
// the archive when they are read, and cannot return an error, so the Moment keeps the first error.
type Moment struct {
	ctx      context.Context
	world    *World
	position uint64
	rebuilds int // View.rebuilds of the view; if the world's number differs, the world was rebuilt since

	mu  sync.Mutex
	err error
}

func (m *Moment) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		m.err = err
	}
}

// Err returns the first error in finding rows of the view, because of which the view may lack rows;
// nil if there was none. Check it after reading from the view.
func (m *Moment) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// ViewAt returns a view of the world at an earlier position, which must be at most the position of
// the world. The view has no live status and no waits, because they are not in the log. Its tables
// find their rows in the archive when these are read, until ctx is done. When that fails, they have
// no rows, and View.Past.Err returns the error.
//
// The state of one resource is folded from a few events of the archive. To list an account's rows,
// ViewAt copies the present table and replaces the rows that have changed since the position. A few
// such tables stay in memory.
func (w *World) ViewAt(ctx context.Context, position uint64) (*View, error) {
	if w.archive == nil {
		return nil, &domain.Error{Code: domain.FailedPrecondition, Reason: ReasonNoArchive,
			Message: "this server keeps no archive of earlier states: request the current state"}
	}
	present := w.View()
	if position == 0 || position > present.Position {
		return nil, domain.Errorf(domain.OutOfRange,
			"position %d does not exist: it must be from 1 to %d, the position of the newest event", position, present.Position)
	}
	last, err := w.archive.Get(position)
	if err != nil {
		return nil, err
	}
	m := &Moment{ctx: ctx, world: w, position: position, rebuilds: present.rebuilds}
	v := &View{Checkpoint: eventlog.Checkpoint{Position: position, EventID: last.ID}, Past: m, Live: live.View{},
		Waits: waits.New(), tables: make(map[string]*table, len(present.tables))}
	for collection, t := range present.tables {
		v.tables[collection] = &table{kind: t.kind, past: &pastRows{m, t}}
	}
	if w.fields != nil {
		w.fields(v)
	}
	return v, nil
}

// PositionAt returns the position before the first event whose time is later than t; 0 when that is
// the first event of the log. newest is the latest time of all events.
func (w *World) PositionAt(t time.Time) (position uint64, newest time.Time, err error) {
	if w.archive == nil {
		return 0, time.Time{}, &domain.Error{Code: domain.FailedPrecondition, Reason: ReasonNoArchive,
			Message: "this server keeps no archive of earlier states: request the current state"}
	}
	position, err = w.archive.At(t)
	_, newest = w.archive.Last()
	return min(position, w.Position()), newest, err
}

// pastRows finds the rows of a table as they were at a Moment.
type pastRows struct {
	*Moment
	present *table
}

// row returns the row of a resource at the Moment; false when it did not exist.
func (p *pastRows) row(name domain.Name) (domain.AnyRow, bool) {
	row, _, err := p.find(name)
	if err != nil {
		p.fail(err)
	}
	return row, row != nil
}

// version returns the position of a resource's last event up to the Moment; 0 when there is none.
func (p *pastRows) version(name domain.Name) uint64 {
	_, version, err := p.find(name)
	if err != nil {
		p.fail(err)
	}
	return version
}

// find returns the row of a resource at the Moment, nil when it did not exist, and the position of
// its last event up to the Moment.
func (p *pastRows) find(name domain.Name) (domain.AnyRow, uint64, error) {
	if one, exists := p.present.rows.Get(name); exists {
		version := one.row.Head().Version
		if version <= p.position {
			return one.row, version, nil
		}
		return p.stateAt(name, version)
	}
	version, known := p.present.deleted.Get(name)
	if !known || version <= p.position {
		return nil, version, nil
	}
	return p.stateAt(name, version)
}

// stateAt returns what find returns, for a resource that has changed since the Moment. version is
// the position of its last event.
func (p *pastRows) stateAt(name domain.Name, version uint64) (domain.AnyRow, uint64, error) {
	if err := p.ctx.Err(); err != nil {
		return nil, 0, err
	}
	found, err := p.world.archive.Find(version, p.position)
	if err != nil || found == 0 {
		return nil, found, err
	}
	row, err := p.foldAt(name, found)
	return row, found, err
}

// foldAt returns the row of a resource after its event at a position; nil when the event deleted
// it.
func (p *pastRows) foldAt(name domain.Name, position uint64) (domain.AnyRow, error) {
	chain, err := p.world.archive.Chain(position)
	var row domain.AnyRow
	for i := 0; err == nil && i < len(chain); i++ {
		row, err = p.foldEvent(name, row, chain[i], i == 0)
	}
	return row, err
}

// foldEvent returns the row of a resource after its event at a position; nil when the event deleted
// it. row is the row before the event. If useState is set, the state that the archive stores with
// the event can be used instead of row.
func (p *pastRows) foldEvent(name domain.Name, row domain.AnyRow, position uint64, useState bool) (domain.AnyRow,
	error) {
	entry, err := p.world.archive.Get(position)
	switch {
	case err != nil:
		return nil, err
	case entry.Name != name:
		return nil, domain.Errorf(domain.DataLoss, "the archive of earlier states has an event of %s at position %d, "+
			"but the log has an event of %s there: stop the server, remove the folder archive in its data directory, "+
			"and start it again",
			entry.Name, position, name)
	}
	if row, err = next(p.present.kind, row, entry, useState); err != nil {
		return nil, fmt.Errorf("event %d (%s of %s): %w", position, entry.Type, name, err)
	}
	return row, nil
}

// next returns the row of a resource after an event; nil when the event deleted it. row and
// useState are those of foldEvent.
func next(kind domain.AnyKind, row domain.AnyRow, entry archive.Entry, useState bool) (domain.AnyRow, error) {
	if useState && entry.State != nil {
		row, _, err := new(rowDecoder).decode(kind, entry.Name, entry.State)
		return row, err
	}
	decoded, err := kind.DecodeEvent(entry.Record)
	if err != nil {
		return nil, err
	}
	if row == nil {
		row = kind.NewRow(entry.Name)
	}
	exists, err := apply(row, decoded, entry.Event)
	if err != nil || !exists {
		return nil, err
	}
	return row, nil
}

// of returns a table that has the rows of an account, or of all accounts for everyAccount, in
// memory.
func (t *table) of(account string) *table {
	if t.past == nil {
		return t
	}
	return t.past.of(account)
}

func (p *pastRows) of(account string) *table {
	key := pastKey{p.position, p.rebuilds, p.present.kind.CollectionID(), account}
	t, err := p.world.pastTableCache.table(p.ctx, key, func(ctx context.Context) (*table, int, error) {
		m := &Moment{ctx: ctx, world: p.world, position: p.position, rebuilds: p.rebuilds}
		return (&pastRows{m, p.present}).build(account)
	})
	if err != nil {
		p.fail(err)
		return newTable(p.present.kind)
	}
	return t
}
