package train

import "sync"

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
