package request

import (
	"sync"
)

// Counters counts requests in progress by key, such as an account.
type Counters struct {
	mu  sync.Mutex
	now map[string]int
}

func NewCounters() *Counters { return &Counters{now: map[string]int{}} }

// Enter counts one more request with the key. The caller must call leave when the request ends. If
// limit requests with the key are in progress, Enter counts nothing and ok is false.
func (n *Counters) Enter(key string, limit int) (leave func(), ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.now[key] >= limit {
		return nil, false
	}
	n.now[key]++
	return sync.OnceFunc(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.now[key]--; n.now[key] == 0 {
			delete(n.now, key)
		}
	}), true
}

// Of returns the number of requests in progress with the key.
func (n *Counters) Of(key string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.now[key]
}
