package projections

import (
	"context"
	"fmt"

	"anneal/domain"
	"anneal/eventlog"
)

const (
	rebuildTail     = 1_000   // events behind the served world at which a rebuild follows its tail
	maxRebuildTail  = 100_000 // events in the tail of a rebuild
	maxSwitchEvents = 64      // events that are folded while the served world waits
	progressEvery   = 1_000   // events between two reports
)

// A tail has the events that the world has folded since a rebuild began to follow it, and that the
// rebuild has not folded yet. The world's lock guards it.
type tail struct {
	events   []eventlog.Event
	overflow bool // there were more than maxRebuildTail
}

// add adds an event; a nil tail ignores it.
func (t *tail) add(e eventlog.Event) {
	switch {
	case t == nil || t.overflow:
	case len(t.events) == maxRebuildTail:
		t.events, t.overflow = nil, true
	default:
		t.events = append(t.events, e)
	}
}

// A rebuild folds the log into next, beside the world that is served.
type rebuild struct {
	world    *World
	log      Reader
	next     *World
	progress func(folded, end uint64)
}

// Rebuild folds the log from its first event into new tables beside those of the world, replaces the
// tables of the world at one position, and compares both. The world can be used meanwhile: it waits
// only while the last maxSwitchEvents events are folded. progress is called with the number of folded
// events, and the position of the world.
//
// After an error, the world has the same tables as before, unless the error says that they were
// replaced. The world must be folding log; only one rebuild may run at a time.
func Rebuild(ctx context.Context, w *World, log Reader, progress func(folded, end uint64)) (Comparison, error) {
	r := &rebuild{w, log, emptyOf(w), progress}
	for {
		end := w.Position()
		if err := r.foldTo(ctx, end); err != nil {
			return Comparison{}, err
		}
		if w.Position()-r.next.Position() <= rebuildTail {
			break
		}
	}
	start, err := r.beginTail()
	if err != nil {
		return Comparison{}, err
	}
	defer r.endTail()
	if err := r.foldTo(ctx, start); err != nil {
		return Comparison{}, err
	}
	served, folded, err := r.replace(ctx)
	if err != nil {
		return Comparison{}, err
	}
	progress(folded.Position, folded.Position)
	c, err := Compare(served, folded)
	if err != nil {
		err = fmt.Errorf("the state was replaced at position %d, but cannot be compared: %w", folded.Position, err)
	}
	return c, err
}

// emptyOf returns a world of the same kinds without rows.
func emptyOf(w *World) *World {
	kinds := make([]domain.AnyKind, 0, len(w.folds))
	for _, f := range w.folds {
		kinds = append(kinds, f.kind)
	}
	fresh := NewWorldOf(kinds...)
	fresh.fields, fresh.now = w.fields, w.now
	return fresh
}

// foldTo folds the events of the log up to the position end, which the log must have.
func (r *rebuild) foldTo(ctx context.Context, end uint64) error {
	w := r.next
	if w.Position() >= end {
		return ctx.Err()
	}
	for e, err := range r.log.Read(ctx, everything, w.Position()) {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return fmt.Errorf("read the log after event %d: %w", w.Position(), err)
		}
		if err := w.Apply(e); err != nil {
			return err
		}
		if e.Position%progressEvery == 0 || e.Position == end {
			r.progress(e.Position, end)
		}
		if e.Position == end {
			return nil
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return domain.Errorf(domain.DataLoss, "the log ends at position %d, before position %d of the served state",
		w.Position(), end)
}

// beginTail begins to keep the events that the world folds, and returns the position before them.
func (r *rebuild) beginTail() (after uint64, err error) {
	w := r.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tail != nil {
		return 0, domain.Errorf(domain.FailedPrecondition, "another rebuild is running")
	}
	if w.failed != nil {
		return 0, w.failed
	}
	w.tail = &tail{}
	return w.at.Position, nil
}

func (r *rebuild) endTail() {
	r.world.mu.Lock()
	defer r.world.mu.Unlock()
	r.world.tail = nil
}

// replace folds the tail into next until both worlds are at one position, and replaces the tables of the
// served one by those of next. It returns the views of both at that position. next must not be used any
// more.
func (r *rebuild) replace(ctx context.Context) (served, folded *View, err error) {
	for {
		events, done, err := r.tryReplace(ctx, &served, &folded)
		if err != nil || done {
			return served, folded, err
		}
		for _, e := range events {
			if err := r.next.Apply(e); err != nil {
				return nil, nil, err
			}
		}
	}
}

// tryReplace replaces the tables if the tail is short, and otherwise returns the events of the tail.
func (r *rebuild) tryReplace(ctx context.Context, served, folded **View) (events []eventlog.Event, done bool,
	err error) {
	w, next := r.world, r.next
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return nil, false, ctx.Err()
	case w.failed != nil:
		return nil, false, w.failed
	case w.tail.overflow:
		return nil, false, domain.Errorf(domain.ResourceExhausted, "more than %d events were recorded while the last "+
			"%d were folded: rebuild again when fewer requests change resources", maxRebuildTail, rebuildTail)
	}
	events, w.tail.events = w.tail.events, nil
	if len(events) > maxSwitchEvents {
		return events, false, nil
	}
	for _, e := range events {
		if err := next.Apply(e); err != nil {
			return nil, false, err
		}
	}
	if next.at != w.at {
		return nil, false, domain.Errorf(domain.DataLoss, "the log has event %s at position %d, and the served state ends "+
			"with event %s at position %d", next.at.EventID, next.at.Position, w.at.EventID, w.at.Position)
	}
	*served, *folded = shareView(w), next.View()
	for collection, f := range w.folds {
		g := next.folds[collection]
		f.table, f.shared, f.changed = g.table, g.shared, g.changed
	}
	w.waits, w.view = next.waits, nil
	w.rebuilds++
	return nil, true, nil
}
