package schedulers

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// LostAfter is how long a node may be silent, ForgetAfter how long a lost one
// is remembered.
const (
	LostAfter   = 15 * time.Second
	ForgetAfter = 7 * 24 * time.Hour
)

// Nodes loses the nodes that have gone silent, and takes the jobs back that
// were at work there. A node that stays away is forgotten in the end; should it
// come back, it is a new one.
type Nodes struct {
	LostAfter   time.Duration // 0 is the constant of that name
	ForgetAfter time.Duration // 0 is the constant of that name
}

// Name implements Scheduler.
func (Nodes) Name() string { return "nodes" }

// Plan implements Scheduler.
func (s Nodes) Plan(v *projections.View, now time.Time) Plan {
	var plan Plan
	limit := cmp.Or(s.LostAfter, LostAfter)
	for row := range v.Nodes.All() {
		if row.State.State != domain.NodeReady {
			s.forget(&plan, row, now)
			continue
		}
		heard, seen := v.Live.Seen(row.Name), v.Live.LastHeartbeat(row.Name)
		if since := row.State.Since; since.After(seen) {
			seen = since // one that has just come back may not have beaten yet
		}
		if seen.After(heard) {
			heard = seen
		}
		if due := heard.Add(limit); due.After(now) {
			plan.lookAgain(due)
			continue
		}
		plan.add(domain.Intend(domain.Nodes, row.Name, domain.LoseNode{Reason: fmt.Sprintf("nothing was heard of the node for %s", limit), Seen: seen}))
	}
	fleet := fleetOf(v)
	for j := range jobs(v) {
		if !j.Life.Working() {
			continue
		}
		if reason := fleet.astray(j); reason != "" {
			plan.add(domain.IntendJob(j.Name, domain.RequeueJob{Attempt: j.Life.Attempt, Reason: reason, Preempted: fleet.left(j)}))
		}
	}
	return plan
}

// forget removes a node that was lost long ago and holds nothing. One that has
// enrolled is its operator's to delete: its name stays its own.
func (s Nodes) forget(plan *Plan, row *projections.Row[domain.Node], now time.Time) {
	if len(row.State.Allocations) > 0 || row.State.State != domain.NodeGone || row.State.Access.PublicKey != "" {
		return
	}
	if due := row.UpdateTime.Add(cmp.Or(s.ForgetAfter, ForgetAfter)); due.After(now) {
		plan.lookAgain(due)
		return
	}
	plan.add(domain.Intend(domain.Nodes, row.Name, domain.RemoveNode{Lost: true}))
}

// astray says why the job's current attempt can no longer be at work; "" when
// it can. An allocation that is gone never comes back: those of one attempt
// are made once, before its start.
func (f *fleet) astray(j job) string {
	id := domain.AllocationID(j.Name, j.Life.Attempt)
	for _, node := range j.Life.Nodes {
		if _, ready := f.index[node]; !ready && f.gone[node] {
			return fmt.Sprintf("node %s was shut down", node.ID())
		} else if !ready {
			return fmt.Sprintf("node %s was lost", node.ID())
		}
		if !f.has(node, id) {
			return fmt.Sprintf("node %s no longer works on it", node.ID())
		}
	}
	return ""
}

// left tells whether a node of the job's current attempt was shut down in order.
func (f *fleet) left(j job) bool {
	return slices.ContainsFunc(j.Life.Nodes, func(node domain.Name) bool { return f.gone[node] })
}
