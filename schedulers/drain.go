package schedulers

import (
	"fmt"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// Drain moves jobs and replicas from nodes that are being drained:
//
//  1. a job's attempt is preempted: it saves a checkpoint and stops, and the job is queued again
//  2. Replicas replaces a replica, and removes it when its replacement is ready
//  3. at the deadline, the attempts and replicas that are still on the node are stopped
//  4. a node that has no allocations left becomes DRAINED
type Drain struct{}

// Name implements Scheduler.
func (Drain) Name() string { return "drain" }

// MinRest implements PacedScheduler.
func (Drain) MinRest() time.Duration { return pacedRest }

// Plan implements Scheduler.
func (Drain) Plan(v *projections.View, now time.Time) Plan {
	var plan Plan
	for row := range v.Nodes.All() {
		node := &row.State
		switch {
		case !node.Draining():
			continue
		case len(node.Allocations) == 0:
			plan.add(domain.Intend(domain.Nodes, row.Name, domain.FinishDrain{}))
			continue
		}
		overdue := !now.Before(node.Cordon.Deadline)
		if !overdue {
			plan.planAgainAt(node.Cordon.Deadline)
		}
		for _, a := range node.Allocated() {
			if intent, ok := evict(v, row, a, overdue); ok {
				plan.add(intent)
			}
		}
	}
	return plan
}

// evict returns the intent that moves the job or replica with the allocation a to other nodes, or,
// if the deadline of the drain has passed (overdue), the intent that stops it. It returns false
// when there is nothing to do, because the job or replica is stopping, has ended, or has not
// started.
func evict(v *projections.View, node *projections.Row[domain.Node], a domain.Allocation, overdue bool,
) (domain.Intent, bool) {
	reason := drainReason(node)
	if overdue {
		reason += ": stopped at the deadline of the drain"
	}
	if a.Replica != "" {
		row, ok := v.Deployments.Get(a.For)
		if !ok || !overdue || row.State.Replicas[a.Replica].Node != node.Name {
			return domain.Intent{}, false
		}
		return domain.Intend(domain.Deployments, a.For,
			domain.Command[domain.Deployment](domain.RemoveReplica{ID: a.Replica, Reason: reason})), true
	}
	j, ok := jobNamed(v, a.For)
	if !ok || a.Attempt != j.Life.Attempt || !j.Life.Active() || j.Life.Outcome != nil {
		return domain.Intent{}, false
	}
	switch {
	case overdue && j.Life.Working() && (j.Life.Preempting || !j.Life.Stopping()):
		return domain.IntendJob(j.Name, domain.RequeueJob{Attempt: a.Attempt, Reason: reason, Preempted: true}), true
	case overdue && j.Life.Stopping():
		return domain.IntendJob(j.Name, j.Life.ConfirmStop(a.Attempt)), true
	case j.Life.Working() && !j.Life.Stopping():
		return domain.IntendJob(j.Name, domain.PreemptJob{Attempt: a.Attempt, Reason: reason}), true
	}
	return domain.Intent{}, false
}

func drainReason(node *projections.Row[domain.Node]) string {
	return fmt.Sprintf("node %s is being drained (%s)", node.Name, node.State.Cordon.Reason)
}

// drainsOf returns, for each node that is being drained, the reason for moving its replicas.
func drainsOf(v *projections.View) map[domain.Name]string {
	drains := map[domain.Name]string{}
	for row := range v.Nodes.All() {
		if row.State.Draining() {
			drains[row.Name] = drainReason(row)
		}
	}
	return drains
}
