package faults

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"anneal/blobs"
)

// AtEveryEffect runs some work without a fault, which must have at least minSteps effects, and then runs
// a parallel subtest for each mode and each effect, with a fault at that effect. at is the number of the
// effect, counted from 1; it is 0 in the run without a fault.
func AtEveryEffect(t *testing.T, minSteps int, run func(t *testing.T, plan *Plan, at int)) {
	t.Helper()
	complete := NewPlan("", 0)
	run(t, complete, 0)
	steps := complete.Steps()
	if len(steps) < minSteps {
		t.Fatalf("the work has the effects %q: fewer than %d", steps, minSteps)
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

// Start runs a process until the test ends or stop is called, which waits until the process has ended.
func Start(t testing.TB, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = run(ctx) // the error of ctx
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(stop)
	return stop
}

// OpenStore opens a file store in a directory until the test ends. The plan, which may change, injects
// faults into its changes; nil injects none.
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
