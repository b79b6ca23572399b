package queue

import (
	"cmp"
	"slices"
)

// A planKey identifies jobs that are equal for planFor: if it fails for the first of them in the
// order of compare, it fails for all. They have the same shape, and all of them or none claim
// guaranteed accelerators. If jobs have priorities, they also have the same account, because a job
// may preempt jobs of its own account that have a lower priority.
type planKey struct {
	shape   int
	claims  bool
	account string // account of the jobs; "" if no job has a priority: the account then does not matter
}

// preempt starts the first job in the order of compare that may preempt others and for which a plan
// exists. It returns false when there is no such job. It adds the planKey of each job without a
// plan to failed, so that this pass does not try equal jobs again.
func (q *Queue) preempt(failed map[planKey]bool) (Decision, bool) {
	for {
		q.updateLate()
		g := q.first(func(g *group) bool {
			return !failed[planKeyOf(q, g)] && !g.last && !exceedsLimit(q, g.heap[0]) &&
				(urgent(q, g) || claimsGuaranteed(g.heap[0]))
		})
		if g == nil {
			return Decision{}, false
		}
		if p, reason, ok := planFor(q, g); ok {
			return q.apply(g.heap[0], p, reason), true
		}
		failed[planKeyOf(q, g)] = true
	}
}

func planKeyOf(q *Queue, g *group) planKey {
	a := planKey{shape: g.shape, claims: claimsGuaranteed(g.heap[0])}
	if q.priorities {
		a.account = g.groupKey.account
	}
	return a
}

// planFor plans the start of the first job of a group by preemption. It first tries to preempt only
// replicas; then jobs that use only borrowed accelerators; then all jobs of accounts that borrow
// accelerators; and then any jobs that may be preempted for the job.
func planFor(q *Queue, g *group) (preemptionPlan, Reason, bool) {
	e, slack, reason := g.heap[0], q.key(g)-q.now, Due
	if q.due(g) > q.now {
		reason = Idle
	}
	isUrgent := urgent(q, g)
	if isUrgent && q.preemptible > 0 {
		if p, ok := q.plan(e, func(v *entry) bool { return v.Stopping || isPreemptibleReplica(q, v, e) }); ok {
			return p, reason, true
		}
	}
	if claimsGuaranteed(e) {
		for _, whole := range []bool{true, false} {
			p, ok := q.plan(e, func(v *entry) bool {
				return v.Stopping || isReclaimable(q, v, e) && (isEntirelyBorrowed(q, v) || !whole)
			})
			if ok {
				return p, Reclaimed, true
			}
		}
	}
	if !isUrgent {
		return preemptionPlan{}, 0, false
	}
	p, ok := q.plan(e, func(v *entry) bool {
		return v.Stopping || isPreemptibleReplica(q, v, e) || q.isPreemptible(v, e, slack)
	})
	return p, reason, ok
}

// revoke starts waiting jobs, in the order of compare, for which only Revocable replicas must be
// preempted. Every job may preempt these replicas, even before its deadline.
func revoke(q *Queue, decisions []Decision) []Decision {
	failed := make([]bool, len(q.list))
	for q.preemptible > 0 {
		q.updateLate()
		g := q.first(func(g *group) bool { return !failed[g.shape] && g.role == Training && !exceedsLimit(q, g.heap[0]) })
		if g == nil {
			return decisions
		}
		e := g.heap[0]
		p, ok := q.plan(e, func(v *entry) bool { return v.Stopping || v.Role == Revocable })
		if failed[g.shape] = !ok; ok {
			decisions = q.start(append(decisions, q.apply(e, p, Revoked)))
		}
	}
	return decisions
}

// isPreemptibleReplica reports whether v is a replica that may be preempted for the candidate, a
// job that may preempt others. An Elastic replica must have run for MinRun, so that the replica and
// jobs whose deadline has passed do not preempt each other in turn.
func isPreemptibleReplica(q *Queue, v, candidate *entry) bool {
	return v.Role == Revocable ||
		v.Role == Elastic && v.Type == candidate.Type && q.now-v.Start >= q.rules.MinRun
}

// due returns the time from which the first job of a group may preempt others.
func (q *Queue) due(g *group) int64 {
	if g.role == Minimum {
		return g.heap[0].deadline
	}
	return g.heap[0].deadline + q.extra(g.account, q.list[g.shape].kind)
}

// urgent reports whether the first job of a group may preempt others: its deadline has passed, or
// it is a fresh job whose account runs no job of its type. An Elastic replica may not preempt
// others.
func urgent(q *Queue, g *group) bool {
	if g.role != Training {
		return g.role == Minimum && q.due(g) <= q.now
	}
	return q.due(g) <= q.now || g.fresh && g.account.running[q.list[g.shape].kind] == 0
}

