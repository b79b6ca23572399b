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
func (d *deployment) firm() int {
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
	return append(dispensable(d.old), dispensable(d.current)...)[:max(0, extra)]
}

// revocation removes revocable replicas when replicas within maxReplicaCount or jobs wait for their
// capacity.
type revocation struct {
	view  *projections.View
	fleet *fleet
	lent  []lent
}

// lent is a revocable replica and the resources that are allocated to it.
type lent struct {
	of        *deployment
	replica   domain.Replica
	resources domain.Resources
}

// share revokes replicas for the replicas and jobs that wait for capacity, and then places
// revocable replicas in the capacity that is left. The replicas of the newest deployment are
// revoked first.
func share(v *projections.View, fleet *fleet, deployments []*deployment) {
	lends := func(d *deployment) bool { return d.Ceiling() > d.MaxReplicas() }
	if !slices.ContainsFunc(deployments, lends) {
		for _, d := range deployments {
			if d.short {
				d.replaceOld(d.need(v))
			}
		}
		return
	}
	r := revocation{view: v, fleet: fleet}
	for _, d := range slices.Backward(deployments) {
		for _, replica := range d.revocable() {
			if a, ok := fleet.placed[allocationKey{replica.Node, domain.ReplicaAllocationID(d.name, replica.ID)}]; ok {
				r.lent = append(r.lent, lent{d, replica, a.Resources})
			}
		}
	}
	over := fleet.over(v)
	for _, a := range over { // they are released earlier than the allocation of a replica that is revoked now
		fleet.give(a.key.node, a.resources)
	}
	for _, d := range deployments {
		if d.short && !r.reserve(d.need(v), d) {
			r.replaceOld(d)
		}
	}
	for _, need := range waitingJobs(v, fleet) {
		r.reserve(need, nil)
	}
	for _, a := range over {
		fleet.take([]domain.Name{a.key.node}, a.resources)
	}
	for _, d := range deployments {
		if lends(d) && !d.rollingOut() && !d.short {
			d.placeMore(v, d.need(v), min(d.DesiredReplicas-max(len(d.current), d.firm()), d.placeable()))
		}
	}
}

// An overAllocation is an allocation of an attempt that is over or of a replica that was removed,
// which is about to be released.
type overAllocation struct {
	key       allocationKey
	resources domain.Resources
}

// over returns the allocations on READY nodes that are about to be released, by node and ID.
func (f *fleet) over(v *projections.View) (over []overAllocation) {
	for key, a := range f.placed {
		if reason, _ := orphaned(v, key.node, a); reason != "" {
			over = append(over, overAllocation{key, a.Resources})
		}
	}
	slices.SortFunc(over, func(a, b overAllocation) int {
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

// reserve withholds capacity for a need from revocable replicas. If there is not enough, it revokes
// replicas of nodes that can then hold the need, and no others. The replicas of the deployment that
// has the need do not give way to it: see replaceOld. reserve returns false when the need does not
// fit.
func (r *revocation) reserve(need domain.Need, of *deployment) bool {
	if chosen, fits := r.fleet.place(r.view, need, nil); fits {
		r.fleet.take(namesOf(chosen), need.Resources)
		return true
	}
	var given []lent
	for _, l := range r.lent {
		if l.of == of {
			continue
		}
		given = append(given, l)
		r.fleet.give(l.replica.Node, l.resources)
		if chosen, fits := r.fleet.place(r.view, need, nil); fits {
			r.revoke(given, namesOf(chosen), need)
			r.fleet.take(namesOf(chosen), need.Resources) // not free before the replicas have ended
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
	r.lent = slices.DeleteFunc(r.lent, func(l lent) bool { return l.of == d && l.replica.ID == id })
}

// revoke removes the replicas in given whose resources the need requires on the chosen nodes. In the
// fleet, the resources of all replicas in given count as free before the call and as taken after it.
func (r *revocation) revoke(given []lent, chosen []domain.Name, need domain.Need) {
	var revoked []lent
	for _, g := range given {
		free := r.fleet.nodes[r.fleet.index[g.replica.Node]].Free
		if slices.Contains(chosen, g.replica.Node) && !need.Resources.Fits(minus(free, g.resources)) {
			revoked = append(revoked, g)
			continue
		}
		r.fleet.take([]domain.Name{g.replica.Node}, g.resources)
	}
	for _, g := range revoked {
		r.fleet.take([]domain.Name{g.replica.Node}, g.resources)
		g.of.remove(g.replica, "revoked: its capacity is needed for "+need.String())
		r.forget(g.of, g.replica.ID)
	}
}
