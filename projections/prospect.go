package projections

import (
	"iter"

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

// Prospect is what the nodes have for a need.
func (v *View) Prospect(need domain.Need) domain.Prospect { return domain.ProspectOf(need, v.Fleet()) }
