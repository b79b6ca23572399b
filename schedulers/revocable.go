package schedulers

import (
	"cmp"
	"slices"

	"anneal/domain"
	"anneal/projections"
)

// nonRevocable returns how many replicas the deployment should have without revocable ones: at most
// maxReplicaCount. During a rollout, the result includes revocable replicas that exist already, so
// that the rollout keeps them. A drain does not keep them.
func (d *deployment) nonRevocable() int {
	if n := len(d.current) + len(d.old); d.rollingOut() {
		return min(d.DesiredReplicas, max(d.MaxReplicas(), n))
	}
	return min(d.DesiredReplicas, d.MaxReplicas())
}

// revocable returns the replicas above maxReplicaCount, in the order in which they are removed.
func (d *deployment) revocable() []domain.Replica {
	n := len(d.current) + len(d.old)
	extra := n - d.MaxReplicas()
	if d.rollingOut() || n > d.DesiredReplicas {
		// during a rollout or a drain, the deployment may have one replica above the desired
		// number; do not count it
		extra--
	}
	return firstToRemove(d, extra)
}

// allowsRevocable reports whether the deployment may have revocable replicas.
func allowsRevocable(d *deployment) bool { return d.MaxWithRevocable() > d.MaxReplicas() }

// firstToRemove returns the first n of the deployment's replicas in the order in which they are
// removed; none if n is negative.
func firstToRemove(d *deployment, n int) []domain.Replica {
	return append(removalOrder(d.old), removalOrder(d.current)...)[:max(0, n)]
}

// A revocation plans to remove revocable replicas when replicas within maxReplicaCount wait for
// capacity, and replicas above minReplicaCount when replicas within minReplicaCount wait.
type revocation struct {
	view        *projections.View
	fleet       *fleet
	preemptible []preemptibleReplica
}

// A preemptibleReplica is a replica that may be removed for other replicas, and the resources that
// are allocated to it.
type preemptibleReplica struct {
	of        *deployment
	replica   domain.Replica
	resources domain.Resources
	// bound that the replica is above; with AboveMinimum, it is removed only for replicas within a
	// minReplicaCount
	above domain.ReplicaBound
}

// shareCapacity plans to remove revocable replicas for other replicas that wait for capacity, those
// of the newest deployment first. It then places revocable replicas in the capacity for which no
// other replica and no job waits.
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
	// count them as free: they are released before the allocations of replicas that this plan
	// removes
	for _, a := range over {
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

// An endedAllocation is the allocation of an attempt that has ended or of a replica that was
// removed. It is about to be released.
type endedAllocation struct {
	key       allocationKey
	resources domain.Resources
}

// endedAllocations returns the allocations on READY nodes that are about to be released, ordered by
// node and ID.
func (f *fleet) endedAllocations(v *projections.View) (over []endedAllocation) {
	for key, a := range f.allocations() {
		if reason, _ := orphaned(v, key.node, a); reason != "" {
			over = append(over, endedAllocation{key, a.Resources})
		}
	}
	slices.SortFunc(over, func(a, b endedAllocation) int {
		return cmp.Or(cmp.Compare(a.key.node, b.key.node), cmp.Compare(a.key.id, b.key.id))
	})
	return over
}

// waitingJobs returns the needs of the jobs that wait for capacity, the oldest job first.
func waitingJobs(v *projections.View, fleet *fleet) (needs []domain.Need) {
	for _, j := range heldJobs(v) {
		needs = append(needs, fleet.needOf(v, j.Name, j.spec()))
	}
	return needs
}

// heldJobs returns the oldest jobs that wait for capacity, at most maxSteps, the oldest first.
func heldJobs(v *projections.View) (waiting []job) {
	for j := range jobs(v) {
		if j.Life.State == domain.JobPendingState && j.Life.HeldForCapacity() {
			waiting = append(waiting, j)
		}
	}
	slices.SortStableFunc(waiting, func(a, b job) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	return waiting[:min(len(waiting), maxSteps)]
}

// collectPreemptible sets r.preemptible: all revocable replicas and, if a deployment lacks replicas
// within its minReplicaCount, the replicas above minReplicaCount of other deployments.
func (r *revocation) collectPreemptible(deployments []*deployment) {
	var elastic []preemptibleReplica
	below := slices.ContainsFunc(deployments, func(d *deployment) bool { return d.short && d.belowMinimum() })
	for _, d := range slices.Backward(deployments) {
		revocable := len(d.revocable())
		for i, replica := range d.aboveMinimum() {
			a, ok := r.fleet.allocation(replica.Node, domain.ReplicaAllocationID(d.name, replica.ID))
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

// reserve withholds the capacity for one more replica of a deployment, whose need is given, from
// revocable replicas. If there is not enough, it plans to remove preemptible replicas from nodes on
// which the replica then fits, and no others. It does not remove replicas of the deployment itself:
// see replaceOld. It returns false when the replica fits on no node.
func (r *revocation) reserve(need domain.Need, owner *deployment) bool {
	if r.fleet.withhold(r.view, need, nil) {
		return true
	}
	var given []preemptibleReplica
	for _, l := range r.preemptible {
		if l.of == owner || l.above == domain.AboveMinimum && !owner.belowMinimum() {
			continue
		}
		given = append(given, l)
		r.fleet.release(l.replica.Node, l.resources)
		if chosen, fits := r.fleet.place(r.view, need, nil); fits {
			r.revoke(given, namesOf(chosen), need)
			// deduct the resources: they are not free until the removed replicas have ended
			r.fleet.takeChosen(chosen, need)
			return true
		}
	}
	for _, l := range given {
		r.fleet.take([]domain.Name{l.replica.Node}, l.resources)
	}
	return false
}

// replaceOld plans to remove one old replica of a deployment in a rollout: see
// deployment.replaceOld. The removed replica is not preemptible any more.
func (r *revocation) replaceOld(d *deployment) {
	r.forget(d, d.replaceOld(d.need(r.view)))
}

// forget removes a replica from r.preemptible.
func (r *revocation) forget(d *deployment, id string) {
	r.preemptible = slices.DeleteFunc(r.preemptible, func(p preemptibleReplica) bool {
		return p.of == d && p.replica.ID == id
	})
}

// revoke plans to remove those replicas in given whose resources the need requires on the chosen
// nodes. In the fleet, the resources of all replicas in given must be free before the call, and are
// taken after it.
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
