package events

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"anneal/eventlog"
)

// RingSize is the minimum number of events that a tail buffers. A stream that is further behind
// reads events from the log.
const RingSize = 1024

// restartDelay is the time before a tail subscribes again after an error.
const restartDelay = time.Second

// A tail is the one subscription to the log that all streams share. The first stream starts the
// tail, which buffers the latest events.
type tail struct {
	log    eventlog.Log
	logger *slog.Logger
	ctx    context.Context
	stop   context.CancelFunc

	mu      sync.Mutex
	started bool
	from    uint64 // ring has all events after the position from, up to the position at
	at      uint64
	ring    []eventlog.Event
	grown   chan struct{} // closed when events are added
}

func newTail(log eventlog.Log, logger *slog.Logger) *tail {
	ctx, stop := context.WithCancel(context.Background())
	return &tail{log: log, logger: logger, ctx: ctx, stop: stop, grown: make(chan struct{})}
}

func (t *tail) close() { t.stop() }

// start subscribes to the events after a position, unless the tail has started already.
func (t *tail) start(after uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.started {
		t.started, t.from, t.at = true, after, after
		go t.follow(after)
	}
}

func (t *tail) follow(after uint64) {
	for t.ctx.Err() == nil {
		for e, err := range t.log.Follow(t.ctx, "events.>", after) {
			if err != nil {
				if t.ctx.Err() == nil {
					t.logger.Warn("event streams lost their subscription to the log; retrying", "after", after, "error", err)
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

func (t *tail) add(e eventlog.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.ring) == 2*RingSize {
		t.from = t.ring[RingSize-1].Position
		// the events are copied to a new array, because callers of since hold slices of the old one
		t.ring = append(make([]eventlog.Event, 0, 2*RingSize), t.ring[RingSize:]...)
	}
	t.ring, t.at = append(t.ring, e), e.Position
	close(t.grown)
	t.grown = make(chan struct{})
}

// since returns the events after a position, the position last of the latest event, and a channel
// that is closed when more events arrive. complete is false, and events is nil, when the ring lacks
// some of the events: the caller must then read the events up to last from the log.
func (t *tail) since(position uint64) (events []eventlog.Event, last uint64, complete bool, grown <-chan struct{}) {
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
