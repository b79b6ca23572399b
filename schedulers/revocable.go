package schedulers

import (
	"cmp"
	"slices"

	"anneal/domain"
	"anneal/projections"
)

// firm returns how many replicas the deployment should have without revocable ones: at most
// maxReplicaCount. During a rollout, the result includes the revocable replicas that already exist,
// so that the rollout keeps them. A drain does not keep them.
func (d *deployment) nonRevocable() int {
	if n := len(d.current) + len(d.old); d.rollingOut() {
		return min(d.DesiredReplicas, max(d.MaxReplicas(), n))
	}
	return min(d.DesiredReplicas, d.MaxReplicas())
}

// revocable returns the replicas above maxReplicaCount, in the order of removal.
func (d *deployment) revocable() []domain.Replica {
	n := len(d.current) + len(d.old)
	extra := n - d.MaxReplicas()
	if d.rollingOut() || n > d.DesiredReplicas {
		extra-- // the replica that a rollout or a drain adds
	}
	return firstToRemove(d, extra)
}

// lends reports whether the deployment may have revocable replicas.
func allowsRevocable(d *deployment) bool { return d.MaxWithRevocable() > d.MaxReplicas() }

// firstToGo returns the first n replicas in the order of removal; none if n is negative.
func firstToRemove(d *deployment, n int) []domain.Replica {
	return append(removalOrder(d.old), removalOrder(d.current)...)[:max(0, n)]
}

// revocation removes revocable replicas when replicas within maxReplicaCount wait for their capacity,
// and replicas above minReplicaCount when replicas within it do.
type revocation struct {
	view        *projections.View
	fleet       *fleet
	preemptible []preemptibleReplica
}

// lent is a replica that may give way, and the resources that are allocated to it.
type preemptibleReplica struct {
	of        *deployment
	replica   domain.Replica
	resources domain.Resources
	above     domain.ReplicaBound // AboveMinimum gives way only to replicas within a minimum
}

// share revokes replicas for other replicas that wait for capacity, and then places revocable replicas
// in the capacity that no replica and no job waits for. The revocable replicas of the newest deployment
// are removed first.
func shareCapacity(v *projections.View, fleet *fleet, deployments []*deployment) {
	r := revocation{view: v, fleet: fleet}
	r.collectPreemptible(deployments)
	if len(r.preemptible) == 0 && !slices.ContainsFunc(deployments, allowsRevocable) {
		for _, d := range deployments {
			if d.short {
				d.replaceOld(d.need(v))
			}
		}
		return
	}
	over := fleet.endedAllocations(v)
	for _, a := range over { // they are released earlier than the allocation of a replica that is revoked now
		fleet.release(a.key.node, a.resources)
	}
	for _, d := range deployments {
		if d.short && !r.reserve(d.need(v), d) {
			r.replaceOld(d)
		}
	}
	for _, need := range waitingJobs(v, fleet) {
		fleet.withhold(v, need, nil)
	}
	for _, a := range over {
		fleet.take([]domain.Name{a.key.node}, a.resources)
	}
	for _, d := range deployments {
		if allowsRevocable(d) && !d.rollingOut() && !d.short {
			d.placeMore(v, d.need(v), min(d.DesiredReplicas-max(len(d.current), d.nonRevocable()), d.placeable()))
		}
	}
}

// An overAllocation is an allocation of an attempt that is over or of a replica that was removed,
// which is about to be released.
type endedAllocation struct {
	key       allocationKey
	resources domain.Resources
}

// over returns the allocations on READY nodes that are about to be released, by node and ID.
func (f *fleet) endedAllocations(v *projections.View) (over []endedAllocation) {
	for key, a := range f.placed {
		if reason, _ := orphaned(v, key.node, a); reason != "" {
			over = append(over, endedAllocation{key, a.Resources})
		}
	}
	slices.SortFunc(over, func(a, b endedAllocation) int {
		return cmp.Or(cmp.Compare(a.key.node, b.key.node), cmp.Compare(a.key.id, b.key.id))
	})
	return over
}

