package queue

import (
	"cmp"
	"slices"
)

// A Reason says why the job of a Decision starts, and why others are preempted for it.
type Reason int

// The reasons of decisions.
const (
	Fits      Reason = iota // the nodes have free capacity: nothing is preempted
	Due                     // the job's deadline has passed: jobs with more slack are preempted
	Idle                    // the job's account runs no other job: jobs with more slack are preempted
	Promised                // an earlier pass preempted other jobs for this job, which have stopped or are stopping
	Revoked                 // revocable replicas are preempted for every waiting job
	Reclaimed               // the job's account uses less than its guarantee: jobs of other accounts are preempted
)

// String returns the reason as a clause in messages about what is preempted.
func (r Reason) String() string {
	return [...]string{"nodes have free capacity", "the deadline in the queue has passed",
		"the account of the job runs no other job", "capacity was freed by preemption",
		"revocable replicas are removed for every waiting job",
		"the account of the job uses less than is guaranteed to it"}[r]
}

// A Decision is to start a job on nodes. If Waits is set, the job starts only when the jobs in
// Preempt, and those that are Stopping on its nodes, have stopped.
type Decision struct {
	Job     *Job
	Nodes   []int
	Preempt []*Job // jobs to preempt, in the order in which they were planned
	Waits   bool   // jobs that run on the nodes must stop before this job starts
	Reason  Reason
}

// A Snapshot describes the nodes, accounts and jobs of a cluster at one time.
type Snapshot struct {
	Nodes    []Node // nodes of the cluster; what jobs in Jobs use counts as free in them
	Accounts []Account
	Jobs     []*Job
	// reports whether jobs of a class can run on a node: parameter accepts of New
	Accepts func(class string, node int) bool
	Placer  Placer // chooses the nodes of jobs: parameter placer of New
}

// Of returns a queue with the nodes, accounts and jobs of a snapshot. The queue changes these jobs
// when it decides.
func Of(r Rules, s Snapshot) *Queue {
	q := New(r, s.Nodes, s.Accounts, s.Accepts, s.Placer)
	for _, j := range s.Jobs {
		q.Add(j)
	}
	return q
}

// Pass decides which waiting jobs start now and which running jobs are preempted for them. It
// records the decisions in the queue: a job that starts has its nodes, and a preempted job waits
// again. Call Pass after every Add and Remove, and every minute while jobs wait, because deadlines
// pass.
func (q *Queue) Pass(now int64) []Decision {
	q.now = now
	decisions := q.startPromised(nil)
	defer q.reserveNodes()()
	decisions = revoke(q, q.start(decisions))
	failed := map[planKey]bool{}
	for {
		decision, ok := q.preempt(failed)
		if !ok {
			return decisions
		}
		decisions = q.start(append(decisions, decision))
	}
}

// reserveNodes finds the first gang, or replica within a minimum, whose deadline has passed and
// that could start if all running jobs ended. It reserves the nodes with the most free capacity for
// this job: no other job starts on them in this pass. Otherwise a gang could wait for ever on a
// cluster of short jobs, which never end at the same time and never run long enough to be
// preempted. The returned function ends the reservation.
func (q *Queue) reserveNodes() func() {
	q.updateLate()
	impossible := map[*group]bool{}
	for {
		g := q.first(func(g *group) bool {
			return (q.list[g.shape].nodes > 1 || g.role == Minimum) && !g.last && q.due(g) <= q.now &&
				!exceedsLimit(q, g.heap[0]) && !impossible[g]
		})
		if g == nil {
			return func() {}
		}
		e := g.heap[0]
		if nodes := q.reservableNodes(e); int64(len(nodes)) >= e.Nodes {
			q.reserved, q.reservedFor = nodes[:e.Nodes], e
			return func() { q.reserved, q.reservedFor = nil, nil }
		}
		impossible[g] = true
	}
}

// reservableNodes returns the nodes on which a job would fit if no job were running, those with the
// most free capacity first. For a job without accelerators, nodes without accelerators precede all
// others.
func (q *Queue) reservableNodes(e *entry) (nodes []int) {
	for n := range q.nodes {
		all := q.nodes[n].Free
		for _, v := range q.running[n] {
			all = all.plus(v.Takes)
		}
		if acceptsNode(q, e, n) && e.Takes.fits(all) {
			nodes = append(nodes, n)
		}
	}
	wasted := func(n int) int { return rank(e.Type == "" && q.nodes[n].Type != "") }
	slices.SortStableFunc(nodes, func(a, b int) int {
		return cmp.Or(wasted(a)-wasted(b), cmp.Compare(available(e, q.nodes[b].Free), available(e, q.nodes[a].Free)))
	})
	return nodes
}

