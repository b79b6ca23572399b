package projections

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// checkBlocks checks that the blocks of an account have the rows of the account, and that all blocks except
// the last are full.
func checkBlocks[S domain.State](t *testing.T, table *Table[S], account string) {
	t.Helper()
	var found []*Row[S]
	blocks := table.Blocks(account)
	for i, b := range blocks {
		require.True(t, b.Len() == BlockRows || i == len(blocks)-1 && b.Len() > 0)
		for j := range b.Len() {
			found = append(found, b.Row(j))
		}
	}
	want := slices.Collect(table.In(account))
	require.ElementsMatch(t, want, found, account)
}

// TestBlocksHaveTheRowsOfTheirView checks that the blocks of every view have the rows of the view, and that
// a value that was derived from a block remains that of the rows while later events change the world.
func TestBlocksHaveTheRowsOfTheirView(t *testing.T) {
	events := randomLog(t, rand.New(rand.NewPCG(5, 6)), 6_000)
	w := NewWorld()
	type derived struct {
		block *Block[domain.Dataset]
		names []string
	}
	var views []*View
	var all []derived
	namesOf := func(b *Block[domain.Dataset]) []string {
		return b.Derive("names", func() any {
			var names []string
			for i := range b.Len() {
				names = append(names, string(b.Row(i).Name)+b.Row(i).State.DisplayName)
			}
			return names
		}).([]string)
	}
	for _, e := range events {
		require.NoError(t, w.Apply(e))
		if e.Position%100 == 1 {
			views = append(views, w.View())
			for _, b := range w.View().Datasets.Blocks("a0") {
				all = append(all, derived{b, slices.Clone(namesOf(b))})
			}
		}
	}
	for _, v := range append(views, Fork(w).View()) {
		for _, account := range []string{"a0", "a1", "a2", "nobody"} {
			checkBlocks(t, v.Datasets, account)
			checkBlocks(t, v.Models, account)
		}
	}
	for _, one := range all {
		require.Equal(t, one.names, namesOf(one.block))
		one.block.derived.Store(nil)
		require.Equal(t, one.names, namesOf(one.block), "the rows have changed")
	}
}

func TestBlocksKeepFewDerivedValues(t *testing.T) {
	var b Block[domain.Dataset]
	calls := 0
	for range 2 {
		for key := range 2 * maxDerived {
			b.Derive(key, func() any { calls++; return key })
			require.Equal(t, key, b.Derive(key, nil))
		}
	}
	require.Equal(t, 4*maxDerived, calls)
	require.Len(t, *b.derived.Load(), maxDerived)
}
