package schedulers

import (
	"fmt"
	"slices"
	"time"

	"anneal/domain"
	"anneal/projections"
)

const (
	// RebalanceAfter is how long a node must be registered before replicas are moved to it, so that
	// nothing is moved to a node that is often lost.
	RebalanceAfter = 2 * time.Minute
	// RebalanceEvery is the minimum time between the starts of two moves of replicas.
	RebalanceEvery = time.Minute
)

// rebalance moves one replica from a node with several replicas of its deployment to a node without
// one, on which the replica would be placed now. This restores the spread after a node was lost.
// Replicas with accelerators move only where fragmentation does not increase. Each move leaves
// fewer replicas that share a node, so moves come to an end. The replica is removed when its
// replacement is ready. Only one replica moves at a time, RebalanceEvery after the previous move at
// the earliest, and none while a replica or job waits for capacity or a deployment changes.
func rebalance(v *projections.View, deployments []*deployment) {
	latest, moving := lastMove(deployments)
	if moving || slices.ContainsFunc(deployments, func(d *deployment) bool {
		return d.short || !d.Short.Desired.IsZero()
	}) {
		return
	}
	for _, d := range deployments {
		r, found := d.sharingNode()
		if !found {
			continue
		}
		to, ok := d.betterNode(v, r)
		if !ok {
			continue
		}
		if len(waitingJobs(v, d.fleet)) > 0 {
			return
		}
		due := later(latest.Add(RebalanceEvery), d.fleet.registered[to.name].Add(RebalanceAfter))
		if d.now.Before(due) {
			d.plan.planAgainAt(due)
			continue
		}
		d.move(r, to, d.need(v))
		return
	}
}

// sharingNode returns the newest replica that shares its node with another replica of the
// deployment; false if there is none. It also returns false if the plan changes the deployment in
// another way, if the last replica failed, or with the strategy PACK, which lets replicas share
// nodes.
func (d *deployment) sharingNode() (domain.Replica, bool) {
	if d.spread.strategy == domain.PlacementPack || !settled(d) {
		return domain.Replica{}, false
	}
	on := map[domain.Name]int{}
	for _, r := range d.current {
		on[r.Node]++
	}
	for _, r := range removalOrder(d.current) {
		if on[r.Node] > 1 {
			return r, true
		}
	}
	return domain.Replica{}, false
}

// settled reports whether the deployment has as many ready replicas as desired, the last one did
// not fail, and the plan does not change it.
func settled(d *deployment) bool {
	return d.State == domain.DeploymentReadyState && len(d.old) == 0 && d.planned == 0 &&
		len(d.current) == d.DesiredReplicas && ready(d.current) == len(d.current) && d.Failures == 0
}

// betterNode returns the node on which the replica r would be placed now. It returns false if this
// node has a replica of the deployment.
func (d *deployment) betterNode(v *projections.View, r domain.Replica) (chosenNode, bool) {
	a, _ := d.fleet.allocation(r.Node, domain.ReplicaAllocationID(d.name, r.ID))
	d.fleet.release(r.Node, a.Resources)
	d.spread.add(d.fleet.index[r.Node], -1)
	chosen, ok := d.fleet.place(v, d.need(v), d.spread)
	d.spread.add(d.fleet.index[r.Node], 1)
	d.fleet.take([]domain.Name{r.Node}, a.Resources)
	if !ok || slices.ContainsFunc(d.current, func(other domain.Replica) bool { return other.Node == chosen[0].name }) {
		return chosenNode{}, false
	}
	return chosen[0], true
}

// move plans a new replica that replaces the replica r on another node, target.
func (d *deployment) move(r domain.Replica, target chosenNode, need domain.Need) {
	reason := fmt.Sprintf("replica %s shares node %s with another replica of the deployment, and node %s has none", r.ID,
		r.Node, target.name)
	d.placeOn(target, need, domain.PlaceReplica{ID: d.NextReplica(), Replaces: r.ID, Reason: reason})
}
