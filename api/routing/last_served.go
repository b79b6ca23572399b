package routing

import (
	"sync"
	"time"

	"anneal/domain"
)

// LastServed stores when each deployment last responded to a request through this server, or the
// candidate of its release did. It deletes times that are older than domain.RecentUse.
type LastServed struct {
	mu    sync.Mutex
	times map[domain.Name]time.Time
	swept time.Time
}

// NewLastServed returns a LastServed without any times.
func NewLastServed() *LastServed { return &LastServed{times: map[domain.Name]time.Time{}} }

// Record stores that the deployment servedBy responds to a request to a target at the time now.
// Clients also use the target, and the deployments whose promoted releases redirect requests to it:
// none of them may count as unused while a candidate serves their requests.
func (l *LastServed) Record(target Target, servedBy domain.Name, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range append([]domain.Name{target.Name, servedBy}, target.Via...) {
		l.times[name] = now
	}
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

// Of returns the time at which a deployment, or the candidate of its release, last responded to a
// request; the zero time if it is not known.
func (l *LastServed) Of(deployment domain.Name) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.times[deployment]
}
