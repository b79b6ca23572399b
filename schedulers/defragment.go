package schedulers

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"anneal/domain"
	"anneal/projections"
	"anneal/schedulers/placement"
)

const (
	// DefragmentAfter is how long work must wait for capacity before replicas are moved for it: until then,
	// other work may end.
	DefragmentAfter = time.Minute
	// MoveAgainAfter is how long a replica stays on its node before it is moved, so that no
	// replica is moved again and again.
	MoveAgainAfter = 10 * time.Minute

	// DefragmentReason begins the reason of a replica that replaces another one for defragmentation.
	DefragmentReason = "defragmentation: "

	maxDefragmentMoves    = 16 // maximum number of moves of replicas for one job or replica that waits
	maxDefragmentNeeds    = 16 // maximum number of different needs for which one plan looks for moves
	maxDefragmentAttempts = 8  // maximum number of sets of nodes that a plan tries for one need
)

// A defragmentation plans to move replicas for work that waits for accelerators although enough are free:
// they are scattered over nodes, so that no node has as many as the work needs.
type defragmentation struct {
	view     *projections.View
	fleet    *fleet
	now      time.Time
	plan     *Plan
	free     map[string]int           // result of fleet.freeDevices
	replicas map[int][]movableReplica // result of collect: replicas that can be moved, by index of their node in the fleet
}

// A movableReplica is a replica that can be moved.
type movableReplica struct {
	of        *deployment
	replica   domain.Replica
	resources domain.Resources
	rested    time.Time // when it will have stayed on its node for MoveAgainAfter
}

// A replicaMove moves a replica to another node.
type replicaMove struct {
	movableReplica
	to chosenNode
}

// A waitingNeed is the need of a job or of a replica that waits for capacity, and since when.
type waitingNeed struct {
	need  domain.Need
	since time.Time
}

// defragment moves one replica if this is the next of the fewest moves after which work fits that waits
// for accelerators. It plans all of these moves, and moves nothing if one of them has no node. A replica
// moves as in rebalance: its node keeps it until its replacement is ready on another node. One replica
// moves at a time, RebalanceEvery after the previous move at the earliest, and MoveAgainAfter after it was
// placed. Each move leaves fewer that are missing, and a plan withholds the capacity of the work that
// fits already, or will fit when what is being stopped has ended, so moves for one need do not undo those
// for another. Nothing moves while the plan has other steps.
func defragment(v *projections.View, deployments []*deployment, plan *Plan, delay time.Duration) {
	if len(plan.Steps) > 0 || len(deployments) == 0 {
		return
	}
	latest, moving := lastMove(deployments)
	if moving {
		return
	}
	d := deployments[0]
	m := &defragmentation{view: v, fleet: d.fleet, now: d.now, plan: plan, free: d.fleet.freeDevices(),
		replicas: map[int][]movableReplica{}}
	if m.collect(deployments, false); len(m.free) == 0 || len(m.replicas) == 0 {
		return // before it looks at all jobs
	}
	for _, w := range m.waitingNeeds(deployments) {
		moves := m.movesWith(deployments, w.need)
		if len(moves) == 0 {
			continue
		}
		first := moves[0]
		due := later(later(w.since.Add(delay), first.rested), later(latest.Add(RebalanceEvery),
			m.fleet.registered[first.to.name].Add(RebalanceAfter)))
		if m.now.Before(due) {
			plan.planAgainAt(due)
			continue
		}
		_, request := classOf(w.need.Resources)
		first.of.placeOn(first.to, first.of.need(v), domain.PlaceReplica{ID: first.of.NextReplica(),
			Replaces: first.replica.ID, Reason: fmt.Sprintf("%swork waits that needs %d x %s on one node, and so many are "+
				"free only on several nodes; moves left: %d", DefragmentReason, request.Devices, request.Models, len(moves))})
		return
	}
}

// lastMove returns when the newest replica was placed that replaced or replaces another one. moving
// reports whether a replica is being moved.
func lastMove(deployments []*deployment) (latest time.Time, moving bool) {
	for _, d := range deployments {
		moving = moving || len(d.moving) > 0
		for _, r := range d.Replicas {
			a, _ := d.fleet.allocation(r.Node, domain.ReplicaAllocationID(d.name, r.ID))
			if r.Replaces != "" && a.Since.After(latest) {
				latest = a.Since
			}
		}
	}
	return latest, moving
}

