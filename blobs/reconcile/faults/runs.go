package faults

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"anneal/blobs"
)

// AtEveryEffect first calls run without a fault, and fails the test if that call has fewer than
// minSteps effects. Then, for each mode and each of these effects, it calls run in a parallel subtest
// with a fault of the mode at the effect. at is the number of the effect, from 1; 0 in the call
// without a fault.
func AtEveryEffect(t *testing.T, minSteps int, run func(t *testing.T, plan *Plan, at int)) {
	t.Helper()
	complete := NewPlan("", 0)
	run(t, complete, 0)
	steps := complete.Steps()
	if len(steps) < minSteps {
		t.Fatalf("the run has only the effects %q: fewer than %d", steps, minSteps)
	}
	for _, mode := range Modes {
		for at := 1; at <= len(steps); at++ {
			t.Run(fmt.Sprintf("%s %d", mode, at), func(t *testing.T) {
				t.Parallel()
				run(t, NewPlan(mode, at), at)
			})
		}
	}
}

// Start calls run in a goroutine, and cancels its context when the test ends or stop is called.
// stop waits until run has returned.
func Start(t testing.TB, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = run(ctx) // run returns the error of its context
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(stop)
	return stop
}

// OpenStore opens a blobs.Store in a directory until the test ends. The current Plan in plan
// injects faults into its changes; if plan is nil, there are no faults.
func OpenStore(t testing.TB, dir string, plan *atomic.Pointer[Plan]) *blobs.Store {
	t.Helper()
	store, err := blobs.Open(t.Context(), blobs.Options{Dir: dir, BaseURL: "http://127.0.0.1/blobs",
		Key: make([]byte, 32), Intercept: func(change, key string, do func() error) error {
			return plan.Load().Do(change, key, do)
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}