// waitingJobs returns the needs of the jobs that wait for capacity, the oldest first.
func waitingJobs(v *projections.View, fleet *fleet) (needs []domain.Need) {
	var waiting []job
	for j := range jobs(v) {
		if j.Life.State == domain.JobPendingState && j.Life.HeldForCapacity() {
			waiting = append(waiting, j)
		}
	}
	slices.SortStableFunc(waiting, func(a, b job) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	for _, j := range waiting[:min(len(waiting), maxSteps)] {
		needs = append(needs, fleet.needOf(v, j.Name, j.spec()))
	}
	return needs
}

// lend collects the replicas that may give way: all revocable ones, and if a deployment lacks replicas
// within its minimum, those above the minimum of their deployments.
func (r *revocation) collectPreemptible(deployments []*deployment) {
	var elastic []preemptibleReplica
	below := slices.ContainsFunc(deployments, func(d *deployment) bool { return d.short && d.belowMinimum() })
	for _, d := range slices.Backward(deployments) {
		revocable := len(d.revocable())
		for i, replica := range d.aboveMinimum() {
			a, ok := r.fleet.placed[allocationKey{replica.Node, domain.ReplicaAllocationID(d.name, replica.ID)}]
			switch {
			case ok && i < revocable:
				r.preemptible = append(r.preemptible, preemptibleReplica{d, replica, a.Resources, domain.AboveMaximum})
			case ok && below:
				elastic = append(elastic, preemptibleReplica{d, replica, a.Resources, domain.AboveMinimum})
			}
		}
	}
	r.preemptible = append(r.preemptible, elastic...)
}

// reserve withholds capacity for a need of a deployment from revocable replicas. If there is not enough,
// it removes replicas of nodes that can then hold the need, and no others. The replicas of the
// deployment itself do not give way to it: see replaceOld. reserve returns false when the need does not
// fit.
func (r *revocation) reserve(need domain.Need, of *deployment) bool {
	if r.fleet.withhold(r.view, need, nil) {
		return true
	}
	var given []preemptibleReplica
	for _, l := range r.preemptible {
		if l.of == of || l.above == domain.AboveMinimum && !of.belowMinimum() {
			continue
		}
		given = append(given, l)
		r.fleet.release(l.replica.Node, l.resources)
		if chosen, fits := r.fleet.place(r.view, need, nil); fits {
			r.revoke(given, namesOf(chosen), need)
			r.fleet.takeChosen(chosen, need) // not free before the replicas have ended
			return true
		}
	}
	for _, l := range given {
		r.fleet.take([]domain.Name{l.replica.Node}, l.resources)
	}
	return false
}

// replaceOld replaces an old replica of a deployment, which then cannot be revoked as well.
func (r *revocation) replaceOld(d *deployment) {
	r.forget(d, d.replaceOld(d.need(r.view)))
}

// forget removes a replica from those that can be revoked.
func (r *revocation) forget(d *deployment, id string) {
	r.preemptible = slices.DeleteFunc(r.preemptible, func(p preemptibleReplica) bool {
		return p.of == d && p.replica.ID == id
	})
}

// revoke removes the replicas in given whose resources the need requires on the chosen nodes. In the
// fleet, the resources of all replicas in given count as free before the call and as taken after it.
func (r *revocation) revoke(given []preemptibleReplica, chosen []domain.Name, need domain.Need) {
	var revoked []preemptibleReplica
	for _, g := range given {
		node := &r.fleet.nodes[r.fleet.index[g.replica.Node]]
		r.fleet.take([]domain.Name{g.replica.Node}, g.resources)
		if slices.Contains(chosen, g.replica.Node) && !node.fits(need.Resources) {
			r.fleet.release(g.replica.Node, g.resources)
			revoked = append(revoked, g)
		}
	}
	for _, g := range revoked {
		r.fleet.take([]domain.Name{g.replica.Node}, g.resources)
		reason := "revoked: the capacity is needed for another replica: " + need.String()
		if g.above == domain.AboveMinimum {
			reason = "preempted: the capacity is needed for a deployment below its minReplicaCount: " + need.String()
		}
		g.of.plan.add(g.of.intend(domain.RemoveReplica{ID: g.replica.ID, Reason: reason, Above: g.above}))
		r.forget(g.of, g.replica.ID)
	}
}
