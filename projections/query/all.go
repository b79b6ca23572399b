package query

import (
	"iter"
	"math"
	"slices"

	"anneal/domain"
	"anneal/projections"
)

// All returns all rows that match q, rendered and in the order of q, like List without pages.
func All[S domain.State, R any](rows iter.Seq[*projections.Row[S]], render func(*projections.Row[S], *R),
	fields *Fields[R], q Query) ([]R, error) {
	l, err := prepare(Rendering[S, R]{All: render}, fields, q)
	if err != nil {
		return nil, err
	}
	l.size = math.MaxInt
	for row := range rows {
		l.consider(row, false)
	}
	slices.SortFunc(l.kept.all, l.kept.compare)
	return l.page(q).Items, nil
}
