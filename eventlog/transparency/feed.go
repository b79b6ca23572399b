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
	mu     sync.Mutex
	chunks []*chunk // buffered events, at consecutive positions
	newest uint64   // position of the last buffered event
	events int
	bytes  int
	grown  chan struct{} // receives an element after add, to wake the Publisher
}

func newFeed() *feed { return &feed{grown: make(chan struct{}, 1)} }

// A chunk has events at consecutive positions in one buffer without pointers. Otherwise the garbage
// collector would scan the headers of each event until the event is in the tree.
type chunk struct {
	first uint64   // position of the first event
	data  []byte   // envelope, as in encodedEvent, and body of each event
	ends  []uint32 // ends of the envelope and of the body of each event in data
}

const chunkBytes = 256 << 10 // an event that would exceed it begins the next chunk

var chunks = sync.Pool{New: func() any { return &chunk{data: make([]byte, 0, chunkBytes)} }}

func (c *chunk) add(m integrity.Message) {
	c.data = m.AppendEnvelope(c.data)
	c.ends = append(c.ends, uint32(len(c.data)))
	c.data = append(c.data, m.Body()...)
	c.ends = append(c.ends, uint32(len(c.data)))
}

// all yields the events. It stops when yield returns false.
func (c *chunk) all(yield func(encodedEvent) bool) {
	begin := uint32(0)
	for i := 0; i < len(c.ends); i += 2 {
		envelope, body := c.ends[i], c.ends[i+1]
		if !yield(encodedEvent{c.first + uint64(i/2), c.data[begin:envelope], c.data[envelope:body]}) {
			return
		}
		begin = body
	}
}

// release makes the memory of the chunk available to other chunks.
func (c *chunk) release() {
	if cap(c.data) <= 2*chunkBytes {
		chunks.Put(c)
	}
}

// add appends an event to the buffer. It ignores an event that was added before. It does not keep
// the message.
func (f *feed) add(m integrity.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.events > 0 {
		if m.Position() <= f.newest {
			return
		}
		if m.Position() > f.newest+1 || f.events == maxFeed || f.bytes > maxFeedBytes {
			f.chunks, f.events, f.bytes = nil, 0, 0
		}
	}
	f.chunkFor(m).add(m)
	f.newest = m.Position()
	f.events++
	f.bytes += len(m.Body())
	select {
	case f.grown <- struct{}{}:
	default:
	}
}

// chunkFor returns the chunk to which the next event is added.
func (f *feed) chunkFor(m integrity.Message) *chunk {
	const envelope = 4 << 10 // larger than usual envelopes; the buffer grows for others
	if n := len(f.chunks); n > 0 {
		if last := f.chunks[n-1]; len(last.data)+len(m.Body())+envelope <= chunkBytes {
			return last
		}
	}
	c := chunks.Get().(*chunk)
	c.first, c.data, c.ends = m.Position(), c.data[:0], c.ends[:0]
	f.chunks = append(f.chunks, c)
	return c
}

// take removes and returns all buffered events. The caller calls release for each chunk.
func (f *feed) take() []*chunk {
	f.mu.Lock()
	defer f.mu.Unlock()
	taken := f.chunks
	f.chunks, f.events, f.bytes = nil, 0, 0
	return taken
}