// waitingNeeds returns different needs of work that waits for whole accelerators, and fits on no node:
// of replicas within a minReplicaCount, of jobs, and of other replicas. It withholds the capacity of the
// work that fits now or when what is being stopped has ended, which will get it from another plan. It
// leaves out jobs that would not start because of their account's quota.
func (m *defragmentation) waitingNeeds(deployments []*deployment) (needs []waitingNeed) {
	stopping := m.fleet.stopping(m.view)
	for _, a := range stopping {
		m.fleet.release(a.node, a.resources)
	}
	type class struct {
		placement.Request
		count int
	}
	known := map[class]bool{}
	add := func(need domain.Need, since time.Time) {
		_, request := requestOf(need)
		one := class{request, need.Count}
		if request.Devices == 0 || need.Resources.Shared() || known[one] || len(known) >= maxDefragmentNeeds ||
			m.fleet.withhold(m.view, need, nil) {
			return
		}
		known[one] = true
		if m.free[request.Models] >= need.Count*request.Devices {
			needs = append(needs, waitingNeed{need, since})
		}
	}
	addShort := func(minimum bool) {
		for _, d := range deployments {
			since := later(d.Short.Minimum, d.Short.Desired)
			if d.short && d.belowMinimum() == minimum && !d.backingOff() && !since.IsZero() {
				add(d.need(m.view), since)
			}
		}
	}
	addShort(true)
	quotas := acceleratorQuotas{m.view, map[string]int64{}}
	for _, j := range heldJobs(m.view) {
		since, need := j.Created, m.fleet.needOf(m.view, j.Name, j.spec())
		if j.Life.QueueTime != nil {
			since = *j.Life.QueueTime
		}
		if quotas.exceeded(j.Name.Account(), need) == "" {
			add(need, since)
		}
	}
	addShort(false)
	for _, a := range stopping {
		m.fleet.take([]domain.Name{a.node}, a.resources)
	}
	return needs
}

// freeDevices returns the numbers of free devices on the nodes that are not cordoned, by type. It returns
// no type without free devices.
func (f *fleet) freeDevices() map[string]int {
	free := map[string]int{}
	for i := range f.nodes {
		if f.nodes[i].Cordoned {
			continue
		}
		for deviceType, n := range f.nodes[i].Free.Accelerators {
			if n > 0 {
				free[deviceType] += n
			}
		}
	}
	return free
}

// movesWith returns the fewest moves after which the need fits, of replicas that have stayed on their
// node for MoveAgainAfter, or if there are none, of all replicas.
func (m *defragmentation) movesWith(deployments []*deployment, need domain.Need) []replicaMove {
	if young := m.collect(deployments, true); young > 0 {
		if moves := m.movesFor(need); len(moves) > 0 {
			return moves
		}
		m.collect(deployments, false)
	}
	return m.movesFor(need)
}

// collect sets m.replicas: the ready replicas of deployments that do not change, and if rested is set,
// only those that have stayed on their node for MoveAgainAfter. It returns the number of the others.
func (m *defragmentation) collect(deployments []*deployment, rested bool) (young int) {
	clear(m.replicas)
	for _, d := range deployments {
		if !settled(d) {
			continue
		}
		for _, r := range removalOrder(d.current) {
			a, ok := m.fleet.allocation(r.Node, domain.ReplicaAllocationID(d.name, r.ID))
			due := a.Since.Add(MoveAgainAfter)
			if !ok || devices(a.Resources) == 0 {
				continue
			}
			if rested && m.now.Before(due) {
				young++
				continue
			}
			node := m.fleet.index[r.Node]
			m.replicas[node] = append(m.replicas[node], movableReplica{d, r, a.Resources, due})
		}
	}
	for _, replicas := range m.replicas { // the largest first
		slices.SortStableFunc(replicas, func(a, b movableReplica) int { return cmp.Compare(b.milli(), a.milli()) })
	}
	return young
}

// milli returns the thousandths of devices that the replica has.
func (r movableReplica) milli() int {
	if r.resources.Shared() {
		return r.resources.Share.Milli
	}
	return devices(r.resources) * domain.WholeDevice
}

// A freedNode is a node on which a need fits after some replicas have left it.
type freedNode struct {
	node    int // index in the fleet
	leave   []movableReplica
	milli   int // thousandths of devices of the replicas in leave
	devices int // number of devices of the node
}

func (a freedNode) compare(b freedNode) int {
	return cmp.Or(cmp.Compare(len(a.leave), len(b.leave)), cmp.Compare(a.milli, b.milli),
		cmp.Compare(a.devices, b.devices), cmp.Compare(a.node, b.node))
}

// movesFor returns the fewest moves after which the need fits; nil if there are none, or too many.
func (m *defragmentation) movesFor(need domain.Need) []replicaMove {
	var nodes []freedNode
	for i := range m.fleet.nodes {
		if need.Count == 1 && len(m.replicas[i]) == 0 {
			continue // the need fits on no node, so that only those count whose replicas can move
		}
		if one, ok := m.estimate(i, need); ok {
			nodes = append(nodes, one)
		}
	}
	slices.SortFunc(nodes, freedNode.compare)
	var exact []freedNode
	for _, one := range nodes {
		if one, ok := m.freeOn(one.node, need); ok {
			exact = append(exact, one)
		}
		if len(exact) == need.Count+maxDefragmentAttempts-1 {
			break
		}
	}
	slices.SortFunc(exact, freedNode.compare)
	for skip := range max(0, len(exact)-need.Count+1) {
		if moves, ok := m.moveFrom(exact[skip : skip+need.Count]); ok {
			return moves
		}
	}
	return nil
}

