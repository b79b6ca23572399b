package eventlog

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// RingSize is the minimum number of events that a Tail has in memory. A reader that is further
// behind reads from the log.
const RingSize = 1024

// restartDelay is the time after which a Tail subscribes to the log again after an error.
const restartDelay = time.Second

// A Tail is a subscription to the log that many readers share. It has the newest events of all
// accounts in memory. The first reader starts it.
type Tail struct {
	log    Log
	logger *slog.Logger
	ctx    context.Context
	stop   context.CancelFunc

	mu      sync.Mutex
	started bool
	from    uint64 // ring has all events after position from, up to and including position at.
	at      uint64
	ring    []Event
	grown   chan struct{} // closed when events are added to ring
}

// NewTail returns a Tail of a log. The Tail ends when Close is called.
func NewTail(log Log, logger *slog.Logger) *Tail {
	ctx, stop := context.WithCancel(context.Background())
	return &Tail{log: log, logger: logger, ctx: ctx, stop: stop, grown: make(chan struct{})}
}

// Close ends the Tail.
func (t *Tail) Close() { t.stop() }

// Done returns a channel that is closed when the Tail has ended.
func (t *Tail) Done() <-chan struct{} { return t.ctx.Done() }

// Start subscribes to the events after a position. It does nothing when the Tail has been started
// already.
func (t *Tail) Start(cursor uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.started {
		t.started, t.from, t.at = true, cursor, cursor
		go t.follow(cursor)
	}
}

func (t *Tail) follow(after uint64) {
	for t.ctx.Err() == nil {
		for e, err := range t.log.Follow(t.ctx, "events.>", after) {
			if err != nil {
				if t.ctx.Err() == nil {
					t.logger.Warn("lost the subscription to the log that all event streams share: subscribing "+
						"again", "after", after, "error", err)
				}
				break
			}
			after = e.Position
			t.add(e)
		}
		select {
		case <-t.ctx.Done():
		case <-time.After(restartDelay):
		}
	}
}

func (t *Tail) add(e Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.ring) == 2*RingSize {
		t.from = t.ring[RingSize-1].Position
		// a new array, because callers of Since still use slices of the old one
		t.ring = append(make([]Event, 0, 2*RingSize), t.ring[RingSize:]...)
	}
	t.ring, t.at = append(t.ring, e), e.Position
	close(t.grown)
	t.grown = make(chan struct{})
}

// Since returns the events after a position. last is the position of the newest event, and grown is
// closed when more events arrive. complete is false when the Tail no longer has all of these
// events; the caller then reads the events up to last from the log.
func (t *Tail) Since(position uint64) (events []Event, last uint64, complete bool, grown <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if position < t.from {
		return nil, t.at, false, t.grown
	}
	i := len(t.ring)
	for i > 0 && t.ring[i-1].Position > position {
		i--
	}
	return t.ring[i:len(t.ring):len(t.ring)], t.at, true, t.grown
}
