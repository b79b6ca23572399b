package schedulers

import (
	"cmp"
	"slices"

	"anneal/domain"
)

// A Candidate is a READY node that a Placement can choose.
type Candidate struct {
	Name    domain.Name
	Pool    string // "" accepts work of every pool
	Region  string // see domain.Node.RegionIn
	Engines []string
	// Cordoned reports that the node gets no new work
	Cordoned bool
	Labels   map[string]string
	Taints   []domain.Taint
	Free     domain.Resources // negative on a node whose capacity has shrunk
}

// A Placement chooses nodes for a need. Place returns need.Count distinct nodes with enough free
// resources; ok is false when there are fewer. Place must be pure.
type Placement interface {
	Place(nodes []Candidate, need domain.Need) (chosen []domain.Name, ok bool)
}

// suits reports whether the node is not cordoned, accepts work of the need's pool, has the need's
// engine, is in one of the need's regions, and is allowed by the policy of the need's account.
func (c *Candidate) suits(need domain.Need) bool {
	return !c.Cordoned && (c.Pool == "" || c.Pool == need.Pool) && slices.Contains(c.Engines, need.Engine) &&
		need.Allows(c.Region) && need.Admits(c.Labels, c.Taints)
}

// BestFit chooses the nodes with the fewest free accelerators, then those with the least free CPU,
// then by name. So nodes with many free resources stay available for work that needs many, and work
// without accelerators avoids nodes with accelerators.
type BestFit struct{}

// Place implements Placement.
func (BestFit) Place(nodes []Candidate, need domain.Need) ([]domain.Name, bool) {
	var fitting []*Candidate
	for i := range nodes {
		if node := &nodes[i]; node.suits(need) && need.Resources.Fits(node.Free) {
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

// tighter compares nodes in the order of BestFit.
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
