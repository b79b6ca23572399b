package schedulers

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"anneal/domain"
	"anneal/projections"
	"anneal/schedulers/queue"
)

// PreemptedForReplica is the status message of a job that is preempted for a deployment that has
// fewer replicas than its minReplicaCount.
const PreemptedForReplica = "preempted: the job saves a checkpoint, gives its nodes to a deployment that has fewer " +
	"replicas than its minReplicaCount, and continues when there is capacity again"

// Reclaimed is the status message of a job that is preempted because its account uses more
// accelerators than are guaranteed to it, and another account needs its own guaranteed
// accelerators.
const Reclaimed = "preempted: the job's account uses more accelerators than are guaranteed to it, and another " +
	"account needs its own guaranteed accelerators; the job saves a checkpoint, gives its nodes back, and continues " +
	"when there is capacity again"

// maxWaitingReplicas is the maximum number of waiting replicas of one deployment in the queue of
// jobs.
const maxWaitingReplicas = 16

// A replicaEntry is a replica in the queue of jobs: a running one that may be preempted, or a
// waiting one.
type replicaEntry struct {
	of        *deployment
	id        string // ID of a running replica; "" for a waiting one
	resources domain.Resources
	need      domain.Need // what a waiting replica requires of a node; unset for a running one
	above     domain.ReplicaBound
	reason    string // first word of the reason that is recorded when this replica is preempted
}

// belowMinimum reports whether any deployment has fewer replicas than its minReplicaCount.
func belowMinimum(v *projections.View) bool {
	for row := range v.Deployments.All() {
		if !row.State.Short.Minimum.IsZero() {
			return true
		}
	}
	return false
}

// lacksReplicas reports whether any deployment has fewer replicas than desired.
func lacksReplicas(v *projections.View) bool {
	for row := range v.Deployments.All() {
		if !row.State.Short.Desired.IsZero() {
			return true
		}
	}
	return false
}

// missingReplicaID returns the ID of the nth missing replica of a deployment in the queue.
func missingReplicaID(deployment domain.Name, n int) string {
	return fmt.Sprintf("%s#+%d", deployment, n)
}

// addReplicas adds running replicas that may be preempted for jobs, and waiting replicas, so that
// no deployment starves behind jobs: waiting replicas within a minReplicaCount come before all
// jobs, and others wait like fresh jobs. The scheduler Replicas places waiting replicas in the
// capacity that jobs leave to them.
func (q *jobQueue) addReplicas() {
	for row := range q.view.Deployments.All() {
		d := &deployment{Deployment: &row.State, name: row.Name, plan: &Plan{}, fleet: q.fleet, now: q.now}
		if !d.Live() {
			continue
		}
		d.classify()
		revocable := len(d.revocable())
		for i, r := range d.aboveMinimum() {
			if i < revocable {
				q.addPreemptible(r, queue.Revocable, replicaEntry{of: d, above: domain.AboveMaximum, reason: "revoked"})
			} else {
				q.addPreemptible(r, queue.Elastic, replicaEntry{of: d, above: domain.AboveMinimum, reason: "preempted"})
			}
		}
		if missing := d.DesiredReplicas - len(d.Replicas); missing > 0 && d.servable(q.view) {
			q.addMissing(d)
		}
	}
}

// addPreemptible adds a running replica that may be preempted.
func (q *jobQueue) addPreemptible(r domain.Replica, role queue.Role, p replicaEntry) {
	account, id := p.of.name.Account(), domain.ReplicaAllocationID(p.of.name, r.ID)
	a, _ := q.fleet.allocation(r.Node, id)
	kind := commonType(a.Resources)
	takes := amount(a.Resources, kind)
	if !q.fleet.nodes[q.fleet.index[r.Node]].freesDevice(a.Resources) {
		takes.Units = 0 // other allocations share the device, so it does not become free
	}
	entry := &queue.Job{ID: id, Account: account, Type: kind, Nodes: 1, Takes: takes, Role: role,
		On: []int{q.fleet.index[r.Node]}, Start: a.Since.Unix(), Checkpoint: q.now.Unix()}
	p.id, p.resources = r.ID, a.Resources
	q.replicas[id] = &p
	q.addFree(entry)
	q.snapshot.Jobs = append(q.snapshot.Jobs, entry)
}

// addMissing adds the replicas that a deployment lacks, up to maxReplicaCount, as waiting replicas.
// It adds none above minReplicaCount while a failed replica must not be replaced yet.
func (q *jobQueue) addMissing(d *deployment) {
	n := len(d.current) + len(d.old)
	minimum := max(0, d.minReady()-n)
	q.minimum = q.minimum || minimum > 0
	elastic := max(0, d.nonRevocable()-n-minimum)
	if d.backingOff() {
		elastic = 0
	}
	need := d.need(q.view)
	_, request := requestOf(need)
	kind := commonType(need.Resources)
	takes := amount(need.Resources, kind)
	if need.Resources.Shared() && q.fitsShared(need) {
		takes.Units = 0
	}
	for i := range min(minimum+elastic, maxWaitingReplicas) {
		role, since := queue.Minimum, d.Short.Minimum
		if i >= minimum {
			role, since = queue.Elastic, d.Short.Desired
		}
		// the view still counts a replica whose node was lost, so it has no time since which
		// replicas are missing
		if since.IsZero() {
			since = q.now
		}
		entry := &queue.Job{ID: missingReplicaID(d.name, i+1), Account: d.name.Account(), Type: kind,
			Class: request.Selector, Nodes: 1, Takes: takes, Role: role, Arrival: since.Unix()}
		q.classes[entry.Class] = need
		q.replicas[entry.ID] = &replicaEntry{of: d, need: need}
		q.snapshot.Jobs = append(q.snapshot.Jobs, entry)
	}
}

