package train

import "sync"

// A sequencer runs critical sections of goroutines in the order of their numbers.
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

// wait blocks until it is i's turn; the caller must call done.
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
