package kernel

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEach(t *testing.T) {
	for _, workers := range []int{0, 1, 3, 100} {
		var calls [20]atomic.Int64
		Each(len(calls), workers, func(worker, i int) {
			require.True(t, worker == 0 || worker < workers)
			calls[i].Add(1)
		})
		for i := range calls {
			require.EqualValues(t, 1, calls[i].Load())
		}
	}
	Each(0, 3, func(_, _ int) { t.Error("there is nothing to do") })
}

// TestEachPanics checks that a panic on each of the goroutines arrives at the caller, after all
// goroutines have ended.
func TestEachPanics(t *testing.T) {
	const workers = 4
	for at := range workers {
		var running atomic.Int64
		start := make(chan struct{})
		var arrived atomic.Int64
		func() {
			defer func() {
				value := recover()
				if p, ok := value.(*Panic); ok {
					require.Contains(t, p.Error(), "planted")
					require.Contains(t, string(p.Stack), "TestEachPanics")
					value = p.Value
				}
				require.Equal(t, "planted", value)
				require.Zero(t, running.Load())
			}()
			Each(workers, workers, func(_, i int) {
				running.Add(1)
				defer running.Add(-1)
				if arrived.Add(1) == workers { // each call has its own goroutine
					close(start)
				}
				<-start
				if i == at {
					panic("planted")
				}
			})
			t.Error("Each returned")
		}()
	}
}
