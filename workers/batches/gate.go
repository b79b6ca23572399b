package batches

import (
	"context"
	"sync"
	"time"

	"anneal/domain"
	"anneal/eventlog"
)

const (
	// maxOfBatch is the maximum number of a batch's requests that are in progress.
	maxOfBatch = 8
	// maxOfDeployment is the maximum number of requests of all batches that are in progress on a
	// deployment. Batches also use at most half of the deployment's slots, so that requests of other
	// clients find free ones.
	maxOfDeployment = 16
	// maxBesideOthers replaces maxOfDeployment while other clients wait for the deployment.
	maxBesideOthers = 1
	// pollInterval is the interval at which a request that waits checks whether it may be sent.
	pollInterval = 50 * time.Millisecond
)

// gates limits the concurrent requests of batches, by deployment and account.
type gates struct {
	gateway Gateway
	now     func() time.Time

	mu     sync.Mutex
	inside map[domain.Name]int // by deployment: number of batch requests in progress
	pauses map[route]pause
}

// A route is a deployment and an account whose batches send requests to the deployment.
type route struct {
	account    string
	deployment domain.Name
}

// A pause follows a request that was refused because the deployment has no capacity or the account
// has reached a limit. Each pause is twice as long as the one before, until a request succeeds.
type pause struct {
	length time.Duration
	end    time.Time
}

func newGates(gateway Gateway, now func() time.Time) *gates {
	return &gates{gateway: gateway, now: now, inside: map[domain.Name]int{}, pauses: map[route]pause{}}
}

// enter waits until a request of the route may be sent. ok is false when ctx is done first. The
// caller calls leave when the request has ended; refused says whether the request was refused but
// may succeed later.
func (g *gates) enter(ctx context.Context, r route) (leave func(refused bool), ok bool) {
	for !g.tryEnter(r) {
		if !eventlog.Sleep(ctx, pollInterval) {
			return nil, false
		}
	}
	return func(refused bool) { g.leave(r, refused) }, true
}

func (g *gates) tryEnter(r route) bool {
	slots, busy := g.gateway.Load(r.deployment)
	limit := min(max(1, slots/2), maxOfDeployment)
	if busy {
		limit = maxBesideOthers
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside[r.deployment] >= limit || g.now().Before(g.pauses[r].end) {
		return false
	}
	g.inside[r.deployment]++
	return true
}

func (g *gates) leave(r route, refused bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside[r.deployment]--; g.inside[r.deployment] == 0 {
		delete(g.inside, r.deployment)
	}
	last, now := g.pauses[r], g.now()
	switch {
	case !refused:
		delete(g.pauses, r)
	case !now.Before(last.end): // requests that were sent together and all refused cause only one pause
		length := min(max(2*last.length, firstPause), maxPause)
		g.pauses[r] = pause{length, now.Add(length)}
	}
}
