package schedulers

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// LostAfter is the time without a heartbeat after which a node becomes LOST. ForgetAfter is the
// time after which a LOST node is removed.
const (
	LostAfter   = 15 * time.Second
	ForgetAfter = 7 * 24 * time.Hour
)

// receptionAge limits how old live.View.ReceivedUntil, the time up to which this process has
// received all heartbeats, may be: LostAfter / receptionAge. If it is older, the process may have
// been paused or disconnected, and does not conclude that a node sent no heartbeats.
const receptionAge = 5

// checkReception is the time after which Nodes plans again if this process has received no
// heartbeat from a node for LostAfter, but may have missed some.
const checkReception = 500 * time.Millisecond

// Nodes marks nodes without heartbeats as LOST, and requeues the jobs that ran on them. It moves
// jobs and replicas from a node whose working devices are fewer than are allocated. It removes a
// node that stays LOST; an agent that returns after that registers a new node.
//
// A node becomes LOST only if this process could receive heartbeats during all of LostAfter, up to
// now: a process that was itself paused or disconnected does not know whether a node sent some.
type Nodes struct {
	// time without a heartbeat after which a node becomes LOST; 0 stands for the constant LostAfter
	LostAfter   time.Duration
	ForgetAfter time.Duration // time after which a LOST node is removed; 0 stands for the constant ForgetAfter
}

// Name implements Scheduler.
func (Nodes) Name() string { return "nodes" }

// MinRest implements PacedScheduler.
func (Nodes) MinRest() time.Duration { return pacedRest }

// Plan implements Scheduler.
func (s Nodes) Plan(v *projections.View, now time.Time) Plan {
	var plan Plan
	limit, received := cmp.Or(s.LostAfter, LostAfter), v.Live.ReceivedUntil()
	for row := range v.Nodes.All() {
		if row.State.State != domain.NodeReady {
			s.forget(&plan, row, now)
			continue
		}
		shrunk(&plan, v, row, now)
		lastSign, seen := v.Live.Seen(row.Name), v.Live.LastHeartbeat(row.Name)
		if since := row.State.Since; since.After(seen) {
			seen = since // the agent of a node that has just registered may not have sent a heartbeat yet
		}
		if seen.After(lastSign) {
			lastSign = seen
		}
		if due := lastSign.Add(limit); due.After(now) {
			plan.planAgainAt(due)
			continue
		} else if due.After(received) || now.Sub(received) > limit/receptionAge {
			plan.planAgainAt(now.Add(checkReception))
			continue
		}
		plan.add(domain.Intend(domain.Nodes, row.Name, domain.LoseNode{Reason: fmt.Sprintf(
			"no heartbeat received for %s", limit), Seen: seen, Registered: row.State.Since}))
	}
	fleet := fleetOf(v)
	for j := range jobs(v) {
		if !j.Life.Working() {
			continue
		}
		if reason := fleet.stopReason(j); reason != "" {
			plan.add(domain.IntendJob(j.Name, domain.RequeueJob{Attempt: j.Life.Attempt, Reason: reason,
				Preempted: fleet.preempted(j) || j.spec().Service &&
					projections.ServiceProgressed(v, j.Name, j.Life.Attempt)}))
		}
	}
	return plan
}

// forget plans to remove a node that has been LOST for ForgetAfter and has no allocations. A node
// whose agent has enrolled stays until the operator deletes it. A node with a cordon or a taint
// stays too, because its agent would register it again without the cordon or taint.
func (s Nodes) forget(plan *Plan, row *projections.Row[domain.Node], now time.Time) {
	if len(row.State.Allocations) > 0 || row.State.Cordon != nil || len(row.State.Taints) > 0 ||
		row.State.State != domain.NodeLostState || row.State.Access.PublicKey != "" {
		return
	}
	if due := row.UpdateTime.Add(cmp.Or(s.ForgetAfter, ForgetAfter)); due.After(now) {
		plan.planAgainAt(due)
		return
	}
	plan.add(domain.Intend(domain.Nodes, row.Name, domain.RemoveNode{Lost: true}))
}

// stopReason returns why the job's current attempt cannot be running any more; "" when it may be
// running. An attempt without its allocations has ended, because allocations are created only
// before a start.
func (f *fleet) stopReason(j job) string {
	id := domain.AllocationID(j.Name, j.Life.Attempt)
	for _, node := range j.Life.Nodes {
		if _, ready := f.index[node]; !ready && f.shutDown[node] {
			return fmt.Sprintf("node %s was shut down", node)
		} else if !ready {
			return fmt.Sprintf("node %s was lost", node)
		}
		if !f.has(node, id) {
			return fmt.Sprintf("the allocation on node %s was released", node)
		}
	}
	return ""
}

// preempted reports whether the job's current attempt was preempted, because the agent of one of
// its nodes was shut down.
func (f *fleet) preempted(j job) bool {
	return slices.ContainsFunc(j.Life.Nodes, func(node domain.Name) bool { return f.shutDown[node] })
}
