package transparency

import (
	"sync"

	"anneal/eventlog/integrity"
)

// Limits of a feed. When it exceeds one, it drops all its events, and the Publisher reads them from
// the log.
const (
	maxFeed      = 64 << 10 // maximum number of events in a feed
	maxFeedBytes = 64 << 20
)

// A feed buffers events that another follower of the log has received, so that the tree needs no
// NATS consumer of its own.
type feed struct {
	mu       sync.Mutex
	messages []integrity.Message // buffered events, at consecutive positions
	bytes    int
	grown    chan struct{} // receives an element after add, to wake the Publisher
}

func newFeed() *feed { return &feed{grown: make(chan struct{}, 1)} }

// add appends an event to the buffer. It ignores an event that was added before.
func (f *feed) add(m integrity.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.messages); n > 0 {
		newest := f.messages[n-1].Position()
		if m.Position() <= newest {
			return
		}
		if m.Position() > newest+1 || n == maxFeed || f.bytes > maxFeedBytes {
			f.messages, f.bytes = nil, 0
		}
	}
	f.messages = append(f.messages, m)
	f.bytes += len(m.Body())
	select {
	case f.grown <- struct{}{}:
	default:
	}
}

// take removes all buffered events, and returns those after a position.
func (f *feed) take(cursor uint64) []integrity.Message {
	f.mu.Lock()
	defer f.mu.Unlock()
	taken := f.messages
	f.messages, f.bytes = nil, 0
	for len(taken) > 0 && taken[0].Position() <= cursor {
		taken = taken[1:]
	}
	return taken
}
