package train

import (
	"sync"
	"sync/atomic"
)

// parallel runs do for 0 to n-1, in this order, on at most workers goroutines
// and waits for them.
func parallel(n, workers int, do func(i int)) {
	var next atomic.Int64
	run := func() {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			do(i)
		}
	}
	var wg sync.WaitGroup
	for range min(workers, n) - 1 {
		wg.Go(run)
	}
	run()
	wg.Wait()
}

// turns lets goroutines do something in the order of their numbers.
type turns struct {
	next int
	mu   sync.Mutex
	cond *sync.Cond
}

func newTurns() *turns {
	t := &turns{}
	t.cond = sync.NewCond(&t.mu)
	return t
}

// wait returns when it is i's turn; done must follow.
func (t *turns) wait(i int) {
	t.mu.Lock()
	for t.next != i {
		t.cond.Wait()
	}
}

func (t *turns) done() {
	t.next++
	t.cond.Broadcast()
	t.mu.Unlock()
}
