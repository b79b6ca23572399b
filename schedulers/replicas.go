package schedulers

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// Defaults of Replicas, and limits of the exponential backoff before a failed replica is replaced.
const (
	PlaceWithin = 10 * time.Minute
	KeepDeleted = 30 * 24 * time.Hour

	minBackoff = time.Second
	maxBackoff = 5 * time.Minute
)

// Replicas reconciles the replicas of each deployment with its desired count and settings:
//
//  1. a replica is removed when its node is lost or its allocation was released
//  2. surplus replicas are removed: those that are not ready first, then the newest
//  3. changed settings are rolled out, and replicas leave nodes that are being drained. Meanwhile the
//     deployment may have one replica above the desired count. If a rollout has no capacity for that
//     replica, and no revocable replica can be removed for it, one old replica is removed first
//  4. missing replicas are placed, in the order of the queue of jobs, on the nodes where they leave the
//     fewest devices that no other work can use; of equal nodes, on one in the failure domain with the
//     fewest replicas of the deployment, so that its loss does not stop all replicas. The placement
//     strategies PACK and SPREAD of a deployment change this: see spread. Replicas within
//     minReplicaCount come first. Replicas above minReplicaCount are removed for them, and do not use
//     capacity that was freed by preemption for a job. Replicas above maxReplicaCount (revocable
//     replicas) are placed only in capacity for which no other replica and no job waits, and are
//     removed when one does. The scheduler Jobs decides which replicas are removed for jobs
//  5. when nothing waits, one replica at a time is moved from a node with several replicas of its
//     deployment to a node without one: see rebalance. When work waits for accelerators that are free,
//     but scattered over nodes, one replica at a time is moved so that the work fits: see defragment
//  6. a new or updated deployment becomes READY once it has enough ready replicas; a new one fails
//     when its replicas keep failing or no node has capacity
//
// A deployment that is being deleted loses its replicas and is then DELETED.
type Replicas struct {
	// PlaceWithin is the time after which a new deployment without capacity fails. 0 stands for the
	// constant.
	PlaceWithin time.Duration
	// KeepDeleted is how long a deleted deployment can be undeleted. 0 stands for the constant.
	KeepDeleted time.Duration
	// DefragmentAfter is how long work waits before replicas move for it. 0 stands for the constant.
	DefragmentAfter time.Duration
}

// Name implements Scheduler.
func (Replicas) Name() string { return "replicas" }

// Plan implements Scheduler.
func (s Replicas) Plan(v *projections.View, now time.Time) Plan {
	var plan Plan
	if v.Deployments.Len() == 0 {
		return plan
	}
	fleet := fleetOf(v)
	rows := slices.SortedStableFunc(v.Deployments.All(), func(a, b *projections.Row[domain.Deployment]) int {
		return cmp.Or(a.CreateTime.Compare(b.CreateTime), cmp.Compare(a.Name, b.Name))
	})
	var placed []*deployment
	for _, row := range rows {
		d := &deployment{Deployment: &row.State, name: row.Name, plan: &plan, fleet: fleet, now: now}
		switch {
		case d.State == domain.DeploymentDeletingState:
			d.drain(cmp.Or(s.KeepDeleted, KeepDeleted))
		case d.Live():
			d.classify()
			if s.reconcile(v, d) {
				placed = append(placed, d)
			}
		}
	}
	for _, d := range byShortage(placed, func(d *deployment) time.Time { return d.Short.Minimum }) {
		d.short = !d.placeMinimum(v, d.need(v))
	}
	if slices.ContainsFunc(placed, func(d *deployment) bool {
		return d.short || missingReplicas(d) > 0 || allowsRevocable(d)
	}) {
		withholdPromised(v, fleet) // only if replicas may be placed, because it is slow: it looks at all jobs
	}
	for _, d := range inQueueOrder(v, placed, now) {
		d.short = d.short || !d.place(v, d.need(v))
		if d.short && d.State == domain.DeploymentCreatingState && d.belowMinimum() {
			d.failAt(s.placeDue(d), domain.StatusOf(domain.Errorf(domain.ResourceExhausted,
				"no node has capacity: %s", v.Feasibility(d.need(v)))))
		}
	}
	shareCapacity(v, fleet, placed)
	rebalance(v, placed)
	defragment(v, placed, &plan, cmp.Or(s.DefragmentAfter, DefragmentAfter))
	return plan
}

