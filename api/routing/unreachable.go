package routing

import (
	"sync"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/projections/live"
)

// markTime is how long a replica stays marked as unreachable when no heartbeat lists it. After
// that, requests are sent to the replica again.
const markTime = 30 * time.Second

// unreachable records the replicas and nodes that did not respond, so that the next requests go to
// other replicas at once, long before the node is lost. A replica is reachable again when a
// heartbeat of its node that lists the replica arrives. The zero value is empty.
type unreachable struct {
	mu    sync.Mutex
	marks map[string]time.Time // time of the mark, by replicaKey or name of a node
}

// mark records that a replica was gone at a time. If the reason is ReplicaUnreachable or
// ReplicaLost, it records the node of the replica instead, which makes all replicas of the node
// unreachable.
func (u *unreachable) mark(deployment domain.Name, replica domain.Replica, reason string, at time.Time) {
	key := replicaKey(deployment, replica.ID)
	if reason == engines.ReplicaUnreachable || reason == engines.ReplicaLost {
		key = string(replica.Node)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.marks == nil {
		u.marks = map[string]time.Time{}
	}
	for old, since := range u.marks {
		if at.Sub(since) > markTime {
			delete(u.marks, old)
		}
	}
	u.marks[key] = at
}

// of returns the IDs of the unreachable replicas of a deployment.
func (u *unreachable) of(
	status live.View, d *domain.Deployment, name domain.Name, clock func() time.Time,
) map[string]bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.marks) == 0 {
		return nil
	}
	found, now := map[string]bool{}, clock()
	for id, r := range d.Replicas {
		since := u.marks[replicaKey(name, id)]
		if at := u.marks[string(r.Node)]; at.After(since) {
			since = at
		}
		load, _ := status.Replica(name, id)
		if !since.IsZero() && now.Sub(since) <= markTime && !load.Time.After(since) {
			found[id] = true
		}
	}
	return found
}
