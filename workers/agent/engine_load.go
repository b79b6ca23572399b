package agent

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"anneal/engines"
)

const (
	loadWait    = 100 * time.Millisecond // how long a heartbeat waits for the loads of the engines
	loadTimeout = 5 * time.Second        // how long an engine may take to report its load
	maxLoadAge  = 5 * time.Second        // older loads are not reported
)

// engineLoad is the load that the engine of a replica reported last.
type engineLoad struct {
	mu       sync.Mutex
	measured time.Time // zero if the engine has reported none
	load     engines.ModelLoad
	pending  chan struct{} // closed when the engine has replied; nil if it is not being asked
}

// latest returns the load that the engine reported last, with its age; nil if there is no recent one.
func (e *engineLoad) latest(now time.Time) *engines.ModelLoad {
	e.mu.Lock()
	defer e.mu.Unlock()
	load := e.load
	if load.Age = now.Sub(e.measured); e.measured.IsZero() || load.Age > maxLoadAge {
		return nil
	}
	return &load
}

// measure begins to ask an engine for its load, unless it is being asked. It returns a channel that is
// closed when the engine has replied. An engine that hangs is not asked again.
func (e *engineLoad) measure(ctx context.Context, model engines.LoadReporter) <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pending != nil {
		return e.pending
	}
	done := make(chan struct{})
	e.pending = done
	go func() { // not counted in the agent's WaitGroup, because the engine may hang
		ctx, cancel := context.WithTimeout(ctx, loadTimeout)
		defer cancel()
		load, err := recoverPanic(func() (engines.ModelLoad, error) { return model.Load(ctx) })
		e.mu.Lock()
		defer e.mu.Unlock()
		if err == nil {
			e.load, e.measured = load, time.Now()
		}
		e.pending = nil
		close(done)
	}()
	return done
}

// measureLoads asks the engines of all replicas for their loads, and waits for them for at most
// loadWait. A load that arrives later is part of the next heartbeat.
func (a *Agent) measureLoads(ctx context.Context) {
	a.mu.Lock()
	replicas := slices.Collect(maps.Values(a.replicas))
	a.mu.Unlock()
	var pending []<-chan struct{}
	for _, r := range replicas {
		if model := r.loadReporter(); model != nil {
			pending = append(pending, r.engine.measure(ctx, model))
		}
	}
	if len(pending) == 0 {
		return
	}
	timeout := time.NewTimer(loadWait)
	defer timeout.Stop()
	for _, done := range pending {
		select {
		case <-done:
		case <-timeout.C:
			return
		}
	}
}

// loadReporter returns the model of a ready replica; nil if its engine does not report its load.
func (r *replica) loadReporter() engines.LoadReporter {
	r.mu.Lock()
	defer r.mu.Unlock()
	reporter, ok := r.model.(engines.LoadReporter)
	if !ok || r.accepting.Err() != nil {
		return nil
	}
	return reporter
}
