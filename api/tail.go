package api

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"anneal/eventlog"
)

// ringSize is how many events a tail remembers at least: who falls behind
// further reads them from the log.
const ringSize = 1024

// restartTime is how long a tail waits before it follows a failed log again.
const restartTime = time.Second

// A tail follows the log once for all who listen: it begins with the first of
// them and remembers the newest events.
type tail struct {
	log    eventlog.Log
	logger *slog.Logger
	ctx    context.Context
	stop   context.CancelFunc

	mu      sync.Mutex
	started bool
	from    uint64 // every event after this position, up to at, is in ring
	at      uint64
	ring    []eventlog.Event
	grown   chan struct{}
}

func newTail(log eventlog.Log, logger *slog.Logger) *tail {
	ctx, stop := context.WithCancel(context.Background())
	return &tail{log: log, logger: logger, ctx: ctx, stop: stop, grown: make(chan struct{})}
}

func (t *tail) close() { t.stop() }

// start begins to follow after a position, unless that was done before.
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
					t.logger.Warn("following the log for listeners failed; trying again", "after", after, "error", err)
				}
				break
			}
			after = e.Position
			t.add(e)
		}
		select {
		case <-t.ctx.Done():
		case <-time.After(restartTime):
		}
	}
}

func (t *tail) add(e eventlog.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.ring) == 2*ringSize {
		t.from = t.ring[ringSize-1].Position
		t.ring = append(make([]eventlog.Event, 0, 2*ringSize), t.ring[ringSize:]...) // readers keep the old array
	}
	t.ring, t.at = append(t.ring, e), e.Position
	close(t.grown)
	t.grown = make(chan struct{})
}

// since is every event after a position, and what is closed when there are
// more. complete is false when the ring no longer holds all of them; those up
// to position at must then be read from the log.
func (t *tail) since(after uint64) (events []eventlog.Event, at uint64, complete bool, grown <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if after < t.from {
		return nil, t.at, false, t.grown
	}
	i := len(t.ring)
	for i > 0 && t.ring[i-1].Position > after {
		i--
	}
	return t.ring[i:len(t.ring):len(t.ring)], t.at, true, t.grown
}
