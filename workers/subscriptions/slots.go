package subscriptions

import (
	"bytes"
	"context"
	"sync/atomic"
)

// maxSmallFile is the size of a file's content, in bytes, up to which a subscription needs no slot.
const maxSmallFile = 256 << 10

// slots bound the memory of all subscriptions to files. A subscription that reads old events, or whose
// file is larger than maxSmallFile, has one of a few slots until the file is written. The slot has the
// buffer for the file.
type slots struct {
	free    chan *bytes.Buffer
	waiting atomic.Int32 // number of callers of take that wait
}

func newSlots(n int) *slots {
	s := &slots{free: make(chan *bytes.Buffer, n)}
	for range n {
		s.free <- new(bytes.Buffer)
	}
	return s
}

// take returns the buffer of a free slot. It waits until there is one.
func (s *slots) take(ctx context.Context) (*bytes.Buffer, error) {
	if buffer, ok := s.tryTake(); ok {
		return buffer, nil
	}
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	select {
	case buffer := <-s.free:
		return buffer, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// tryTake returns the buffer of a free slot; false if there is none, or others wait for one.
func (s *slots) tryTake() (*bytes.Buffer, bool) {
	if s.contended() {
		return nil, false
	}
	select {
	case buffer := <-s.free:
		return buffer, true
	default:
		return nil, false
	}
}

func (s *slots) release(buffer *bytes.Buffer) {
	if buffer.Reset(); !s.contended() {
		buffer = new(bytes.Buffer) // frees the memory
	}
	s.free <- buffer
}

// contended reports whether others wait for a slot.
func (s *slots) contended() bool { return s.waiting.Load() > 0 }
