package schedulers

import (
	"iter"
	"maps"
	"strings"
	"time"

	"anneal/domain"
	"anneal/projections"
	"anneal/schedulers/placement"
)

// A fleet holds the READY nodes of a view, and what is free on them after the steps of the plan so
// far.
type fleet struct {
	nodes      []Candidate // the READY nodes, sorted by name
	index      map[domain.Name]int
	holds      map[domain.Name]int            // by job or deployment: number of its allocations on READY nodes
	allocated  []map[string]domain.Allocation // allocations of each of nodes by ID; shared with the view
	registered map[domain.Name]time.Time      // time of the last registration of each READY node
	shutDown   map[domain.Name]bool           // by LOST node: whether it was lost because its agent was shut down
	drains     map[domain.Name]string         // by node that is being drained: why replicas leave it; result of drainsOf
	engines    map[string]bool                // set of the engine capabilities of all registered nodes, READY or LOST
	// cache of the results of domain.FleetAccelerator, by engine, regions and policy of a job
	types map[string]string
	// cache of domain.Need.Gang of jobs on several nodes, by what domain.Need.String returns
	gangs map[string]string

	pools map[string]*devicePool // cache of the results of fleet.pool, by type of devices
	// cached result of the function ranks; nil before the first pool is created
	ranks []int
	// cached result of countRequests: number of equal requests, by type of devices
	counts map[string]map[placement.Request]int64

	domains *failureDomains // cached result of the method failureDomains; nil before its first call
}

// needOf returns what one attempt of a job requires of the fleet.
func (f *fleet) needOf(v *projections.View, job domain.Name, spec domain.JobSpec) domain.Need {
	need := projections.ForAccount(v, job.Account(), spec.Need())
	key := need.Engine + " " + strings.Join(need.Regions, " ") + need.Policy.String()
	accelerator, known := f.types[key]
	if !known {
		accelerator = domain.FleetAccelerator(v.Fleet(), need)
		f.types[key] = accelerator
	}
	need = v.NeedOfJobOn(job.Account(), spec, accelerator)
	if need.Count > 1 {
		key := need.String()
		if _, known := f.gangs[key]; !known {
			f.gangs[key] = need.InGang(v.Fleet()).Gang
		}
		need.Gang = f.gangs[key]
	}
	return need
}

type allocationKey struct {
	node domain.Name
	id   string
}

// allocation returns the allocation with the given ID on a node; false when the node is not READY
// or does not have it.
func (f *fleet) allocation(node domain.Name, id string) (domain.Allocation, bool) {
	i, ready := f.index[node]
	if !ready {
		return domain.Allocation{}, false
	}
	a, ok := f.allocated[i][id]
	return a, ok
}

// allocations yields the allocations on READY nodes, in any order.
func (f *fleet) allocations() iter.Seq2[allocationKey, domain.Allocation] {
	return func(yield func(allocationKey, domain.Allocation) bool) {
		for i, all := range f.allocated {
			for id, a := range all {
				if !yield(allocationKey{f.nodes[i].Name, id}, a) {
					return
				}
			}
		}
	}
}

func fleetOf(v *projections.View) *fleet {
	f := &fleet{index: map[domain.Name]int{}, holds: map[domain.Name]int{},
		registered: map[domain.Name]time.Time{},
		shutDown:   map[domain.Name]bool{}, drains: drainsOf(v), engines: map[string]bool{}, types: map[string]string{},
		gangs: map[string]string{}, pools: map[string]*devicePool{}}
	located := v.Located()
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
		f.nodes = append(f.nodes,
			Candidate{row.Name, node.Pool, node.RegionIn(located), node.Engines, node.Cordon != nil,
				node.Labels, node.Taints, node.Capacity, minus(node.Capacity, node.Used()), node.Slots()})
		f.allocated = append(f.allocated, node.Allocations)
		for _, allocation := range node.Allocations {
			f.holds[allocation.For]++
		}
	}
	return f
}

// has reports whether the node is READY and has the allocation with the given ID.
func (f *fleet) has(node domain.Name, id string) bool {
	_, ok := f.allocation(node, id)
	return ok
}

// take deducts the resources takes from what is free on each of the named nodes.
func (f *fleet) take(names []domain.Name, takes domain.Resources) {
	for _, name := range names {
		i := f.index[name]
		f.nodes[i].take(takes)
		for _, p := range f.pools {
			f.refresh(p, i)
		}
	}
}

// release adds resources to what is free on a node.
func (f *fleet) release(name domain.Name, released domain.Resources) {
	i := f.index[name]
	f.nodes[i].release(released)
	for _, p := range f.pools {
		f.refresh(p, i)
	}
}

// fitsWithout reports whether the need fits on a node after the allocation with this ID on the node
// is released.
func (f *fleet) fitsWithout(node domain.Name, id string, need domain.Need) bool {
	candidate := &f.nodes[f.index[node]]
	a, _ := f.allocation(node, id)
	released := a.Resources
	f.release(node, released)
	defer f.take([]domain.Name{node}, released)
	return candidate.suits(need) && candidate.fits(need.Resources)
}

// takeChosen deducts the resources of a need from the nodes that place has chosen for it.
func (f *fleet) takeChosen(chosen []chosenNode, need domain.Need) {
	for _, node := range chosen {
		f.take([]domain.Name{node.name}, node.resources(need))
	}
}

// minus returns a − b. The result has no share of a device; its amounts may be negative.
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
