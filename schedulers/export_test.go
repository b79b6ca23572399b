package schedulers

import (
	"anneal/domain"
	"anneal/projections"
)

// PlaceForTest returns the nodes that a plan would choose for the need; nil when it does not fit.
func PlaceForTest(v *projections.View, need domain.Need) []domain.Name {
	chosen, _ := fleetOf(v).place(v, need, nil)
	if chosen == nil {
		return nil
	}
	return namesOf(chosen)
}
