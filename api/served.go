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
