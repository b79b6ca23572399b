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
	// DefragmentAfter is how long work must wait for capacity before replicas are moved for it. Before
	// that, other work may end.
	DefragmentAfter = time.Minute
	// MoveAgainAfter is how long a replica stays on its node before it is moved, so that no replica is
	// moved again and again.
	MoveAgainAfter = 10 * time.Minute

	// DefragmentReason begins the reason of a replica that replaces another one for defragmentation.
	DefragmentReason = "defragmentation: "

	maxDefragmentMoves    = 16 // maximum number of moves for one waiting job or replica
	maxDefragmentNeeds    = 16 // maximum number of different needs for which one plan searches moves
	maxDefragmentAttempts = 8  // maximum number of sets of nodes that a plan tries for one need
)

// A defragmentation plans moves of replicas for work that waits for accelerators although enough
// are free. The free ones are scattered over nodes, so that no node has as many as the work needs.
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
	deployment *deployment
	replica    domain.Replica
	resources  domain.Resources
	movableAt  time.Time // time from which it has stayed on its node for MoveAgainAfter
}

// A replicaMove moves a replica to another node.
type replicaMove struct {
	movableReplica
	to chosenNode
}

// A waitingNeed is the need of a job or of a replica that waits for capacity since a time.
type waitingNeed struct {
	need  domain.Need
	since time.Time
}

// defragment searches the fewest moves of replicas after which waiting work fits, and begins the
// first of them. It begins none if one of them has no node. A replica moves as in rebalance: it
// stays on its node until its replacement is ready on another node. One replica moves at a time,
// RebalanceEvery after the previous move at the earliest, and MoveAgainAfter after it was placed.
// Each move reduces the number of moves that are left. A plan withholds the capacity of the work
// that fits already, or will fit when the allocations that are stopping have ended, so moves for
// one need do not undo those for another. Nothing moves while the plan has other steps.
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
		return // without reading all jobs
	}
	for _, w := range m.waitingNeeds(deployments) {
		moves := m.fewestMoves(deployments, w.need)
		if len(moves) == 0 {
			continue
		}
		first := moves[0]
		due := later(later(w.since.Add(delay), first.movableAt), later(latest.Add(RebalanceEvery),
			m.fleet.registered[first.to.name].Add(RebalanceAfter)))
		if m.now.Before(due) {
			plan.planAgainAt(due)
			continue
		}
		_, request := classOf(w.need.Resources)
		first.deployment.placeOn(first.to, first.deployment.need(v), domain.PlaceReplica{ID: first.deployment.NextReplica(),
			Replaces: first.replica.ID, Reason: fmt.Sprintf("%swaiting work needs %d x %s on one node, but so many are "+
				"free only on several nodes; moves left: %d", DefragmentReason, request.Devices, request.Models, len(moves))})
		return
	}
}

// lastMove returns the time at which the newest replacement of a replica was placed. moving reports
// whether a replica is being moved.
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

// waitingNeeds returns the different needs of work that waits for whole accelerators and fits on no
// node: first of replicas within a minReplicaCount, then of jobs, then of other replicas. It
// withholds the capacity of the work that fits now, or will fit when the allocations that are
// stopping have ended. A later plan places that work. It leaves out jobs that would not start
// because of their account's quota.
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

// freeDevices returns the numbers of free devices on the nodes that are not cordoned, by type. It
// returns no type without free devices.
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

// fewestMoves returns the fewest moves after which the need fits. It considers the replicas that
// have stayed on their node for MoveAgainAfter, and all replicas if those do not suffice.
func (m *defragmentation) fewestMoves(deployments []*deployment, need domain.Need) []replicaMove {
	if young := m.collect(deployments, true); young > 0 {
		if moves := m.movesFor(need); len(moves) > 0 {
			return moves
		}
		m.collect(deployments, false)
	}
	return m.movesFor(need)
}

