package schedulers

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"anneal/domain"
)

// A Need is what a piece of work asks of the fleet: the same resources on each
// of Count different nodes.
type Need struct {
	Count  int
	Pool   string // domain.PoolTraining or domain.PoolInference
	Engine string // what the node must be able to do: train, complete, transcribe or score
	Takes  domain.Resources
}

// A Candidate is a READY node as a placement sees it.
type Candidate struct {
	Name    domain.Name
	Pool    string // "" takes work of every pool
	Engines []string
	Free    domain.Resources // less than nothing on a node that shrank
}

// A Placement chooses nodes. It must be pure, must choose different nodes that
// each have room, and all of them or none.
type Placement interface {
	Place(nodes []Candidate, need Need) (chosen []domain.Name, ok bool)
}

// suits tells whether the node does this kind of work at all.
func (c *Candidate) suits(need Need) bool {
	return (c.Pool == "" || c.Pool == need.Pool) && slices.Contains(c.Engines, need.Engine)
}

// BestFit takes the nodes that are left with the least: those with the fewest
// free accelerators, then the least free CPU; ties go by name. Big holes stay
// whole for big work, and work without accelerators stays off those that have
// some.
type BestFit struct{}

// Place implements Placement.
func (BestFit) Place(nodes []Candidate, need Need) ([]domain.Name, bool) {
	var fitting []*Candidate
	for i := range nodes {
		if node := &nodes[i]; node.suits(need) && need.Takes.Fits(node.Free) {
			fitting = append(fitting, node)
		}
	}
	if len(fitting) < need.Count {
		return nil, false
	}
	if need.Count == 1 {
		return []domain.Name{slices.MinFunc(fitting, tighter).Name}, true
	}
	slices.SortFunc(fitting, tighter)
	chosen := make([]domain.Name, need.Count)
	for i := range chosen {
		chosen[i] = fitting[i].Name
	}
	return chosen, true
}

// tighter compares nodes by how little is left on them.
func tighter(a, b *Candidate) int {
	return cmp.Or(cmp.Compare(devices(a.Free), devices(b.Free)), cmp.Compare(a.Free.CPUMilli, b.Free.CPUMilli), cmp.Compare(a.Name, b.Name))
}

func devices(r domain.Resources) int {
	sum := 0
	for _, n := range r.Accelerators {
		sum += n
	}
	return sum
}

// String is the need in words, for whoever waits for it.
func (n Need) String() string {
	nodes := "a node"
	if n.Count > 1 {
		nodes = fmt.Sprintf("each of %d nodes", n.Count)
	}
	return fmt.Sprintf("%s on %s of pool %s that can %s", describe(n.Takes), nodes, n.Pool, n.Engine)
}

// describe lists resources in words: "100 thousandths of a core, 128 MiB".
func describe(r domain.Resources) string {
	parts := []string{fmt.Sprintf("%d thousandths of a core", r.CPUMilli), fmt.Sprintf("%d MiB", r.MemoryMiB)}
	for _, t := range slices.Sorted(maps.Keys(r.Accelerators)) {
		parts = append(parts, fmt.Sprintf("%d x %s", r.Accelerators[t], t))
	}
	return strings.Join(parts, ", ")
}