// estimate returns the fewest replicas that must leave a node so that it has the devices of the need.
// More may have to leave for CPU and memory, and for devices that several of them share. It changes
// nothing, so it is fast.
func (m *defragmentation) estimate(node int, need domain.Need) (one freedNode, ok bool) {
	_, request := classOf(need.Resources)
	c, left := &m.fleet.nodes[node], 0
	for _, r := range m.replicas[node] {
		left += max(1, r.resources.Accelerators[request.Models])
	}
	free := max(0, c.Free.Accelerators[request.Models])
	if free+left < request.Devices || !c.suits(need) || !need.Resources.Fits(c.Capacity) {
		return freedNode{}, false
	}
	one = freedNode{node: node, devices: devices(c.Capacity)}
	for i, r := range m.replicas[node] {
		if free >= request.Devices {
			break
		}
		one.leave, one.milli = m.replicas[node][:i+1], one.milli+r.milli()
		free += max(1, r.resources.Accelerators[request.Models])
	}
	return one, true
}

// freeOn returns the replicas that must leave a node, for which there is an estimate, so that the need
// fits there: as few as possible, and of those with few devices. It returns false if the need does not
// fit without all of them.
func (m *defragmentation) freeOn(node int, need domain.Need) (one freedNode, ok bool) {
	c := &m.fleet.nodes[node]
	one = freedNode{node: node, devices: devices(c.Capacity)}
	all := m.replicas[node]
	for next := 0; !c.fits(need.Resources); next++ {
		if next == len(all) {
			break
		}
		m.fleet.release(c.Name, all[next].resources)
		one.leave = append(one.leave, all[next])
	}
	ok = c.fits(need.Resources)
	rest := all[len(one.leave):]
	for i := 0; ok && i < len(one.leave); i++ { // exchange replicas for smaller ones, and keep those not needed
		m.fleet.take([]domain.Name{c.Name}, one.leave[i].resources)
		if c.fits(need.Resources) {
			one.leave = slices.Delete(one.leave, i, i+1)
			i--
			continue
		}
		for at := len(rest) - 1; at >= -1; at-- {
			if at < 0 {
				m.fleet.release(c.Name, one.leave[i].resources)
				break
			}
			m.fleet.release(c.Name, rest[at].resources)
			if c.fits(need.Resources) {
				one.leave[i] = rest[at]
				rest = slices.Delete(slices.Clone(rest), at, at+1)
				break
			}
			m.fleet.take([]domain.Name{c.Name}, rest[at].resources)
		}
	}
	for _, r := range one.leave {
		m.fleet.take([]domain.Name{c.Name}, r.resources)
		one.milli += r.milli()
	}
	return one, ok && len(one.leave) <= maxDefragmentMoves
}

// moveFrom returns moves of the replicas that must leave the nodes to other nodes. It returns false if
// one of them has no other node.
func (m *defragmentation) moveFrom(nodes []freedNode) (moves []replicaMove, ok bool) {
	var undo []func()
	defer func() {
		for _, one := range slices.Backward(undo) {
			one()
		}
	}()
	var leave []movableReplica
	for _, n := range nodes {
		leave = append(leave, n.leave...)
		name, free := m.fleet.nodes[n.node].Name, m.fleet.nodes[n.node].Free
		m.fleet.take([]domain.Name{name}, free)
		undo = append(undo, func() { m.fleet.release(name, free) })
	}
	if len(leave) == 0 || len(leave) > maxDefragmentMoves {
		return nil, false
	}
	slices.SortStableFunc(leave, func(a, b movableReplica) int { return cmp.Compare(b.milli(), a.milli()) })
	for _, r := range leave {
		from, need, spread := m.fleet.index[r.replica.Node], r.of.need(m.view), r.of.spread
		spread.add(from, -1)
		undo = append(undo, func() { spread.add(from, 1) })
		chosen, fits := m.fleet.place(m.view, need, spread)
		if !fits {
			return nil, false
		}
		to := m.fleet.index[chosen[0].name]
		if spread.strategy == domain.PlacementSpread && spread.crowding(to) > spread.crowding(from) {
			return nil, false // its replicas would be less spread
		}
		m.fleet.takeChosen(chosen, need)
		spread.add(to, 1)
		undo = append(undo, func() {
			m.fleet.release(chosen[0].name, chosen[0].resources(need))
			spread.add(to, -1)
		})
		moves = append(moves, replicaMove{r, chosen[0]})
	}
	return moves, true
}
