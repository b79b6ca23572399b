package api

import (
	"sync"
	"time"

	"anneal/domain"
)

// lastServed remembers when each deployment last answered a request through
// this process. A deployment that was not asked within domain.RecentUse is
// forgotten.
type lastServed struct {
	mu    sync.Mutex
	times map[domain.Name]time.Time
	swept time.Time
}

func newLastServed() *lastServed { return &lastServed{times: map[domain.Name]time.Time{}} }

func (l *lastServed) note(deployment domain.Name, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.times[deployment] = now
	if now.Sub(l.swept) < domain.RecentUse {
		return
	}
	l.swept = now
	for name, at := range l.times {
		if now.Sub(at) >= domain.RecentUse {
			delete(l.times, name)
		}
	}
}

func (l *lastServed) at(deployment domain.Name) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.times[deployment]
}

// counters count what is under way, by a key such as an account.
type counters struct {
	mu  sync.Mutex
	now map[string]int
}

func newCounters() *counters { return &counters{now: map[string]int{}} }

// enter counts one more, unless limit are under way. Call leave when it ends.
func (n *counters) enter(key string, limit int) (leave func(), ok bool) {
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

// of is how many are under way.
func (n *counters) of(key string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.now[key]
}