// start starts the first job in the order of compare that fits, again and again until none fits.
// When a job does not fit, larger jobs are not tried, except the job for which nodes are reserved,
// because only this job may use these nodes.
func (q *Queue) start(decisions []Decision) []Decision {
	excluded, tried := make([]bool, len(q.list)), false
	for {
		q.updateLate()
		first := q.first(func(g *group) bool {
			if g.heap[0] == q.reservedFor {
				return !tried && !exceedsLimit(q, g.heap[0])
			}
			return !excluded[g.shape] && !exceedsLimit(q, g.heap[0])
		})
		if first == nil {
			return decisions
		}
		e := first.heap[0]
		nodes, ok := q.place(e)
		if !ok {
			tried = tried || e == q.reservedFor
			for s := range q.list {
				excluded[s] = excluded[s] || q.list[s].covers(q.list[e.shape])
			}
			continue
		}
		q.begin(e, nodes)
		decisions = append(decisions, Decision{Job: e.Job, Nodes: nodes})
	}
}

// first returns the group whose first job comes first in the order of compare, among the groups for
// which match returns true; nil if there is none.
func (q *Queue) first(match func(*group) bool) *group {
	var first *group
	for _, g := range q.groups {
		if len(g.heap) > 0 && match(g) && (first == nil || q.compare(g, first) < 0) {
			first = g
		}
	}
	if first == nil || !q.priorities || first.role != Training {
		return first
	}
	return preferred(q, first, match)
}

// preferred returns the group whose first job should start instead of the first job of first: the
// job of the same account that comes first if the priorities count. Priorities decide which job of
// an account starts, but not when the account can start one. They change the deadline of a job by a
// limited time, so that no job waits for ever.
func preferred(q *Queue, first *group, match func(*group) bool) *group {
	kind, best := q.list[first.shape].kind, first
	for _, g := range q.groups {
		if len(g.heap) == 0 || g.account != first.account || g.role != Training || g.last != first.last ||
			q.list[g.shape].kind != kind || !match(g) {
			continue
		}
		if cmp.Or(cmp.Compare(q.key(g)-q.rules.priorityShift(g.priority), q.key(best)-q.rules.priorityShift(best.priority)),
			cmp.Compare(g.heap[0].ID, best.heap[0].ID)) < 0 {
			best = g
		}
	}
	return best
}

// exceedsLimit reports whether the account of a job would exceed its Limit if the job started.
func exceedsLimit(q *Queue, e *entry) bool {
	return e.Type != "" && e.Role == Training && e.account.Limit >= 0 &&
		e.account.Used+e.Nodes*e.Takes.Units > e.account.Limit
}

// begin makes a waiting job run on nodes.
func (q *Queue) begin(e *entry, nodes []int) {
	q.leave(e)
	if e == q.reservedFor {
		q.reserved, q.reservedFor = nil, nil
	}
	e.Start, e.Checkpoint = q.now, q.now
	q.run(e, nodes)
	if q.placer != nil {
		q.placer.Take(e.Job, nodes)
	}
}

// acceptsNode reports whether a job can run on a node, and the node is not reserved for another
// job.
func acceptsNode(q *Queue, e *entry, node int) bool {
	if e != q.reservedFor && slices.Contains(q.reserved, node) {
		return false
	}
	return (e.Type == "" || q.nodes[node].Type == e.Type) && (q.accepts == nil || q.accepts(e.Class, node))
}

// place returns nodes on which a job fits; false if there are too few. The placer chooses them.
// Without a placer, a job on one node gets the node with the fewest free units, and a gang gets the
// first nodes.
func (q *Queue) place(e *entry) ([]int, bool) {
	if q.placer != nil {
		var reserved []int
		if q.reservedFor != nil && q.reservedFor != e {
			reserved = q.reserved
		}
		return q.placer.Place(e.Job, reserved)
	}
	var nodes []int
	best := -1
	for i := range q.nodes {
		if !e.Takes.fits(q.nodes[i].Free) || !acceptsNode(q, e, i) {
			continue
		}
		if e.Nodes > 1 {
			if nodes = append(nodes, i); int64(len(nodes)) == e.Nodes {
				return nodes, true
			}
		} else if best < 0 || q.nodes[i].Free.Units < q.nodes[best].Free.Units {
			best = i
		}
	}
	if best < 0 {
		return nil, false
	}
	return []int{best}, true
}

// startPromised starts the jobs for which an earlier pass preempted others, before any other job
// can use what has become free. If the preempted jobs are still stopping, it plans the start on
// their nodes again.
func (q *Queue) startPromised(decisions []Decision) []Decision {
	promised := slices.DeleteFunc(q.promised, func(e *entry) bool { return e.group == nil })
	q.promised = nil
	slices.SortFunc(promised, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.deadline, b.deadline), cmp.Compare(a.ID, b.ID))
	})
	for _, e := range promised {
		if exceedsLimit(q, e) {
			continue
		}
		if nodes, ok := q.place(e); ok {
			q.begin(e, nodes)
			decisions = append(decisions, Decision{Job: e.Job, Nodes: nodes, Reason: Promised})
		} else if p, ok := q.plan(e, func(v *entry) bool { return v.Stopping }); ok {
			decisions = append(decisions, q.apply(e, p, Promised))
		}
	}
	return decisions
}
