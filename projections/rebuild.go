package projections

import (
	"context"
	"fmt"

	"anneal/domain"
	"anneal/eventlog"
)

const (
	// a rebuild starts its backlog when it is at most this number of events behind the served world
	backlogStart    = 1_000
	maxBacklog      = 100_000 // maximum number of events in the backlog of a rebuild
	maxSwitchEvents = 64      // maximum number of events that are folded while the served world is locked
	progressEvery   = 1_000   // number of folded events between two calls of the function progress
)

// A backlog holds the events that the served world has folded since startBacklog, and that the
// rebuild has not folded yet. The world's lock guards it.
type backlog struct {
	events   []eventlog.Event
	overflow bool // more than maxBacklog events were added, so the backlog has not kept all of them
}

// add adds an event; a nil backlog ignores it.
func (t *backlog) add(e eventlog.Event) {
	switch {
	case t == nil || t.overflow:
	case len(t.events) == maxBacklog:
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

// Rebuild folds the log from its first event into new tables, replaces the tables of the world by
// them at one position, and compares both. The world can be used during a rebuild: it is locked
// only while the last events, at most maxSwitchEvents, are folded. Rebuild calls progress with the
// number of events that it has folded, and the position of the world.
//
// After an error, the world has the same tables as before, unless it is a NotComparedError. The world
// must be following the same log (see World.Run). Only one rebuild may run at a time.
func Rebuild(ctx context.Context, w *World, log Reader, progress func(folded, end uint64)) (Comparison, error) {
	r := &rebuild{w, log, emptyOf(w), progress}
	for {
		end := w.Position()
		if err := r.foldTo(ctx, end); err != nil {
			return Comparison{}, err
		}
		if w.Position()-r.next.Position() <= backlogStart {
			break
		}
	}
	start, err := r.startBacklog()
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
	c, err := Compare(ctx, served, folded)
	if err != nil {
		return Comparison{}, &NotComparedError{folded.Position, err}
	}
	return c, nil
}

// A NotComparedError is the error of Rebuild after it has replaced the tables of the world at a
// position, but could not compare them with the previous ones, which may have been wrong.
type NotComparedError struct {
	Position uint64
	Err      error
}

func (e *NotComparedError) Error() string {
	return fmt.Sprintf("the served state was replaced at position %d, but not compared with the previous one: %v",
		e.Position, e.Err)
}

func (e *NotComparedError) Unwrap() error { return e.Err }

// emptyOf returns a world with the same kinds as w, without rows.
func emptyOf(w *World) *World {
	kinds := make([]domain.AnyKind, 0, len(w.folds))
	for _, f := range w.folds {
		kinds = append(kinds, f.kind)
	}
	fresh := NewWorldOf(kinds...)
	fresh.fields, fresh.now = w.fields, w.now
	return fresh
}

// foldTo folds the events of the log into next, up to the position end. It returns an error if the
// log ends before it.
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
	return domain.Errorf(domain.DataLoss, "the log ends at position %d, before position %d of the served state: "+
		"check the log with `anneal log verify`",
		w.Position(), end)
}

// startBacklog makes the served world add the events that it folds from now on to a backlog. It
// returns the position before these events.
func (r *rebuild) startBacklog() (after uint64, err error) {
	w := r.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.backlog != nil {
		return 0, domain.Errorf(domain.FailedPrecondition,
			"another rebuild is running: cancel it, or wait until it ends")
	}
	if w.failed != nil {
		return 0, w.failed
	}
	w.backlog = &backlog{}
	return w.at.Position, nil
}

func (r *rebuild) endTail() {
	r.world.mu.Lock()
	defer r.world.mu.Unlock()
	r.world.backlog = nil
}

// replace folds the backlog into next until both worlds are at the same position, and replaces the
// tables of the served world by those of next. It returns the views of both worlds at this
// position. next must not be used after that.
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

// tryReplace folds the backlog and then replaces the tables, if the backlog is short. Otherwise it
// empties the backlog and returns its events, which the caller must fold before it tries again.
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
	case w.backlog.overflow:
		return nil, false, domain.Errorf(domain.ResourceExhausted, "more than %d events were recorded while the rebuild "+
			"folded the last %d: rebuild again when fewer requests change resources", maxBacklog, backlogStart)
	}
	events, w.backlog.events = w.backlog.events, nil
	if len(events) > maxSwitchEvents {
		return events, false, nil
	}
	for _, e := range events {
		if err := next.Apply(e); err != nil {
			return nil, false, err
		}
	}
	if next.at != w.at {
		return nil, false, domain.Errorf(domain.DataLoss, "the log has event %s at position %d, but the served state "+
			"ends with event %s at position %d: check the log with "+
			"`anneal log verify`", next.at.EventID, next.at.Position, w.at.EventID, w.at.Position)
	}
	*served, *folded = shareView(w), next.View()
	for collection, f := range w.folds {
		g := next.folds[collection]
		f.table, f.shared, f.changed = g.table, g.shared, g.changed
	}
	w.waits, w.view = next.waits, nil
	w.rebuilds++
	w.Pipeline.Forget()
	return nil, true, nil
}
