package projections

import (
	"context"
	"fmt"
)

// A waiter is closed once the world's position is at or beyond the one that it
// is filed under. Whoever waits for the same position shares it.
type waiter struct {
	done  chan struct{}
	users int // who may give up; Changed's never do
}

var past = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Changed is closed once the position is beyond after.
func (w *World) Changed(after uint64) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.at.Position > after {
		return past
	}
	return w.await(after + 1).done
}

// WaitFor returns once every event up to position has been folded: who waits
// for the position of his own write reads it afterwards. It fails when ctx is
// done first, or when the world stands still on an event that does not fold.
func (w *World) WaitFor(ctx context.Context, position uint64) error {
	w.mu.Lock()
	if w.at.Position >= position {
		w.mu.Unlock()
		return nil
	}
	waiter := w.await(position)
	w.mu.Unlock()
	select {
	case <-waiter.done:
		return nil
	case <-w.broken:
		return w.failed
	case <-ctx.Done():
		w.giveUp(position, waiter)
		return fmt.Errorf("waiting for event %d: %w", position, ctx.Err())
	}
}

func (w *World) await(position uint64) *waiter {
	one, _ := w.waiters.Get(position)
	if one == nil {
		one = &waiter{done: make(chan struct{})}
		w.waiters.Set(position, one)
	}
	one.users++
	return one
}

func (w *World) giveUp(position uint64, one *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one.users--
	if current, _ := w.waiters.Get(position); current == one && one.users == 0 {
		w.waiters.Delete(position)
	}
}

// wake releases the callers that wait for the present position or an earlier one.
func (w *World) wake() {
	for {
		position, one, waiting := w.waiters.Min()
		if !waiting || position > w.at.Position {
			return
		}
		close(one.done)
		w.waiters.Delete(position)
	}
}
