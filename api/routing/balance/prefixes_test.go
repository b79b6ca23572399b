package balance

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A modelList is a list of blocks in the order of their last use, the newest first.
type modelList struct {
	blocks []uint64
	limit  int
}

func (l *modelList) use(blocks []uint64) {
	blocks = blocks[:min(len(blocks), l.limit)]
	for _, block := range slices.Backward(blocks) {
		l.blocks = slices.DeleteFunc(l.blocks, func(b uint64) bool { return b == block })
		l.blocks = slices.Insert(l.blocks, 0, block)
	}
	l.blocks = l.blocks[:min(len(l.blocks), l.limit)]
}

func (l *modelList) leading(blocks []uint64) int32 {
	for i, block := range blocks {
		if !slices.Contains(l.blocks, block) {
			return int32(i)
		}
	}
	return int32(len(blocks))
}

// TestPrefixesEqualLists compares the index of prefixes with one list of blocks for each replica.
func TestPrefixesEqualLists(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const replicas = 70 // more than one word of a replicaSet
		p := prefixes{holders: map[uint64]*replicaSet{}}
		model := make([]modelList, replicas)
		for r := range replicas {
			limit := 1 + r%7
			p.lists = append(p.lists, newBlockList(limit))
			model[r].limit = limit
		}
		// prompts are paths in a tree, so that equal hashes mean equal prefixes
		prompt := rapid.Custom(func(t *rapid.T) []uint64 {
			blocks, at := []uint64{}, uint64(1)
			for _, branch := range rapid.SliceOfN(rapid.Uint64Range(0, 1), 0, 6).Draw(t, "branches") {
				at = at*2 + branch
				blocks = append(blocks, at)
			}
			return blocks
		})
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			r := rapid.SampledFrom([]int{0, 1, 5, 63, 64, 69}).Draw(t, "replica")
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				p.clear(r)
				model[r].blocks = nil
			case 1:
				limit := rapid.IntRange(1, 8).Draw(t, "limit")
				p.lists[r].limit, model[r].limit = limit, limit
				p.shrink(r)
				model[r].blocks = model[r].blocks[:min(len(model[r].blocks), limit)]
			default:
				blocks := prompt.Draw(t, "prompt")
				p.use(r, blocks)
				model[r].use(blocks)
			}
			blocks := prompt.Draw(t, "asked")
			counts := make([]int32, replicas)
			p.cached(blocks, &replicaSet{}, counts)
			for r := range replicas {
				require.Equal(t, model[r].leading(blocks), counts[r], "replica %d", r)
			}
		}
		held := 0
		for _, holders := range p.holders {
			require.Positive(t, holders.count)
			held += holders.count
		}
		for r := range replicas {
			held -= len(p.lists[r].index)
		}
		require.Zero(t, held, "blocks of replicas are counted in the sets of holders")
	})
}
