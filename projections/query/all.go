package query

import (
	"iter"
	"math"
	"slices"

	"anneal/domain"
	"anneal/projections"
)

// All is like List, but returns all rows that match q, without pages.
func All[S domain.State, R any](rows iter.Seq[*projections.Row[S]], render func(*projections.Row[S], *R),
	fields *Fields[R], q Query) ([]R, error) {
	l, err := prepare(Rendering[S, R]{Whole: render}, fields, q)
	if err != nil {
		return nil, err
	}
	l.size = math.MaxInt
	for row := range rows {
		l.offer(row)
	}
	slices.SortFunc(l.kept.all, l.kept.compare)
	return l.page(q).Items, nil
}
