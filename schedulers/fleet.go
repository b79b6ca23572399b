package schedulers

import (
	"maps"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// A fleet is the READY nodes of a view with what is free on each, less what
// the plan in the making has already given away.
type fleet struct {
	nodes      []Candidate // in the order of names
	index      map[domain.Name]int
	holds      map[domain.Name]int // allocations of each owner on READY nodes
	placed     map[allocationKey]domain.Allocation
	registered map[domain.Name]time.Time // when each READY node last did
	gone       map[domain.Name]bool      // whether a node that is LOST was shut down in order
	able       map[string]bool           // what some node can do, READY or not
}

type allocationKey struct {
	node domain.Name
	id   string
}

func fleetOf(v *projections.View) *fleet {
	f := &fleet{index: map[domain.Name]int{}, holds: map[domain.Name]int{}, placed: map[allocationKey]domain.Allocation{}, registered: map[domain.Name]time.Time{}, gone: map[domain.Name]bool{}, able: map[string]bool{}}
	for row := range v.Nodes.All() {
		node := row.State
		if !node.Registered() {
			continue
		}
		for _, engine := range node.Engines {
			f.able[engine] = true
		}
		if node.State != domain.NodeReady {
			f.gone[row.Name] = node.Left
			continue
		}
		f.index[row.Name], f.registered[row.Name] = len(f.nodes), node.Since
		f.nodes = append(f.nodes, Candidate{row.Name, node.Pool, node.Engines, minus(node.Capacity, node.Used())})
		for id, allocation := range node.Allocations {
			f.holds[allocation.For]++
			f.placed[allocationKey{row.Name, id}] = allocation
		}
	}
	return f
}

// has tells whether the node is READY and holds the allocation.
func (f *fleet) has(node domain.Name, id string) bool {
	_, ok := f.placed[allocationKey{node, id}]
	return ok
}

// take gives a part of each named node away.
func (f *fleet) take(names []domain.Name, takes domain.Resources) {
	for _, name := range names {
		node := &f.nodes[f.index[name]]
		node.Free = minus(node.Free, takes)
	}
}

// without is the fleet's nodes as they would be without one allocation.
func (f *fleet) without(node domain.Name, id string) []Candidate {
	nodes := append([]Candidate(nil), f.nodes...)
	if allocation, ok := f.placed[allocationKey{node, id}]; ok {
		one := &nodes[f.index[node]]
		one.Free = one.Free.Plus(allocation.Takes)
	}
	return nodes
}

// minus is a less b, below zero where b is more.
func minus(a, b domain.Resources) domain.Resources {
	left := domain.Resources{CPUMilli: a.CPUMilli - b.CPUMilli, MemoryMiB: a.MemoryMiB - b.MemoryMiB, Accelerators: maps.Clone(a.Accelerators)}
	for t, n := range b.Accelerators {
		if left.Accelerators == nil {
			left.Accelerators = map[string]int{}
		}
		left.Accelerators[t] -= n
	}
	return left
}
