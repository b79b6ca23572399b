package schedulers

import (
	"strconv"
	"strings"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// Allocations takes back the parts of nodes whose owner is done with them: the
// attempt is over, or the replica is no longer in its deployment.
type Allocations struct{}

// Name implements Scheduler.
func (Allocations) Name() string { return "allocations" }

// Plan implements Scheduler.
func (Allocations) Plan(v *projections.View, _ time.Time) Plan {
	var plan Plan
	for row := range v.Nodes.All() {
		for _, allocation := range row.State.Allocated() {
			if reason := orphaned(v, row.Name, allocation); reason != "" {
				plan.add(domain.Intend(domain.Nodes, row.Name, domain.ReleaseAllocation{ID: allocation.ID, Reason: reason}))
			}
		}
	}
	return plan
}

// orphaned says why nothing can use the allocation any more; "" while
// something does, or will.
//
// A view may lie in the middle of a batch, where the allocations of a gang are
// there and its start is not. What belongs to an attempt or a replica that is
// not yet there is therefore left alone: it is never recorded without it.
func orphaned(v *projections.View, node domain.Name, a domain.Allocation) string {
	if a.Replica != "" {
		return orphanedReplica(v, node, a)
	}
	j, ok := jobNamed(v, a.For)
	switch {
	case !ok:
		return "the job is gone"
	case a.Attempt > j.Life.Attempt || a.Attempt == j.Life.Attempt && j.Life.Active():
		return ""
	}
	return "attempt " + strconv.Itoa(a.Attempt) + " is over"
}

func orphanedReplica(v *projections.View, node domain.Name, a domain.Allocation) string {
	row, ok := v.Deployments.Get(a.For)
	if !ok {
		return "the deployment is gone"
	}
	replica, there := row.State.Replicas[a.Replica]
	switch {
	case there && replica.Node == node:
		return ""
	case there:
		return "the replica is on another node"
	case replicaNumber(a.Replica) > row.State.ReplicaSeq:
		return ""
	}
	return "the replica was removed"
}

// replicaNumber is the number in a replica's ID; 0 when it has none.
func replicaNumber(id string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(id, "r"))
	return n
}
