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

// Rebuild folds the log from its first event into new tables beside those of the world, replaces the
// tables of the world at one position, and compares both. The world can be used meanwhile: it waits
// only while the last maxSwitchEvents events are folded. progress is called with the number of folded
// events, and the position of the world.
//
// After an error, the world has the same tables as before, unless the error says that they were
// replaced. The world must be folding log; only one rebuild may run at a time.
func (w *World) Rebuild(ctx context.Context, log Reader, progress func(folded, end uint64)) (Comparison, error) {
	next := w.empty()
	for {
		end := w.Position()
		if err := next.foldTo(ctx, log, end, progress); err != nil {
			return Comparison{}, err
		}
		if w.Position()-next.Position() <= rebuildTail {
			break
		}
	}
	start, err := w.beginTail()
	if err != nil {
		return Comparison{}, err
	}
	defer w.endTail()
	if err := next.foldTo(ctx, log, start, progress); err != nil {
		return Comparison{}, err
	}
	served, folded, err := w.replaceWith(ctx, next)
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

// empty returns a world of the same kinds without rows.
func (w *World) empty() *World {
	kinds := make([]domain.AnyKind, 0, len(w.folds))
	for _, f := range w.folds {
		kinds = append(kinds, f.kind)
	}
	fresh := NewWorldOf(kinds...)
	fresh.fields, fresh.now = w.fields, w.now
	return fresh
}

// foldTo folds the events of the log up to the position end, which the log must have.
func (w *World) foldTo(ctx context.Context, log Reader, end uint64, progress func(folded, end uint64)) error {
	if w.Position() >= end {
		return ctx.Err()
	}
	for e, err := range log.Read(ctx, everything, w.Position()) {
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
			progress(e.Position, end)
		}
		if e.Position == end {
			return nil
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return domain.Errorf(domain.DataLoss, "the log ends at position %d, before position %d of the served state", w.Position(),
		end)
}

// beginTail begins to keep the events that the world folds, and returns the position before them.
func (w *World) beginTail() (after uint64, err error) {
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

func (w *World) endTail() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tail = nil
}

// replaceWith folds the tail into next until both worlds are at one position, and replaces the tables
// of w by those of next. It returns the views of both at that position. next must not be used any more.
func (w *World) replaceWith(ctx context.Context, next *World) (served, folded *View, err error) {
	for {
		events, done, err := w.tryReplace(ctx, next, &served, &folded)
		if err != nil || done {
			return served, folded, err
		}
		for _, e := range events {
			if err := next.Apply(e); err != nil {
				return nil, nil, err
			}
		}
	}
}

// tryReplace replaces the tables if the tail is short, and otherwise returns the events of the tail.
func (w *World) tryReplace(ctx context.Context, next *World, served, folded **View) (events []eventlog.Event, done bool,
	err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return nil, false, ctx.Err()
	case w.failed != nil:
		return nil, false, w.failed
	case w.tail.overflow:
		return nil, false, domain.Errorf(domain.ResourceExhausted, "more than %d events were recorded while the last %d were "+
			"folded: rebuild again when fewer requests change resources", maxRebuildTail, rebuildTail)
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
	*served, *folded = w.share(), next.View()
	for collection, f := range w.folds {
		g := next.folds[collection]
		f.table, f.shared, f.changed, f.generation = g.table, g.shared, g.changed, g.generation
	}
	w.waits, w.view = next.waits, nil
	w.rebuilds++
	return nil, true, nil
}
