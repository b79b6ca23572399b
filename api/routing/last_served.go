package routing

import (
	"sync"
	"time"

	"anneal/domain"
)

// LastServed stores when each deployment last responded to a request through this server. It
// deletes times that are older than domain.RecentUse.
type LastServed struct {
	mu    sync.Mutex
	times map[domain.Name]time.Time
	swept time.Time
}

// NewLastServed returns a LastServed without any times.
func NewLastServed() *LastServed { return &LastServed{times: map[domain.Name]time.Time{}} }

// Record stores that a deployment responds to a request at the time now.
func (l *LastServed) Record(deployment domain.Name, now time.Time) {
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

// Of returns the time at which a deployment last responded to a request; the zero time if it is not
// known.
func (l *LastServed) Of(deployment domain.Name) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.times[deployment]
}