// fitsShared reports whether a need with a share of a device fits on a device that is already
// shared.
func (q *jobQueue) fitsShared(need domain.Need) bool {
	for i := range q.fleet.nodes {
		c := &q.fleet.nodes[i]
		rest := need.Resources
		rest.Accelerators = nil
		if c.suits(need) && rest.Fits(c.Free) && c.shareFits(need.Resources) {
			return true
		}
	}
	return false
}

// preemptionOf returns the intent that preempts victim, a running job or replica, for a decision.
// Its reason does not name what gets the capacity, which may belong to another account.
func (q *jobQueue) preemptionOf(victim *queue.Job, d queue.Decision) domain.Intent {
	if r, ok := q.replicas[victim.ID]; ok {
		waits := "a job in the queue"
		if d.Job.Role != queue.Training {
			waits = "a deployment below its minReplicaCount"
		}
		reason := fmt.Sprintf("%s: the capacity is needed for %s (%s)", r.reason, waits, d.Reason)
		return r.of.intend(domain.RemoveReplica{ID: r.id, Reason: reason, Above: r.above})
	}
	j, _ := jobNamed(q.view, domain.Name(victim.ID))
	preempt := domain.PreemptJob{Attempt: j.Life.Attempt, Reason: Preempted, Queue: true}
	switch {
	case d.Job.Role != queue.Training:
		preempt.Reason = PreemptedForReplica
	case d.Reason == queue.Reclaimed:
		preempt.Reason, preempt.Queue = Reclaimed, false // a reclaim does not count toward MaxPreemptions
	}
	return domain.IntendJob(j.Name, preempt)
}

// byShortage returns deployments in the order of since when they lack replicas, as in the queue:
// those that lack them for longest first. Otherwise, their order stays. The view still counts
// replicas whose node was lost; these are missing from now on.
func byShortage(deployments []*deployment, shortage func(*deployment) time.Time) []*deployment {
	sorted := slices.Clone(deployments)
	slices.SortStableFunc(sorted, func(a, b *deployment) int {
		return cmp.Compare(secondsOf(shortage(a), a.now), secondsOf(shortage(b), b.now))
	})
	return sorted
}

// secondsOf returns a time in seconds since the Unix epoch, and that of now for the zero time.
func secondsOf(t, now time.Time) int64 {
	if t.IsZero() {
		t = now
	}
	return t.Unix()
}

// inQueueOrder returns deployments in the order in which the queue starts their replicas above a
// minReplicaCount. It computes the places in the queue only if that order depends on the shares of
// accounts, because that is slow: it looks at all jobs.
func inQueueOrder(v *projections.View, deployments []*deployment, now time.Time) []*deployment {
	accounts := map[string]bool{}
	for _, d := range deployments {
		if missingReplicas(d) > 0 {
			accounts[d.name.Account()] = true
		}
	}
	sorted := byShortage(deployments, func(d *deployment) time.Time { return d.Short.Desired })
	if len(accounts) < 2 {
		return sorted
	}
	places := placesOf(v, now)
	position := func(d *deployment) int {
		if place, ok := places[missingReplicaID(d.name, 1)]; ok {
			return place.Position
		}
		return math.MaxInt
	}
	slices.SortStableFunc(sorted, func(a, b *deployment) int { return cmp.Compare(position(a), position(b)) })
	return sorted
}

// aboveMinimum returns the replicas above minReplicaCount in the order in which they are removed,
// the revocable ones first. During a rollout, it returns only the revocable ones.
func (d *deployment) aboveMinimum() []domain.Replica {
	if d.rollingOut() {
		return d.revocable()
	}
	extra := len(d.current) + len(d.old) - d.MinReplicaCount
	if len(d.current)+len(d.old) > d.DesiredReplicas {
		extra-- // during a drain, the deployment may have one replica above the desired number; do not count it
	}
	return firstToRemove(d, max(extra, len(d.revocable())))
}

// servable reports whether the deployment may get replicas: its model can be loaded, and no
// resource that it needs was deleted.
func (d *deployment) servable(v *projections.View) bool {
	return (d.State != domain.DeploymentCreatingState || d.model(v) == nil) && d.lost(v) == ""
}

// withholdPromised deducts from the fleet the capacity of the jobs for which others were preempted,
// so that replicas above a minReplicaCount do not get what was freed for these jobs.
func withholdPromised(v *projections.View, fleet *fleet) {
	var needs []domain.Need
	for j := range jobs(v) {
		if j.Life.State == domain.JobPendingState && j.Life.Promised && j.Life.Queued() {
			needs = append(needs, fleet.needOf(v, j.Name, j.spec()))
		}
	}
	if len(needs) == 0 {
		return
	}
	stopping := fleet.stopping(v)
	for _, a := range stopping {
		fleet.release(a.node, a.resources)
	}
	for _, need := range needs {
		fleet.withhold(v, need, nil)
	}
	for _, a := range stopping {
		fleet.take([]domain.Name{a.node}, a.resources)
	}
}

// A stoppingAllocation is a part of a node that is about to become free.
type stoppingAllocation struct {
	node      domain.Name
	resources domain.Resources
}

// stopping returns the allocations of jobs that are stopping, and allocations that are about to be
// released.
func (f *fleet) stopping(v *projections.View) (all []stoppingAllocation) {
	for j := range jobs(v) {
		if !j.Life.Active() || !j.Life.Stopping() {
			continue
		}
		for _, node := range j.Life.Nodes {
			if f.has(node, domain.AllocationID(j.Name, j.Life.Attempt)) {
				all = append(all, stoppingAllocation{node, j.Life.Resources})
			}
		}
	}
	for _, a := range f.endedAllocations(v) {
		all = append(all, stoppingAllocation{a.key.node, a.resources})
	}
	return all
}