// placeDue returns when a new deployment fails for which no node has capacity.
func (s Replicas) placeDue(d *deployment) time.Time {
	return d.Since.Add(cmp.Or(s.PlaceWithin, PlaceWithin))
}

// reconcile performs steps 2, 3 and 6 of Replicas for one deployment. It returns false when the
// deployment gets no replicas.
func (s Replicas) reconcile(v *projections.View, d *deployment) bool {
	due := s.placeDue(d)
	if d.State == domain.DeploymentCreatingState {
		if d.Failures >= domain.MaxReplicaFailures {
			d.fail(domain.Status{Code: d.Status.Code, Message: fmt.Sprintf("%d consecutive replicas failed to start; "+
				"the last error: %s", d.Failures, d.Status.Message)})
			return false
		}
		if failure := d.model(v); failure != nil {
			if failure.Code == domain.NotFound {
				due = d.now
			}
			d.failAt(due, domain.StatusOf(failure))
			return false
		}
	}
	if lost := d.lost(v); lost != "" {
		d.plan.add(d.intend(domain.FailDeployment{Status: domain.StatusOf(domain.Errorf(domain.NotFound, "%s", lost)),
			Lost: true}))
		return false
	}
	d.trim()
	d.markReady()
	return true
}

// A deployment holds the state of a plan of Replicas for one deployment.
type deployment struct {
	*domain.Deployment // shared with the view: do not change
	name               domain.Name
	plan               *Plan
	fleet              *fleet
	now                time.Time

	current []domain.Replica // replicas on available nodes with the newest settings
	// replicas that must be replaced: with older settings, on a node that is being drained, or
	// being moved
	old     []domain.Replica
	spread  *spread           // number of replicas in current by failure domain
	moving  map[string]string // why a replica in old is being moved, by replica ID
	planned int               // number of new replicas of the deployment in the plan
	short   bool              // a replica within maxReplicaCount is missing, and no node has capacity for it
	needs   *domain.Need      // cached result of the method need; nil before its first call
}

// need returns what one replica of the deployment requires of the fleet.
func (d *deployment) need(v *projections.View) domain.Need {
	if d.needs == nil {
		need := projections.ForAccount(v, d.name.Account(), v.NeedOf(d.Deployment))
		d.needs = &need
	}
	return *d.needs
}

func (d *deployment) intend(cmd domain.Command[domain.Deployment]) domain.Intent {
	return domain.Intend(domain.Deployments, d.name, cmd)
}

func (d *deployment) remove(r domain.Replica, reason string) {
	d.plan.add(d.intend(domain.RemoveReplica{ID: r.ID, Reason: reason}))
}

// minReady returns how many replicas must be ready before the deployment becomes READY.
func (d *deployment) minReady() int { return min(d.MinReplicaCount, d.DesiredReplicas) }

// drain removes every replica, and finishes the deletion of the deployment once the allocations of
// all replicas are released.
func (d *deployment) drain(keep time.Duration) {
	for _, r := range d.Ordered() {
		d.remove(r, "the deployment is being deleted")
	}
	if len(d.Replicas) == 0 && d.fleet.holds[d.name] == 0 {
		d.plan.add(d.intend(domain.FinishDeletion{Keep: keep}))
	}
}

// classify sets current, old and spread, and plans to remove replicas that were lost.
func (d *deployment) classify() {
	d.spread, d.moving = d.fleet.newSpread(d.Strategy()), map[string]string{}
	for _, r := range d.Ordered() {
		_, ready := d.fleet.index[r.Node]
		if _, replaces := d.Replicas[r.Replaces]; replaces && ready && r.Generation == d.Generation &&
			d.fleet.drains[r.Node] == "" {
			d.moving[r.Replaces] = "moved to node " + string(r.Node)
		}
	}
	for _, r := range d.Ordered() {
		_, ready := d.fleet.index[r.Node]
		switch {
		case !ready:
			d.remove(r, fmt.Sprintf("node %s was lost", r.Node))
		case !d.fleet.has(r.Node, domain.ReplicaAllocationID(d.name, r.ID)):
			d.remove(r, fmt.Sprintf("the allocation on node %s was released", r.Node))
		case r.Generation == d.Generation && d.fleet.drains[r.Node] == "" && d.moving[r.ID] == "":
			d.current = append(d.current, r)
			d.spread.add(d.fleet.index[r.Node], 1)
		default:
			d.old = append(d.old, r)
		}
	}
}