// slack returns how many seconds a running job would have until its deadline if it were preempted
// now. A negative slack means that the deadline would have passed.
func (q *Queue) slack(v *entry) int64 {
	work := v.Work + v.uncheckpointed(q.now)
	fresh := q.fresh(v, work)
	return q.rules.target(fresh) - (q.now - v.Arrival - work) + q.extra(v.account, v.Type) -
		q.boost(v.account, v.Type, fresh)
}

// claimsGuaranteed reports whether the account of a waiting job would use no more accelerators than
// are guaranteed to it if the job ran.
func claimsGuaranteed(e *entry) bool {
	return e.Type != "" && e.Role == Training && e.account.Used+e.Nodes*e.Takes.Units <= e.account.Guaranteed
}

// withinGuarantee reports whether the account of a running job uses no more accelerators than are
// guaranteed to it. Such a job is preempted only for jobs that also claim guaranteed accelerators,
// so that an account cannot borrow back what was reclaimed from it.
func withinGuarantee(v *entry) bool {
	return v.Type != "" && v.account.Guaranteed > 0 && v.account.Used <= v.account.Guaranteed
}

// isReclaimable reports whether the running job or replica v may be preempted for the candidate, a
// job that claims guaranteed accelerators: the account of v uses more than is guaranteed to it, and
// v has run for ReclaimAfter, so that it makes progress however often it is preempted.
func isReclaimable(q *Queue, v, candidate *entry) bool {
	return q.guarantees && v.Type == candidate.Type && v.Role != Minimum && v.account.Used > v.account.Guaranteed &&
		(v.Role == Revocable || q.now-v.Start >= q.rules.ReclaimAfter)
}

// isEntirelyBorrowed reports whether all accelerators of a running job are borrowed: without the
// job, its account would still use at least what is guaranteed to it.
func isEntirelyBorrowed(q *Queue, v *entry) bool {
	return v.account.Used-q.list[v.shape].size >= v.account.Guaranteed
}

// isPreemptible reports whether the running job v may be preempted for the candidate, whose slack
// is given. The margin between the two slacks, the minimum run time and the maximum number of
// preemptions prevent loops. Among jobs of one account, jobs of a lower priority may be preempted
// whatever their slack, and jobs of a higher priority may not.
func (q *Queue) isPreemptible(v, candidate *entry, slack int64) bool {
	return v.Role == Training && v.Type == candidate.Type && (v.Nodes == 1 || candidate.Nodes > 1) &&
		(claimsGuaranteed(candidate) || candidate.Role == Minimum || !withinGuarantee(v)) &&
		v.Preemptions < q.rules.MaxPreemptions &&
		q.now-v.Start >= q.rules.MinRun && outranks(q, candidate, v, slack)
}

// outranks reports whether the priorities of candidate and v, or else their slacks, permit to
// preempt v.
func outranks(q *Queue, candidate, v *entry, slack int64) bool {
	if v.account == candidate.account && v.Priority != candidate.Priority && candidate.Role == Training {
		return v.Priority < candidate.Priority
	}
	return q.slack(v) >= slack+q.rules.Margin
}

// costOf returns the cost of preempting a job in units × seconds: the work since its last
// checkpoint, which is lost, and the restart. It is 0 for a job that is stopping already.
func costOf(q *Queue, v *entry) int64 {
	switch {
	case v.Stopping:
		return 0
	case v.Role == Revocable:
		return q.list[v.shape].size
	}
	return q.list[v.shape].size * (v.uncheckpointed(q.now) + q.rules.Restart)
}

// A preemptionPlan is a plan to start a job: its nodes, and the running jobs that must be preempted
// first.
type preemptionPlan struct {
	nodes   []int
	victims []*entry
}

// plan finds the nodes for a job on which preemption costs least, where only running jobs for which
// match returns true may be preempted. Of nodes with the same cost, it takes the first. It returns
// false if there are too few nodes, or if the job fits without preemption: start starts such jobs.
// It does not change the queue.
func (q *Queue) plan(e *entry, match func(*entry) bool) (preemptionPlan, bool) {
	type choice struct {
		node    int
		cost    int64
		victims []*entry
	}
	var choices []choice
	for n := range q.nodes {
		if !acceptsNode(q, e, n) || !e.Takes.fits(q.nodes[n].Capacity) {
			continue
		}
		victims, cost, ok := cheapestVictims(q, e, n, match)
		if !ok {
			continue
		}
		if e.Nodes == 1 && len(choices) == 1 {
			if cost < choices[0].cost {
				choices[0] = choice{n, cost, victims}
			}
			continue
		}
		choices = append(choices, choice{n, cost, victims})
	}
	if int64(len(choices)) < e.Nodes {
		return preemptionPlan{}, false
	}
	slices.SortStableFunc(choices, func(a, b choice) int { return cmp.Compare(a.cost, b.cost) })
	var p preemptionPlan
	for _, c := range choices[:e.Nodes] {
		p.nodes = append(p.nodes, c.node)
		for _, v := range c.victims {
			if !slices.Contains(p.victims, v) { // a victim may be a gang on several of the nodes
				p.victims = append(p.victims, v)
			}
		}
	}
	slices.Sort(p.nodes)
	return p, len(p.victims) > 0
}

