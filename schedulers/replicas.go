package schedulers

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// Defaults of Replicas, and the pauses before a replica that broke is replaced:
// the first, doubled with each failure in a row, up to the longest.
const (
	PlaceWithin = 10 * time.Minute
	KeepDeleted = 30 * 24 * time.Hour

	firstBackoff   = time.Second
	longestBackoff = 5 * time.Minute
)

// Replicas keeps as many replicas of each deployment as it wants:
//
//  1. a replica whose node is lost, or no longer holds it, is removed
//  2. surplus goes: those not ready first, then the newest
//  3. settings that changed are rolled out with one replica more than wanted;
//     where there is no room for that, one is removed to make it
//  4. what is missing is placed, the oldest deployment first, if possible each
//     replica on a node that holds none of its deployment's
//  5. a deployment that began or changed settles once it has what it needs,
//     and one that began fails when replicas keep failing or find no place
//
// A deployment that is being deleted loses its replicas and is then DELETED.
type Replicas struct {
	Placement   Placement     // nil is BestFit
	PlaceWithin time.Duration // how long a new deployment may wait for a place; 0 is the constant of that name
	KeepDeleted time.Duration // how long a deleted one can be undeleted; 0 is the constant of that name
}

// Name implements Scheduler.
func (Replicas) Name() string { return "replicas" }

// Plan implements Scheduler.
func (s Replicas) Plan(v *projections.View, now time.Time) Plan {
	var plan Plan
	fleet := fleetOf(v)
	rows := slices.SortedStableFunc(v.Deployments.All(), func(a, b *projections.Row[domain.Deployment]) int {
		return cmp.Or(a.CreateTime.Compare(b.CreateTime), cmp.Compare(a.Name, b.Name))
	})
	for _, row := range rows {
		d := deployment{Deployment: &row.State, name: row.Name, plan: &plan, fleet: fleet, now: now}
		switch {
		case d.State == domain.DeploymentDeletingState:
			d.drain(cmp.Or(s.KeepDeleted, KeepDeleted))
		case d.Live():
			d.sort()
			s.keep(v, d)
		}
	}
	return plan
}

// keep is steps 2 to 5 for one deployment.
func (s Replicas) keep(v *projections.View, d deployment) {
	due := d.Since.Add(cmp.Or(s.PlaceWithin, PlaceWithin))
	if d.State == domain.DeploymentCreatingState {
		if d.Failures >= domain.MaxReplicaFailures {
			d.fail(domain.Status{Code: d.Status.Code, Message: fmt.Sprintf("%d replicas in a row failed to start, the last: %s", d.Failures, d.Status.Message)})
			return
		}
		if fault := d.model(v); fault != nil {
			if fault.Code == domain.NotFound {
				due = d.now
			}
			d.failAt(due, domain.StatusOf(fault))
			return
		}
	}
	if lost := d.lost(v); lost != "" {
		d.plan.add(d.intend(domain.FailDeployment{Status: domain.StatusOf(domain.Errorf(domain.NotFound, "%s", lost)), Lost: true}))
		return
	}
	d.trim()
	d.settle()
	if !d.place(placement(s.Placement), v.NeedOf(d.Deployment)) && d.State == domain.DeploymentCreatingState && len(d.current) < d.least() {
		d.failAt(due, domain.StatusOf(domain.Errorf(domain.ResourceExhausted, "no place was found for a replica: %s", v.Feasibility(v.NeedOf(d.Deployment)))))
	}
}

// deployment is one deployment while it is being planned for.
type deployment struct {
	*domain.Deployment // shared with the view: do not change
	name               domain.Name
	plan               *Plan
	fleet              *fleet
	now                time.Time

	current, old []domain.Replica     // that are alive: of the newest settings, and of others
	homes        map[domain.Name]bool // nodes that hold a current one
}

func (d *deployment) intend(cmd domain.Command[domain.Deployment]) domain.Intent {
	return domain.Intend(domain.Deployments, d.name, cmd)
}

func (d *deployment) remove(r domain.Replica, reason string) {
	d.plan.add(d.intend(domain.RemoveReplica{ID: r.ID, Reason: reason}))
}

// least is how many ready replicas make the deployment READY.
func (d *deployment) least() int { return min(d.MinReplicaCount, d.DesiredReplicas) }

// drain removes every replica, and finishes once no node holds one.
func (d *deployment) drain(keep time.Duration) {
	for _, r := range d.Ordered() {
		d.remove(r, "the deployment is being deleted")
	}
	if len(d.Replicas) == 0 && d.fleet.holds[d.name] == 0 {
		d.plan.add(d.intend(domain.FinishDeletion{Keep: keep}))
	}
}

// sort tells the replicas apart, and removes those that are dead.
func (d *deployment) sort() {
	d.homes = map[domain.Name]bool{}
	for _, r := range d.Ordered() {
		_, ready := d.fleet.index[r.Node]
		switch {
		case !ready:
			d.remove(r, fmt.Sprintf("node %s was lost", r.Node.ID()))
		case !d.fleet.has(r.Node, domain.ReplicaAllocationID(d.name, r.ID)):
			d.remove(r, fmt.Sprintf("node %s no longer holds it", r.Node.ID()))
		case r.Generation == d.Generation:
			d.current = append(d.current, r)
			d.homes[r.Node] = true
		default:
			d.old = append(d.old, r)
		}
	}
}