// trim plans to remove surplus replicas, and old replicas whose replacements are ready.
func (d *deployment) trim() {
	d.current = d.keepOnly(d.current, d.DesiredReplicas, "scaled down", "")
	// the bound keeps an old replica if its replacement was removed after the view
	d.old = d.keepOnly(d.old, max(0, d.DesiredReplicas-ready(d.current)), "replaced by replicas with newer settings",
		domain.AboveMinimum)
}

func (d *deployment) keepOnly(replicas []domain.Replica, n int, reason string, above domain.ReplicaBound,
) []domain.Replica {
	removalOrder := removalOrder(replicas)
	extra := max(0, len(replicas)-n)
	if extra > 0 && d.spread.strategy == domain.PlacementSpread {
		removalOrder = d.spread.thin(d.fleet, removalOrder)
	}
	for _, r := range removalOrder[:extra] {
		d.plan.add(d.intend(domain.RemoveReplica{ID: r.ID, Reason: cmp.Or(d.fleet.drains[r.Node], d.moving[r.ID], reason),
			Above: above}))
	}
	return removalOrder[extra:]
}

// removalOrder returns the replicas in the order in which they are removed: those that are not
// ready first, and then the newest first.
func removalOrder(replicas []domain.Replica) []domain.Replica {
	order := slices.Clone(replicas)
	slices.SortStableFunc(order, func(a, b domain.Replica) int {
		return cmp.Or(readiness(a)-readiness(b), domain.ReplicaNumber(b.ID)-domain.ReplicaNumber(a.ID))
	})
	return order
}

// readiness returns 1 for a ready replica, and 0 for a replica that is not ready.
func readiness(r domain.Replica) int { return ready([]domain.Replica{r}) }

func ready(replicas []domain.Replica) int {
	n := 0
	for _, r := range replicas {
		if r.State == domain.ReplicaReady {
			n++
		}
	}
	return n
}

// placeMinimum plans the replicas that the deployment still needs for its minimum. It returns false
// when no node has capacity for them. While a failed replica must not be replaced yet, its capacity
// is withheld from other replicas.
func (d *deployment) placeMinimum(v *projections.View, need domain.Need) bool {
	missing := d.minReady() - len(d.current) - len(d.old)
	if !d.backingOff() {
		return d.placeMore(v, need, min(missing, d.placeable()))
	}
	for range max(0, missing) {
		d.fleet.withhold(v, need, d.spread)
	}
	return true
}

// belowMinimum reports whether the deployment still has fewer replicas than its minimum after the
// plan.
func (d *deployment) belowMinimum() bool {
	return len(d.current)+len(d.old)+d.planned < d.minReady()
}

// place plans the missing replicas that placeMinimum has not planned, up to maxReplicaCount. It
// returns false when no node has capacity for them. While there are old replicas, the deployment
// has at most one replica more than desired.
func (d *deployment) place(v *projections.View, need domain.Need) bool {
	return d.placeMore(v, need, missingReplicas(d))
}

// missingReplicas returns how many replicas within maxReplicaCount the plan may still add; 0 or a
// negative number if none.
func missingReplicas(d *deployment) int {
	return min(d.nonRevocable()-len(d.current)-d.planned, d.placeable())
}

// backingOff reports whether a failed replica must not be replaced yet: see backoff.
func (d *deployment) backingOff() bool {
	return d.Failures > 0 && d.now.Before(d.FailedTime.Add(backoff(d.Failures)))
}

// placeable returns how many replicas, including revocable ones, the plan may still add. While
// there are old replicas, the deployment may have one more than desired.
func (d *deployment) placeable() int {
	if len(d.old) == 0 {
		return d.DesiredReplicas
	}
	n := len(d.current) + len(d.old)
	return max(d.nonRevocable(), min(d.DesiredReplicas, n)) + 1 - n - d.planned
}

