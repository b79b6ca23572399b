package projections

import (
	"iter"
	"slices"

	"anneal/domain"
)

// Fleet yields every node, in the order of names.
func (v *View) Fleet() iter.Seq2[domain.Name, domain.Node] {
	return func(yield func(domain.Name, domain.Node) bool) {
		for row := range v.Nodes.All() {
			if !yield(row.Name, row.State) {
				return
			}
		}
	}
}

// Feasibility is what the nodes have for a need.
func (v *View) Feasibility(need domain.Need) domain.Feasibility {
	return domain.FeasibilityOf(need, v.Fleet())
}

// Alive are the replicas of a deployment in order, but for those whose nodes
// are lost: they are about to be taken from it.
func (v *View) Alive(d *domain.Deployment) []domain.Replica {
	return slices.DeleteFunc(d.Ordered(), func(r domain.Replica) bool {
		node, known := v.Nodes.Get(r.Node)
		return known && node.State.Absent()
	})
}

// NeedOf is what one replica of a deployment needs of the fleet, as far as its
// model is known.
func (v *View) NeedOf(d *domain.Deployment) domain.Need {
	row, ok := v.Models.Get(domain.Name(d.BaseModel))
	switch {
	case !ok:
		return d.Need(domain.Hosted{})
	case row.State.Kind == domain.PEFTAddon:
		base, ok := v.Models.Get(domain.Name(row.State.BaseModel))
		if !ok {
			return d.Need(domain.Hosted{})
		}
		return d.Need(base.State.Hosted("").Merged())
	}
	return d.Need(row.State.Hosted(d.Served()))
}
