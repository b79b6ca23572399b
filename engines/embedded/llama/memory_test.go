package llama

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func TestModelsOverTheMemoryAreRefusedWithFigures(t *testing.T) {
	c := Config{ModelType: "qwen2", HiddenSize: 3584, IntermediateSize: 18944, Layers: 28, Heads: 28, KVHeads: 4, HeadDim: 128, VocabSize: 152064}
	require.Equal(t, int64(7_615_616_512), c.Parameters(), "as Qwen2.5 7B is published")
	err := c.within(servingBytes, memory{8 << 30, 64 << 30}, "serve")
	require.EqualError(t, err, "to serve this model the embedded engine needs 56.7 GiB of memory (7615616512 parameters, 8 bytes each), and the machine has 8.0 GiB free of 64.0 GiB: use a machine with more, or a smaller model")
	require.Equal(t, domain.ResourceExhausted, domain.CodeOf(err))
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(c.within(servingBytes, memory{8 << 30, 32 << 30}, "serve")), "it will never fit")
	require.NoError(t, c.within(servingBytes, memory{}, "serve"), "what is not known is not held against it")
	small := tiny(true)
	require.NoError(t, small.Fits())
	require.NoError(t, small.FitsTraining(false, 4))
}

func TestMemoryIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meminfo")
	require.NoError(t, os.WriteFile(path, []byte("MemTotal:       24576 kB\nMemAvailable:    2048 kB\n"), 0o644))
	require.Equal(t, memory{free: 2 << 20, total: 24 << 20}, memoryIn(path))
	require.Zero(t, memoryIn(path+"x"))
	require.Zero(t, number(path))
}
