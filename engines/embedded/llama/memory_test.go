package llama

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func TestModelsThatExceedTheMemory(t *testing.T) {
	c := Config{
		ModelType: "qwen2", HiddenSize: 3584, IntermediateSize: 18944, Layers: 28, Heads: 28, KVHeads: 4, HeadDim: 128,
		VocabSize: 152064,
	}
	require.Equal(t, int64(7_615_616_512), c.Parameters(), "the published number of parameters of Qwen2.5 7B")
	const need = 8 * 7_615_616_512
	err := fits(need, memory{8 << 30, 64 << 30}, "serve", "so many parameters")
	require.EqualError(t, err,
		"the embedded engine needs 56.7 GiB of memory to serve this model (so many parameters), but the machine has 8.0 "+
			"GiB free of 64.0 GiB: use a larger machine or a smaller model")
	require.Equal(t, domain.ResourceExhausted, domain.CodeOf(err))
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(fits(need, memory{8 << 30, 32 << 30}, "serve", "")),
		"it will never fit")
	require.NoError(t, fits(need, memory{}, "serve", ""), "unknown memory is not limited")
	small := tiny(true)
	require.NoError(t, small.FitsTraining(false, 4))
	require.NoError(t, small.FitsPool(256, small.SegmentBytes(256, 64)))
	err = small.FitsPool(1<<40, small.SegmentBytes(1<<40, 64))
	require.ErrorContains(t, err, "data of at most 1099511627776 tokens")
	require.ErrorContains(t, err, "or lower the maximum number of tokens of a datum")
}

// TestServedBytes checks that Reader.Bytes follows from the formats in which the weights are
// stored.
func TestServedBytes(t *testing.T) {
	for _, tied := range []bool{true, false} {
		for dtype, each := range map[string]int64{"float32": 4, "bfloat16": 2, "float16": 2} {
			c := tiny(tied)
			c.TorchDType = dtype
			dir := t.TempDir()
			w := NewWeights(c)
			require.NoError(t, w.Save(dir))
			r, err := Open(dir)
			require.NoError(t, err)
			embeddings := int64(len(w.Embed.Data))
			if !tied {
				embeddings *= 2
			}
			matrices := embeddings
			for _, l := range w.Layers {
				for m := range Modules {
					matrices += int64(len(l.Matrix(m).Data))
				}
			}
			bytes, scratch := r.Bytes()
			require.Equal(t, each*matrices, bytes)
			require.Positive(t, scratch)
			require.NoError(t, r.Fits(0))
			err = r.Fits(1 << 50)
			require.ErrorContains(t, err, fmt.Sprintf("%d parameters in ", c.Parameters()))
			require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
			r.Merge(NewAdapter(c, 1, 1, []Module{Query}))
			merged, _ := r.Bytes()
			require.Equal(t,
				embeddings*each+4*(matrices-embeddings),
				merged)
			require.NoError(t, r.Close())
		}
	}
}

func TestMemoryIn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meminfo")
	require.NoError(t, os.WriteFile(path, []byte("MemTotal:       24576 kB\nMemAvailable:    2048 kB\n"), 0o644))
	require.Equal(t, memory{free: 2 << 20, total: 24 << 20}, memoryIn(path))
	require.Zero(t, memoryIn(path+"x"))
	require.Zero(t, number(path))
}
