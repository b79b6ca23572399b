package rollups

import (
	"maps"
	"slices"
	"time"

	"anneal/domain"
	"anneal/eventlog"
)

// nodeEvents selects the events of nodes, which allocate accelerators to jobs and deployments.
var nodeEvents = "events." + domain.System + "." + domain.Nodes.Collection + ".*"

// A charge is the time for which a job or deployment (workload) used accelerators of one type in
// one hour. It is negative when it corrects an earlier charge, because an allocation ended before
// the time up to which it was charged.
type charge struct {
	workload     domain.Name
	accelerator  string
	hour         time.Time
	microseconds int64
}

// accelerators is a projection of the log with the current allocations of all nodes. Times are
// truncated to milliseconds, so that the use of each thousandth of a device is a whole number of
// microseconds.
type accelerators struct {
	position uint64
	nodes    map[domain.Name]allocations
}

type allocations struct {
	state domain.Node
	open  map[string]allocation // existing allocations by allocation ID
}

// An allocation is an allocation of a node, with the time of the event that created it.
type allocation struct {
	domain.Allocation
	since time.Time
}

func newAccelerators() *accelerators { return &accelerators{nodes: map[domain.Name]allocations{}} }

// clone returns a deep copy: changes of the copy do not affect a.
func (a *accelerators) clone() *accelerators {
	copied := &accelerators{position: a.position, nodes: make(map[domain.Name]allocations, len(a.nodes))}
	for name, node := range a.nodes {
		copied.nodes[name] = allocations{node.state, maps.Clone(node.open)}
	}
	return copied
}

// apply folds an event of a node into the allocations and calls visit with the resulting charges.
// Existing allocations are already charged up to the time charged. When an allocation ends, visit
// gets the charge for the time from charged to its end, which is negative when the allocation ended
// before charged. When an allocation begins, visit gets the charge for its time before charged. So
// each allocation is charged exactly from its start to its end, even if the clocks of control
// planes differ.
func (a *accelerators) apply(e eventlog.Event, charged time.Time, visit func(charge)) error {
	node := a.nodes[e.Name]
	if err := domain.Nodes.Fold(&node.state, e.Record); err != nil {
		return err
	}
	if node.open == nil {
		node.open = map[string]allocation{}
	}
	at := e.Time.UTC().Truncate(time.Millisecond)
	for _, id := range slices.Sorted(maps.Keys(node.open)) {
		if one := node.open[id]; !continues(node.state, one) {
			from, to := laterOf(one.since, charged), laterOf(one.since, at)
			chargeBetween(one, from, to, visit)
			delete(node.open, id)
		}
	}
	for _, one := range node.state.Allocated() {
		if _, known := node.open[one.ID]; !known {
			begun := allocation{one, at}
			node.open[one.ID] = begun
			if at.Before(charged) {
				chargeBetween(begun, at, charged, visit)
			}
		}
	}
	if a.position = e.Position; node.state.Exists() {
		a.nodes[e.Name] = node
	} else {
		delete(a.nodes, e.Name)
	}
	return nil
}

func continues(node domain.Node, one allocation) bool {
	current, there := node.Allocations[one.ID]
	return there && current.For == one.For && current.Since.Equal(one.Since)
}

// charge calls visit with the charges of the existing allocations from the time charged to the time
// end.
func (a *accelerators) charge(charged, end time.Time, visit func(charge)) {
	for _, name := range slices.Sorted(maps.Keys(a.nodes)) {
		for _, id := range slices.Sorted(maps.Keys(a.nodes[name].open)) {
			one := a.nodes[name].open[id]
			if from := laterOf(one.since, charged); from.Before(end) {
				chargeBetween(one, from, end, visit)
			}
		}
	}
}

// milli returns the thousandths of devices in an allocation. A thousandth of a device for a
// millisecond is a microsecond of use.
func milli(r domain.Resources, devices int) int64 {
	if r.Shared() {
		return int64(r.Share.Milli)
	}
	return int64(devices) * domain.WholeDevice
}

func laterOf(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// chargeBetween calls visit with the charges of an allocation for each hour between two times. The
// charges are negative when stop is before start.
func chargeBetween(one allocation, start, stop time.Time, visit func(charge)) {
	sign := int64(1)
	if stop.Before(start) {
		start, stop, sign = stop, start, -1
	}
	for start.Before(stop) {
		hour := start.UTC().Truncate(time.Hour)
		end := hour.Add(time.Hour)
		if end.After(stop) {
			end = stop
		}
		for _, kind := range slices.Sorted(maps.Keys(one.Resources.Accelerators)) {
			if n := one.Resources.Accelerators[kind]; n > 0 {
				visit(charge{one.For, kind, hour, sign * milli(one.Resources, n) * end.Sub(start).Milliseconds()})
			}
		}
		start = end
	}
}
