package schedulers

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// ReserveWithin is how long a reservation waits for the start of its attempt or replica before the
// start is abandoned. Run commits the start immediately after it has recorded the reservations,
// unless the control plane stops in between.
const ReserveWithin = 5 * time.Second

// Allocations releases the allocations of attempts that have ended and of replicas that were
// removed. If the reservations of an attempt or replica are not committed within ReserveWithin,
// Allocations first abandons the start, so that a late commit is refused, and then releases the
// reservations. So no attempt or replica can use a released allocation.
type Allocations struct {
	// how long a reservation may wait for its commit; 0 stands for the constant ReserveWithin
	ReserveWithin time.Duration
}

// Name implements Scheduler.
func (Allocations) Name() string { return "allocations" }

// Plan implements Scheduler.
func (s Allocations) Plan(v *projections.View, now time.Time) Plan {
	var plan Plan
	abandoned := map[string]bool{}
	for row := range v.Nodes.All() {
		for _, allocation := range row.State.Allocated() {
			reason, reserved := orphaned(v, row.Name, allocation)
			switch due := allocation.Since.Add(cmp.Or(s.ReserveWithin, ReserveWithin)); {
			case reserved && due.After(now):
				plan.planAgainAt(due)
			case reserved && !abandoned[allocation.ID]:
				abandoned[allocation.ID] = true
				plan.add(abandonment(allocation, "the reservation was not committed in time"))
			case reason != "":
				plan.add(domain.Intend(domain.Nodes, row.Name,
					domain.ReleaseAllocation{ID: allocation.ID, Reason: reason}))
			}
		}
	}
	return plan
}

// abandonment returns the intent that abandons the start of the attempt or replica of an
// allocation.
func abandonment(a domain.Allocation, reason string) domain.Intent {
	if a.Replica != "" {
		return domain.Intend(domain.Deployments, a.For, domain.Command[domain.Deployment](domain.AbandonReplica{
			ID: a.Replica, Reason: reason}))
	}
	return domain.IntendJob(a.For, domain.AbandonAttempt{Attempt: a.Attempt, Reason: reason})
}

// orphaned returns why the allocation a on a node cannot be used any more; "" when it can. reserved
// reports whether the allocation is a reservation, whose attempt or replica may still start.
func orphaned(v *projections.View, node domain.Name, a domain.Allocation) (reason string, reserved bool) {
	if a.Replica != "" {
		return orphanedReplica(v, node, a)
	}
	j, ok := jobNamed(v, a.For)
	switch {
	case !ok:
		return "the job was deleted", false
	case a.Attempt >= j.Life.NextAttempt():
		return "", true
	case a.Attempt != j.Life.Attempt && a.Attempt == j.Life.Abandoned:
		return "attempt " + strconv.Itoa(a.Attempt) + " was abandoned", false
	case a.Attempt != j.Life.Attempt || !j.Life.Active():
		return "attempt " + strconv.Itoa(a.Attempt) + " is over", false
	case !slices.Contains(j.Life.Nodes, node):
		return "attempt " + strconv.Itoa(a.Attempt) + " started on other nodes", false
	}
	return "", false
}

func orphanedReplica(v *projections.View, node domain.Name, a domain.Allocation) (reason string, reserved bool) {
	row, ok := v.Deployments.Get(a.For)
	if !ok {
		return "the deployment was deleted", false
	}
	replica, exists := row.State.Replicas[a.Replica]
	switch {
	case exists && replica.Node == node:
		return "", false
	case exists:
		return "the replica is on another node", false
	case domain.ReplicaNumber(a.Replica) > row.State.ReplicaSeq:
		return "", true
	}
	return "the replica was removed", false
}
