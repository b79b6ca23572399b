package projections

import (
	"context"
	"fmt"
)

// A waiter holds a channel, done, that is closed when the world reaches a position. All callers
// that wait for the same position share one waiter.
type waiter struct {
	done  chan struct{}
	users int // number of callers that wait; a caller of Changed counts until the channel is closed
}

var past = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Changed returns a channel that is closed once the world has applied an event after position. If
// the world has done so already, the channel is closed.
func (w *World) Changed(position uint64) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.at.Position > position {
		return past
	}
	return w.await(position + 1).done
}

// WaitFor returns when every event up to position is folded, so that a caller that waits for the
// position of its own event can read the event's effect. It returns an error when ctx is done
// first, or when the world has stopped at an event that does not fold.
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
		w.stopWaiting(position, waiter)
		return fmt.Errorf("wait for event %d: %w", position, ctx.Err())
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

func (w *World) stopWaiting(position uint64, one *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one.users--
	if current, _ := w.waiters.Get(position); current == one && one.users == 0 {
		w.waiters.Delete(position)
	}
}

// wake releases the callers that wait for the world's current position or an earlier one.
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