// placeMore plans as many new replicas as wanted. It returns false when no node has capacity for
// one of them.
func (d *deployment) placeMore(v *projections.View, need domain.Need, wanted int) bool {
	if wanted > 0 && d.backingOff() {
		d.plan.planAgainAt(d.FailedTime.Add(backoff(d.Failures)))
		return true
	}
	for range max(0, wanted) {
		chosen, ok := d.fleet.place(v, need, d.spread)
		if !ok {
			return false
		}
		d.fleet.takeChosen(chosen, need)
		d.spread.add(d.fleet.index[chosen[0].name], 1)
		d.planned++
		d.placeOn(chosen[0], need, domain.PlaceReplica{ID: fmt.Sprintf("r%d", d.ReplicaSeq+d.planned)})
	}
	return true
}

// placeOn adds the step that places a replica on a node.
func (d *deployment) placeOn(node chosenNode, need domain.Need, replica domain.PlaceReplica) {
	replica.Node, replica.Generation = node.name, d.Generation
	allocation := domain.Allocation{ID: domain.ReplicaAllocationID(d.name, replica.ID), For: d.name,
		Replica: replica.ID, Resources: node.resources(need)}
	d.plan.reserve([]domain.Intent{d.fleet.allocate(node, allocation)}, d.intend(replica),
		abandonment(allocation, "the replica could not be placed"))
}

// replaceOld plans to remove one old replica if a new replica then fits on its node, unless fewer
// replicas than desired are running, or a new replica is still starting. It returns the ID of the
// removed replica; "" if it removes none.
func (d *deployment) replaceOld(need domain.Need) string {
	if len(d.current)+len(d.old) < d.nonRevocable() || ready(d.current) < len(d.current) {
		return ""
	}
	for _, r := range removalOrder(d.old) {
		if d.fleet.fitsWithout(r.Node, domain.ReplicaAllocationID(d.name, r.ID), need) {
			d.remove(r, "replaced by a replica with newer settings")
			return r.ID
		}
	}
	return ""
}

// backoff returns how long after the last failure of a deployment's replica the next one is placed.
// failures is the number of consecutive failures.
func backoff(failures int) time.Duration {
	return min(minBackoff<<min(failures-1, 20), maxBackoff)
}

// rollingOut reports whether the deployment still has replicas with older settings.
func (d *deployment) rollingOut() bool { return len(d.old) > len(d.leaving()) }

// leaving returns the replicas with the newest settings that are being moved or are on nodes that
// are being drained.
func (d *deployment) leaving() (replicas []domain.Replica) {
	for _, r := range d.old {
		if r.Generation == d.Generation {
			replicas = append(replicas, r)
		}
	}
	return replicas
}

// markReady plans to make the deployment READY when enough replicas with the newest settings are
// ready and no replica with older settings is left.
func (d *deployment) markReady() {
	leaving := d.leaving()
	if d.State != domain.DeploymentReadyState && len(d.old) == len(leaving) &&
		ready(d.current)+ready(leaving) >= d.minReady() {
		d.plan.add(d.intend(domain.MarkDeploymentReady{Generation: d.Generation}))
	}
}

// model returns the reason why replicas cannot load the deployment's model; nil when none is known.
func (d *deployment) model(v *projections.View) *domain.Error {
	c := inputs{view: v, account: d.name.Account()}
	if m := c.model("baseModel", d.BaseModel); m != nil && m.Kind == domain.PEFTAddon {
		c.model("baseModel", m.BaseModel)
	}
	if len(c.errors) > 0 {
		return c.errors[0]
	}
	return nil
}

func (d *deployment) fail(status domain.Status) {
	d.plan.add(d.intend(domain.FailDeployment{Status: status}))
}

// failAt plans to fail the deployment with the status if the time due has been reached; otherwise
// it requests another plan at due.
func (d *deployment) failAt(due time.Time, status domain.Status) {
	if d.now.Before(due) {
		d.plan.planAgainAt(due)
		return
	}
	d.fail(status)
}
