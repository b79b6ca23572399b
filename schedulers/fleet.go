package schedulers

import (
	"maps"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// A fleet is the READY nodes of a view with their free resources, less what the plan allocates.
type fleet struct {
	nodes      []Candidate // sorted by name
	index      map[domain.Name]int
	holds      map[domain.Name]int // allocations of each owner on READY nodes
	placed     map[allocationKey]domain.Allocation
	registered map[domain.Name]time.Time // time of the last registration of each READY node
	shutDown   map[domain.Name]bool      // LOST nodes: whether the agent was shut down
	engines    map[string]bool           // engines of all registered nodes, READY or not
}

type allocationKey struct {
	node domain.Name
	id   string
}

func fleetOf(v *projections.View) *fleet {
	f := &fleet{index: map[domain.Name]int{}, holds: map[domain.Name]int{},
		placed: map[allocationKey]domain.Allocation{}, registered: map[domain.Name]time.Time{},
		shutDown: map[domain.Name]bool{}, engines: map[string]bool{}}
	for row := range v.Nodes.All() {
		node := row.State
		if !node.Registered() {
			continue
		}
		for _, engine := range node.Engines {
			f.engines[engine] = true
		}
		if node.State != domain.NodeReady {
			f.shutDown[row.Name] = node.Left
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

// has reports whether the node is READY and holds the allocation.
func (f *fleet) has(node domain.Name, id string) bool {
	_, ok := f.placed[allocationKey{node, id}]
	return ok
}

// take allocates resources on each node.
func (f *fleet) take(names []domain.Name, takes domain.Resources) {
	for _, name := range names {
		node := &f.nodes[f.index[name]]
		node.Free = minus(node.Free, takes)
	}
}

// without returns the fleet's nodes as if one allocation were released.
func (f *fleet) without(node domain.Name, id string) []Candidate {
	nodes := append([]Candidate(nil), f.nodes...)
	if allocation, ok := f.placed[allocationKey{node, id}]; ok {
		one := &nodes[f.index[node]]
		one.Free = one.Free.Plus(allocation.Takes)
	}
	return nodes
}

// minus returns a less b, which may be negative.
func minus(a, b domain.Resources) domain.Resources {
	left := domain.Resources{CPUMilli: a.CPUMilli - b.CPUMilli, MemoryMiB: a.MemoryMiB - b.MemoryMiB,
		Accelerators: maps.Clone(a.Accelerators)}
	for t, n := range b.Accelerators {
		if left.Accelerators == nil {
			left.Accelerators = map[string]int{}
		}
		left.Accelerators[t] -= n
	}
	return left
}
