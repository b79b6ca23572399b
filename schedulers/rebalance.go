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
	// nothing is moved to a node that comes and goes.
	RebalanceAfter = 2 * time.Minute
	// RebalanceEvery is the minimum time between the beginnings of two moves.
	RebalanceEvery = time.Minute
)

// rebalance moves one replica, to restore the spread that was lost with a node: from a node with several
// replicas of its deployment to a node without one, on which the replica would be placed now. So replicas
// with accelerators move only where this costs no fragmentation, and each move leaves fewer replicas that
// share a node, so that moves come to an end. The replica is removed when its replacement is ready. There
// is one move at a time, none within RebalanceEvery of the previous one, and none while other work waits
// for capacity or a deployment changes.
func rebalance(v *projections.View, deployments []*deployment) {
	var latest time.Time
	for _, d := range deployments {
		if d.short || len(d.moving) > 0 || !d.Short.Desired.IsZero() {
			return
		}
		for _, r := range d.Replicas {
			a := d.fleet.placed[allocationKey{r.Node, domain.ReplicaAllocationID(d.name, r.ID)}]
			if r.Replaces != "" && a.Since.After(latest) {
				latest = a.Since
			}
		}
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

// crowded returns the newest replica that shares its node with another one of a deployment in which
// nothing else is to be done and the last replica did not fail; false without one. The strategy PACK wants
// replicas to share nodes.
func (d *deployment) sharingNode() (domain.Replica, bool) {
	if d.spread.strategy == domain.PlacementPack || d.State != domain.DeploymentReadyState || len(d.old) > 0 ||
		d.planned > 0 || len(d.current) != d.DesiredReplicas || ready(d.current) < len(d.current) || d.Failures > 0 {
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

// better returns the node on which a replica would be placed now, if no replica of the deployment is on
// this node.
func (d *deployment) betterNode(v *projections.View, r domain.Replica) (chosenNode, bool) {
	a := d.fleet.placed[allocationKey{r.Node, domain.ReplicaAllocationID(d.name, r.ID)}]
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

// move plans a replica on a node that replaces another one.
func (d *deployment) move(r domain.Replica, to chosenNode, need domain.Need) {
	reason := fmt.Sprintf("replica %s shares node %s with another replica of the deployment, and node %s has none", r.ID,
		r.Node.ID(), to.name.ID())
	d.placeOn(to, need, domain.PlaceReplica{ID: d.NextReplica(), Replaces: r.ID, Reason: reason})
}
