package schedulers

import (
	"cmp"
	"slices"

	"anneal/domain"
)

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
	Place(nodes []Candidate, need domain.Need) (chosen []domain.Name, ok bool)
}

// suits tells whether the node does this kind of work at all.
func (c *Candidate) suits(need domain.Need) bool {
	return (c.Pool == "" || c.Pool == need.Pool) && slices.Contains(c.Engines, need.Engine)
}

// BestFit takes the nodes that are left with the least: those with the fewest
// free accelerators, then the least free CPU; ties go by name. Big holes stay
// whole for big work, and work without accelerators stays off those that have
// some.
type BestFit struct{}

// Place implements Placement.
func (BestFit) Place(nodes []Candidate, need domain.Need) ([]domain.Name, bool) {
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