// collect sets m.replicas to the ready replicas of deployments that do not change. If onlyMovable
// is set, it leaves out replicas that have not stayed on their node for MoveAgainAfter, and returns
// their number.
func (m *defragmentation) collect(deployments []*deployment, onlyMovable bool) (young int) {
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
			if onlyMovable && m.now.Before(due) {
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

// milli returns the devices of the replica, in thousandths of a device.
func (r movableReplica) milli() int {
	if r.resources.Shared() {
		return r.resources.Share.Milli
	}
	return devices(r.resources) * domain.WholeDevice
}

// A freedNode is a node on which a need fits after some replicas have left it.
type freedNode struct {
	node    int // index in the fleet
	leaving []movableReplica
	milli   int // devices of the leaving replicas, in thousandths of a device
	devices int // number of devices of the node
}

func (a freedNode) compare(b freedNode) int {
	return cmp.Or(cmp.Compare(len(a.leaving), len(b.leaving)), cmp.Compare(a.milli, b.milli),
		cmp.Compare(a.devices, b.devices), cmp.Compare(a.node, b.node))
}

// movesFor returns the fewest moves of m.replicas after which the need fits; nil if there are none,
// or too many.
func (m *defragmentation) movesFor(need domain.Need) []replicaMove {
	var nodes []freedNode
	for i := range m.fleet.nodes {
		if need.Count == 1 && len(m.replicas[i]) == 0 {
			continue // the need fits on no node, so a node without movable replicas is no candidate
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

// estimate returns the fewest replicas that must leave a node so that enough devices of the node
// are free for the need. More may have to leave because of CPU, memory and devices that several of
// them share. estimate does not change the fleet, so it is fast.
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
		one.leaving, one.milli = m.replicas[node][:i+1], one.milli+r.milli()
		free += max(1, r.resources.Accelerators[request.Models])
	}
	return one, true
}

// freeOn returns the replicas that must leave a node, for which there is an estimate, so that the
// need fits there: as few as possible, and preferably replicas with few devices. It returns false
// if the need does not fit even when all replicas leave, or if too many must leave.
func (m *defragmentation) freeOn(node int, need domain.Need) (one freedNode, ok bool) {
	c := &m.fleet.nodes[node]
	one = freedNode{node: node, devices: devices(c.Capacity)}
	all := m.replicas[node]
	for next := 0; !c.fits(need.Resources); next++ {
		if next == len(all) {
			break
		}
		m.fleet.release(c.Name, all[next].resources)
		one.leaving = append(one.leaving, all[next])
	}
	ok = c.fits(need.Resources)
	rest := all[len(one.leaving):]
	for i := 0; ok && i < len(one.leaving); i++ { // replace replicas by smaller ones, and keep those that need not leave
		m.fleet.take([]domain.Name{c.Name}, one.leaving[i].resources)
		if c.fits(need.Resources) {
			one.leaving = slices.Delete(one.leaving, i, i+1)
			i--
			continue
		}
		for at := len(rest) - 1; at >= -1; at-- {
			if at < 0 {
				m.fleet.release(c.Name, one.leaving[i].resources)
				break
			}
			m.fleet.release(c.Name, rest[at].resources)
			if c.fits(need.Resources) {
				one.leaving[i] = rest[at]
				rest = slices.Delete(slices.Clone(rest), at, at+1)
				break
			}
			m.fleet.take([]domain.Name{c.Name}, rest[at].resources)
		}
	}
	for _, r := range one.leaving {
		m.fleet.take([]domain.Name{c.Name}, r.resources)
		one.milli += r.milli()
	}
	return one, ok && len(one.leaving) <= maxDefragmentMoves
}

// moveFrom returns moves to other nodes of the replicas that must leave the given nodes. It returns
// false if one of them has no other node, or if they are too many.
func (m *defragmentation) moveFrom(nodes []freedNode) (moves []replicaMove, ok bool) {
	var undo []func()
	defer func() {
		for _, one := range slices.Backward(undo) {
			one()
		}
	}()
	var leaving []movableReplica
	for _, n := range nodes {
		leaving = append(leaving, n.leaving...)
		name, free := m.fleet.nodes[n.node].Name, m.fleet.nodes[n.node].Free
		m.fleet.take([]domain.Name{name}, free)
		undo = append(undo, func() { m.fleet.release(name, free) })
	}
	if len(leaving) == 0 || len(leaving) > maxDefragmentMoves {
		return nil, false
	}
	slices.SortStableFunc(leaving, func(a, b movableReplica) int { return cmp.Compare(b.milli(), a.milli()) })
	for _, r := range leaving {
		from, need, spread := m.fleet.index[r.replica.Node], r.deployment.need(m.view), r.deployment.spread
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