// trim removes surplus replicas, and old ones whose successors are ready.
func (d *deployment) trim() {
	d.current = d.keepOnly(d.current, d.DesiredReplicas, "fewer replicas are wanted")
	d.old = d.keepOnly(d.old, max(0, d.DesiredReplicas-ready(d.current)), "newer settings have taken over")
}

func (d *deployment) keepOnly(replicas []domain.Replica, n int, reason string) []domain.Replica {
	dispensable := dispensable(replicas)
	extra := max(0, len(replicas)-n)
	for _, r := range dispensable[:extra] {
		d.remove(r, reason)
	}
	return dispensable[extra:]
}

// dispensable is the replicas in the order in which they can be done without:
// those not ready first, and the newest first among equals.
func dispensable(replicas []domain.Replica) []domain.Replica {
	order := slices.Clone(replicas)
	slices.SortStableFunc(order, func(a, b domain.Replica) int {
		return cmp.Or(ready([]domain.Replica{a})-ready([]domain.Replica{b}), domain.ReplicaNumber(b.ID)-domain.ReplicaNumber(a.ID))
	})
	return order
}

func ready(replicas []domain.Replica) int {
	n := 0
	for _, r := range replicas {
		if r.State == domain.ReplicaReady {
			n++
		}
	}
	return n
}

// place places what is missing; false when there is no room for it. While old
// replicas are there it keeps to one more than wanted.
func (d *deployment) place(placement Placement, need domain.Need) bool {
	missing, most := d.DesiredReplicas-len(d.current), d.DesiredReplicas
	if len(d.old) > 0 {
		most++
	}
	wanted := min(missing, most-len(d.current)-len(d.old))
	if wanted > 0 && d.Failures > 0 {
		if due := d.FailedTime.Add(backoff(d.Failures)); d.now.Before(due) {
			d.plan.lookAgain(due)
			return true
		}
	}
	for i := range max(0, wanted) {
		chosen, ok := d.apart(placement, need)
		if !ok {
			d.makeRoom(placement, need)
			return false
		}
		d.fleet.take(chosen, need.Takes)
		d.homes[chosen[0]] = true
		id := fmt.Sprintf("r%d", d.ReplicaSeq+1+i)
		allocation := domain.Allocation{ID: domain.ReplicaAllocationID(d.name, id), For: d.name, Replica: id, Takes: need.Takes}
		d.plan.reserve([]domain.Intent{d.fleet.allocate(chosen[0], allocation)},
			d.intend(domain.PlaceReplica{ID: id, Node: chosen[0], Generation: d.Generation}), abandonment(allocation, "it could not be placed"))
	}
	return true
}

// apart finds a place for one replica, if there is one on a node that holds
// none of this deployment's: so that no node takes all of them with it. Nodes
// with free accelerators are not taken for that by what needs none.
func (d *deployment) apart(placement Placement, need domain.Need) ([]domain.Name, bool) {
	others := make([]Candidate, 0, len(d.fleet.nodes))
	for _, node := range d.fleet.nodes {
		if !d.homes[node.Name] && (devices(need.Takes) > 0 || devices(node.Free) == 0) {
			others = append(others, node)
		}
	}
	if chosen, ok := placement.Place(others, need); ok {
		return chosen, true
	}
	return placement.Place(d.fleet.nodes, need)
}

// makeRoom removes one old replica in whose place a new one fits, unless fewer
// than wanted are running or a new one is still starting.
func (d *deployment) makeRoom(placement Placement, need domain.Need) {
	if len(d.current)+len(d.old) < d.DesiredReplicas || ready(d.current) < len(d.current) {
		return
	}
	for _, r := range dispensable(d.old) {
		if _, fits := placement.Place(d.fleet.without(r.Node, domain.ReplicaAllocationID(d.name, r.ID)), need); fits {
			d.remove(r, "it makes room for one with newer settings")
			return
		}
	}
}

// backoff is how long after its last failure a deployment's replica is placed
// again.
func backoff(failures int) time.Duration {
	return min(firstBackoff<<min(failures-1, 20), longestBackoff)
}

// settle records that the deployment has what it needs.
func (d *deployment) settle() {
	if d.State != domain.DeploymentReadyState && len(d.old) == 0 && ready(d.current) >= d.least() {
		d.plan.add(d.intend(domain.SettleDeployment{Generation: d.Generation}))
	}
}

// model is why the deployment's model cannot be loaded now, or nil.
func (d *deployment) model(v *projections.View) *domain.Error {
	c := inputs{view: v, account: d.name.Account()}
	if m := c.model("baseModel", d.BaseModel); m != nil && m.Kind == domain.PEFTAddon {
		c.model("baseModel", m.BaseModel)
	}
	if len(c.wrong) > 0 {
		return c.wrong[0]
	}
	return nil
}

func (d *deployment) fail(status domain.Status) {
	d.plan.add(d.intend(domain.FailDeployment{Status: status}))
}

// failAt fails the deployment once a time has come.
func (d *deployment) failAt(due time.Time, status domain.Status) {
	if d.now.Before(due) {
		d.plan.lookAgain(due)
		return
	}
	d.fail(status)
}
