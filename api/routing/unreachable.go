package routing

import (
	"sync"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/projections/live"
)

// markTime is how long a replica stays marked as unreachable if no heartbeat lists it. Then
// requests are sent to it again.
const markTime = 30 * time.Second

// unreachable stores which replicas and nodes did not respond, so that further requests go to other
// replicas at once, long before the node counts as lost. A mark ends when a heartbeat of the node
// lists the replica. The zero value has no marks.
type unreachable struct {
	mu    sync.Mutex
	marks map[string]time.Time // time of the mark, by replicaKey or node name
}

// mark marks a replica as unreachable at the time now. If the reason is ReplicaUnreachable or
// ReplicaLost, it marks the replica's node instead, and so all replicas on the node.
func (u *unreachable) mark(deployment domain.Name, replica domain.Replica, reason string, now time.Time) {
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
		if now.Sub(since) > markTime {
			delete(u.marks, old)
		}
	}
	u.marks[key] = now
}

// of returns the IDs of a deployment's replicas that are marked as unreachable.
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
