package logtest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"anneal/domain"
	"anneal/eventlog"
)

// Events and state of the test resource: a counter from 0 to 100 that can only be increased.
type (
	Counter struct{ Total int }
	added   struct {
		N int `json:"n"`
	}
	Add struct{ N int }
)

func (e added) Evolve(c *Counter) { c.Total += e.N }
func (c Add) Decide(state Counter, _ time.Time) (domain.Event[Counter], error) {
	switch {
	case c.N == 0:
		return nil, nil
	case state.Total+c.N > 100:
		return nil, domain.Errorf(domain.OutOfRange, "a counter is at most 100")
	}
	return added(c), nil
}

var Counters = domain.NewKind("counters", map[string]domain.Event[Counter]{"counter.added.v1": added{}})

// Rows is a projection of counters for tests. It implements eventlog.PipelinedRows.
type Rows struct {
	eventlog.Pipeline

	mu       sync.Mutex
	state    map[domain.Name]Counter
	version  map[domain.Name]uint64
	position uint64
	moved    chan struct{}
}

func NewRows() *Rows {
	return &Rows{state: map[domain.Name]Counter{}, version: map[domain.Name]uint64{}, moved: make(chan struct{})}
}

// Follow returns Rows that a goroutine keeps up to date with the log until the test ends.
func Follow(t testing.TB, log eventlog.Log) *Rows {
	r := NewRows()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e, err := range log.Follow(ctx, "", 0) {
			if err != nil {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("follow the log: %v", err)
				}
				return
			}
			r.apply(t, e)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

func (r *Rows) apply(t testing.TB, e eventlog.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	state := r.state[e.Name]
	if err := Counters.Fold(&state, e.Record); err != nil {
		t.Errorf("fold position %d: %v", e.Position, err)
	}
	r.state[e.Name], r.version[e.Name], r.position = state, e.Position, e.Position
	r.Applied(e.Name, e.Position)
	close(r.moved)
	r.moved = make(chan struct{})
}

func (r *Rows) Lookup(name domain.Name) eventlog.Row {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.version[name] == 0 {
		return eventlog.Row{}
	}
	return eventlog.Row{State: r.state[name], Version: r.version[name]}
}

func (r *Rows) Row(name domain.Name) (any, uint64) {
	row := r.Lookup(name)
	return row.State, row.Version
}

func (*Rows) After(_ domain.Name, state any, record domain.Record) (any, error) {
	next, _ := state.(Counter)
	err := Counters.Fold(&next, record)
	return next, err
}

func (r *Rows) WaitFor(ctx context.Context, position uint64) error {
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
