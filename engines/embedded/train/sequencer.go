package train

import "sync"

// A sequencer runs the critical sections of numbered goroutines in the order of their numbers, from
// 0.
type sequencer struct {
	next int
	mu   sync.Mutex
	cond *sync.Cond
}

func newSequencer() *sequencer {
	t := &sequencer{}
	t.cond = sync.NewCond(&t.mu)
	return t
}

// wait blocks until the goroutines with numbers below i have called done. The caller must call done
// after its critical section.
func (t *sequencer) wait(i int) {
	t.mu.Lock()
	for t.next != i {
		t.cond.Wait()
	}
}

func (t *sequencer) done() {
	t.next++
	t.cond.Broadcast()
	t.mu.Unlock()
}
