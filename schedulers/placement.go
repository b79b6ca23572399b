package schedulers

import (
	"cmp"
	"slices"

	"anneal/domain"
)

// A Candidate is a READY node for a Placement.
type Candidate struct {
	Name    domain.Name
	Pool    string // "" accepts work of every pool
	Engines []string
	Free    domain.Resources // negative on a node whose capacity has shrunk
}

// A Placement chooses nodes. It must be pure, and chooses distinct nodes with enough free resources,
// all of them or none.
type Placement interface {
	Place(nodes []Candidate, need domain.Need) (chosen []domain.Name, ok bool)
}

// suits reports whether the node runs this kind of work.
func (c *Candidate) suits(need domain.Need) bool {
	return (c.Pool == "" || c.Pool == need.Pool) && slices.Contains(c.Engines, need.Engine)
}

// BestFit chooses the nodes with the fewest free accelerators, then the least free CPU, then by name.
// So large free blocks stay available for large work, and work without accelerators avoids nodes
// that have some.
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

// tighter compares nodes by their free resources.
func tighter(a, b *Candidate) int {
	return cmp.Or(cmp.Compare(devices(a.Free), devices(b.Free)), cmp.Compare(a.Free.CPUMilli, b.Free.CPUMilli),
		cmp.Compare(a.Name, b.Name))
}

func devices(r domain.Resources) int {
	sum := 0
	for _, n := range r.Accelerators {
		sum += n
	}
	return sum
}