// cheapestVictims returns which of the matching jobs on a node must be preempted so that the job e
// fits at the lowest cost, and this cost; false when there is no such subset. This is the 0/1
// knapsack problem, solved by dynamic programming over the units that are missing.
func cheapestVictims(q *Queue, e *entry, node int, match func(*entry) bool) ([]*entry, int64, bool) {
	free := q.nodes[node].Free
	if e.Takes.fits(free) {
		return nil, 0, true
	}
	short := e.units() - available(e, free)
	var eligible []*entry
	total, all := int64(0), free
	for _, v := range q.running[node] {
		if match(v) {
			eligible, total, all = append(eligible, v), total+unitsFor(e, v), all.plus(v.Takes)
		}
	}
	if total < short || !e.Takes.fits(all) {
		return nil, 0, false
	}
	victims, cost := knapsack(q, e, eligible, max(0, short))
	left := free
	for _, v := range victims {
		left = left.plus(v.Takes)
	}
	if !e.Takes.fits(left) { // these victims have enough units, but CPU or memory is still missing
		victims, cost = necessaryVictims(q, e, eligible, all)
	}
	return victims, cost, true
}

// necessaryVictims returns which of the jobs must be preempted so that e fits, and their cost. It
// considers the jobs from the highest cost to the lowest, and does not preempt a job if e fits
// beside it. all is what would be free if all of the jobs were preempted.
func necessaryVictims(q *Queue, e *entry, jobs []*entry, all Amount) (victims []*entry, cost int64) {
	order := slices.Clone(jobs)
	slices.SortStableFunc(order, func(a, b *entry) int { return cmp.Compare(costOf(q, b), costOf(q, a)) })
	stays := map[*entry]bool{}
	for _, v := range order {
		if left := all.minus(v.Takes); e.Takes.fits(left) {
			all, stays[v] = left, true
		}
	}
	for _, v := range jobs {
		if !stays[v] {
			victims, cost = append(victims, v), cost+costOf(q, v)
		}
	}
	return victims, cost
}

// unitsFor returns the units of a node that become free for e when v stops: accelerators of e's
// type, or CPU cores.
func unitsFor(e, v *entry) int64 {
	switch {
	case e.Type == "":
		return v.Takes.CPUMilli / 1000
	case v.Type == e.Type:
		return v.Takes.Units
	}
	return 0
}

// available returns the units in free that the job e can use: accelerators, or CPU cores rounded
// down.
func available(e *entry, free Amount) int64 {
	if e.Type == "" && e.Takes.Units == 0 {
		return max(0, free.CPUMilli) / 1000
	}
	return free.Units
}

// knapsack returns the subset of jobs with the lowest cost that has at least short units for e; of
// subsets with the same cost, one with earlier jobs. best[u] is the lowest cost of u units, where
// the last u stands for short or more.
func knapsack(q *Queue, e *entry, jobs []*entry, short int64) ([]*entry, int64) {
	const none = int64(1) << 62
	best := make([]int64, short+1)
	taken := make([][]bool, len(jobs)) // taken[i][u]: whether job i is in the best subset of the first i+1 jobs
	for u := range best {
		best[u] = none
	}
	best[0] = 0
	for i, v := range jobs {
		taken[i] = make([]bool, short+1)
		cost := costOf(q, v)
		for u := short; u > 0; u-- {
			if from := best[max(0, u-unitsFor(e, v))]; from != none && from+cost < best[u] {
				best[u], taken[i][u] = from+cost, true
			}
		}
	}
	var victims []*entry
	u := short
	for i := len(jobs) - 1; i >= 0 && u > 0; i-- {
		if taken[i][u] {
			victims = append(victims, jobs[i])
			u = max(0, u-unitsFor(e, jobs[i]))
		}
	}
	slices.Reverse(victims)
	return victims, best[short]
}

// apply applies a plan to the queue: it stops the victims, which then wait again, and starts the
// job e.
func (q *Queue) apply(e *entry, p preemptionPlan, reason Reason) Decision {
	d := Decision{Job: e.Job, Nodes: p.nodes, Reason: reason, Waits: true}
	for _, v := range p.victims {
		if q.placer != nil {
			q.placer.Release(v.Job, v.On)
		}
		q.stop(v)
		if v.Stopping {
			delete(q.jobs, v.ID)
			continue
		}
		if reason != Reclaimed {
			v.Preemptions++
		}
		d.Preempt = append(d.Preempt, v.Job)
		if v.Role != Training {
			delete(q.jobs, v.ID)
			continue
		}
		q.wait(v)
	}
	q.begin(e, p.nodes)
	return d
}
