package schedulers

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// ReserveWithin is how long an allocation may wait for the start of its attempt
// or replica before that is abandoned. A start follows its allocations at once;
// what takes longer lost its scheduler.
const ReserveWithin = 5 * time.Second

// Allocations takes back the parts of nodes whose owner is done with them: the
// attempt is over, or the replica is no longer in its deployment. Where the
// start of an attempt or replica does not follow its allocations, it abandons
// the start, so that a late one is refused, and releases them after that. So an
// allocation that is released is one that nothing can use any more.
type Allocations struct {
	ReserveWithin time.Duration // 0 is the constant of that name
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
				plan.lookAgain(due)
			case reserved && !abandoned[allocation.ID]:
				abandoned[allocation.ID] = true
				plan.add(abandonment(allocation, "it did not start within the reservation timeout"))
			case reason != "":
				plan.add(domain.Intend(domain.Nodes, row.Name, domain.ReleaseAllocation{ID: allocation.ID, Reason: reason}))
			}
		}
	}
	return plan
}

// abandonment gives up the attempt or replica that an allocation is for, as far
// as it is not there yet.
func abandonment(a domain.Allocation, reason string) domain.Intent {
	if a.Replica != "" {
		return domain.Intend(domain.Deployments, a.For, domain.Command[domain.Deployment](domain.AbandonReplica{ID: a.Replica, Reason: reason}))
	}
	return domain.IntendJob(a.For, domain.AbandonAttempt{Attempt: a.Attempt, Reason: reason})
}

// orphaned says why nothing can use the allocation any more; "" while something
// does. Reserved is one whose attempt or replica may still come.
func orphaned(v *projections.View, node domain.Name, a domain.Allocation) (reason string, reserved bool) {
	if a.Replica != "" {
		return orphanedReplica(v, node, a)
	}
	j, ok := jobNamed(v, a.For)
	switch {
	case !ok:
		return "the job is gone", false
	case a.Attempt >= j.Life.NextAttempt():
		return "", true
	case a.Attempt != j.Life.Attempt && a.Attempt == j.Life.Abandoned:
		return "attempt " + strconv.Itoa(a.Attempt) + " was abandoned", false
	case a.Attempt != j.Life.Attempt || !j.Life.Active():
		return "attempt " + strconv.Itoa(a.Attempt) + " is over", false
	case !slices.Contains(j.Life.Nodes, node):
		return "attempt " + strconv.Itoa(a.Attempt) + " began on other nodes", false
	}
	return "", false
}

func orphanedReplica(v *projections.View, node domain.Name, a domain.Allocation) (reason string, reserved bool) {
	row, ok := v.Deployments.Get(a.For)
	if !ok {
		return "the deployment is gone", false
	}
	replica, there := row.State.Replicas[a.Replica]
	switch {
	case there && replica.Node == node:
		return "", false
	case there:
		return "the replica is on another node", false
	case domain.ReplicaNumber(a.Replica) > row.State.ReplicaSeq:
		return "", true
	}
	return "the replica was removed", false
}
