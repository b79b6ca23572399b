package eventlog

import (
	"context"
	"iter"
	"strings"
	"sync"

	"anneal/domain"
)

// Memory is a Log in memory, for tests and simulation.
type Memory struct {
	mu     sync.Mutex
	events []Event
	last   map[domain.Name]uint64
	grown  chan struct{}
}

// NewMemory returns an empty log.
func NewMemory() *Memory {
	return &Memory{last: map[domain.Name]uint64{}, grown: make(chan struct{})}
}

// Append implements Log.
func (m *Memory) Append(ctx context.Context, w Write) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := w.check(); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last[w.Name] != w.Expect {
		return 0, ErrConflict
	}
	w.Position = uint64(len(m.events) + 1)
	m.last[w.Name] = w.Position
	m.events = append(m.events, w.Event)
	close(m.grown)
	m.grown = make(chan struct{})
	return w.Position, nil
}

func (m *Memory) since(after uint64) ([]Event, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	from := min(after, uint64(len(m.events)))
	return m.events[from:len(m.events):len(m.events)], m.grown
}

// Read implements Log.
func (m *Memory) Read(ctx context.Context, filter string, after uint64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		events, _ := m.since(after)
		for _, e := range events {
			if err := ctx.Err(); err != nil {
				yield(Event{}, err)
				return
			}
			if matches(filter, e.Name.Subject()) && !yield(e, nil) {
				return
			}
		}
	}
}

// Count implements Log.
func (m *Memory) Count(_ context.Context, filter string) (n uint64, _ error) {
	events, _ := m.since(0)
	for _, e := range events {
		if matches(filter, e.Name.Subject()) {
			n++
		}
	}
	return n, nil
}

// Follow implements Log.
func (m *Memory) Follow(ctx context.Context, filter string, after uint64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			events, grown := m.since(after)
			for _, e := range events {
				if ctx.Err() != nil {
					break
				}
				after = e.Position
				if matches(filter, e.Name.Subject()) && !yield(e, nil) {
					return
				}
			}
			select {
			case <-grown:
			case <-ctx.Done():
				yield(Event{}, ctx.Err())
				return
			}
		}
	}
}

// At implements Log.
func (m *Memory) At(_ context.Context, position uint64) (Event, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if position == 0 || position > uint64(len(m.events)) {
		return Event{}, domain.Errorf(domain.NotFound, "the event log has no event at position %d", position)
	}
	return m.events[position-1], nil
}

// Last implements Log.
func (m *Memory) Last(context.Context) (Checkpoint, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.events) == 0 {
		return Checkpoint{}, nil
	}
	last := m.events[len(m.events)-1]
	return Checkpoint{Position: last.Position, EventID: last.ID}, nil
}

// matches reports whether a subject matches a filter, which may have NATS wildcards.
func matches(filter, subject string) bool {
	if filter == "" || filter == ">" {
		return true
	}
	for {
		want, restFilter, moreFilter := strings.Cut(filter, ".")
		have, restSubject, moreSubject := strings.Cut(subject, ".")
		switch {
		case want == ">":
			return true
		case want != "*" && want != have:
			return false
		case moreFilter != moreSubject:
			return false
		case !moreFilter:
			return true
		}
		filter, subject = restFilter, restSubject
	}
}
