package eventlog

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"anneal/domain"
)

// The domain of these tests: counters that go to 100 and are never lowered.
type (
	counter struct{ Total int }
	added   struct {
		N int `json:"n"`
	}
	add struct{ N int }
)

func (e added) Evolve(c *counter) { c.Total += e.N }
func (c add) Decide(state counter, _ time.Time) (domain.Event[counter], error) {
	switch {
	case c.N == 0:
		return nil, nil
	case state.Total+c.N > 100:
		return nil, domain.Errorf(domain.OutOfRange, "a counter goes to at most 100")
	}
	return added(c), nil
}

var counters = domain.NewKind("counters", map[string]domain.Event[counter]{"counter.added.v1": added{}})

// rows is a small projection of counters.
type rows struct {
	mu       sync.Mutex
	state    map[domain.Name]counter
	version  map[domain.Name]uint64
	position uint64
	moved    chan struct{}
}

func newRows() *rows {
	return &rows{state: map[domain.Name]counter{}, version: map[domain.Name]uint64{}, moved: make(chan struct{})}
}

// follow projects the log until the test ends.
func follow(t testing.TB, log Log) *rows {
	r := newRows()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e, err := range log.Follow(ctx, "", 0) {
			if err != nil {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("following: %v", err)
				}
				return
			}
			r.apply(t, e)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

func (r *rows) apply(t testing.TB, e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	state := r.state[e.Name]
	if err := counters.Fold(&state, e.Record); err != nil {
		t.Errorf("folding position %d: %v", e.Position, err)
	}
	r.state[e.Name], r.version[e.Name], r.position = state, e.Position, e.Position
	close(r.moved)
	r.moved = make(chan struct{})
}

func (r *rows) Lookup(name domain.Name) Row {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.version[name] == 0 {
		return Row{}
	}
	return Row{State: r.state[name], Version: r.version[name]}
}

func (r *rows) Row(name domain.Name) (any, uint64) {
	row := r.Lookup(name)
	return row.State, row.Version
}

func (*rows) After(_ domain.Name, state any, record domain.Record) (any, error) {
	next, _ := state.(counter)
	err := counters.Fold(&next, record)
	return next, err
}

func (r *rows) WaitFor(ctx context.Context, position uint64) error {
	for {
		r.mu.Lock()
		at, moved := r.position, r.moved
		r.mu.Unlock()
		if at >= position {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
