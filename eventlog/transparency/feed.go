package transparency

import (
	"sync"

	"anneal/eventlog/integrity"
)

// Limits of a feed: when it has more, it forgets all, and the publisher reads the log.
const (
	maxFeed      = 64 << 10 // events
	maxFeedBytes = 64 << 20
)

// A feed buffers the events that another follower of the log has received, so that the tree needs
// no consumer of its own.
type feed struct {
	mu       sync.Mutex
	messages []integrity.Message // at consecutive positions
	bytes    int
	grown    chan struct{} // has an element after add
}

func newFeed() *feed { return &feed{grown: make(chan struct{}, 1)} }

// add adds an event. It ignores events that it has already.
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

// take removes and returns the events after a position.
func (f *feed) take(after uint64) []integrity.Message {
	f.mu.Lock()
	defer f.mu.Unlock()
	taken := f.messages
	f.messages, f.bytes = nil, 0
	for len(taken) > 0 && taken[0].Position() <= after {
		taken = taken[1:]
	}
	return taken
}
