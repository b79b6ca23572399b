package rows_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/domain/rows"
)

func chosen(split domain.Split) (side []int) {
	c := rows.NewChooser(split)
	for row := range int(split.Of) {
		if c.Next() {
			side = append(side, row)
		}
	}
	return side
}

func TestASplitHoldsExactlyAsManyRowsAsItSays(t *testing.T) {
	for _, split := range []domain.Split{{Held: 1, Of: 2}, {Held: 1, Of: 10, Seed: 1}, {Held: 9, Of: 10, Seed: 2},
		{Held: 1000, Of: 12_345, Seed: domain.MaxSeed}} {
		held := chosen(split)
		require.Len(t, held, int(split.Held))
		require.Equal(t, held, chosen(split), "the same split selects the same rows")
		split.Rest = true
		rest := chosen(split)
		require.Len(t, rest, int(split.Of-split.Held))
		both := map[int]bool{}
		for _, row := range append(held, rest...) {
			both[row] = true
		}
		require.Len(t, both, int(split.Of), "every row is on one side, none on both")
	}
}

// TestNoRowIsPreferred checks that a split holds out every row about equally often over many seeds:
// each row's count is within five standard deviations of the mean of a binomial distribution.
func TestNoRowIsPreferred(t *testing.T) {
	const seeds, of, held = 5000, 40, 4
	var counts [of]int
	for seed := range seeds {
		for _, row := range chosen(domain.Split{Held: held, Of: of, Seed: seed}) {
			counts[row]++
		}
	}
	share := float64(held) / of
	for row, n := range counts {
		require.InDelta(t, seeds*share, n, 5*math.Sqrt(seeds*share*(1-share)), "row %d", row)
	}
}
