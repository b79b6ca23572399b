package gguf_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines/embedded/gguf"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/miniature"
	"anneal/engines/embedded/quant"
	"anneal/internal/testutil"
)

// resized writes a model with the tokenizer of a miniature one, and with random weights of the
// changed configuration.
func resized(t *testing.T, family string, change func(c *llama.Config)) (dir string, w *llama.Weights) {
	t.Helper()
	small, dir := t.TempDir(), t.TempDir()
	require.NoError(t, miniature.Write(small, family))
	for _, file := range []string{"tokenizer.json", "tokenizer_config.json"} {
		data := testutil.ReadFile(t, filepath.Join(small, file))
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), data, 0o600))
	}
	c, err := llama.ReadConfig(small)
	require.NoError(t, err)
	c.TorchDType = "float32"
	change(&c)
	w = llama.NewWeights(c)
	w.Initialize(1)
	require.NoError(t, w.Save(dir))
	return dir, w
}

// wide changes a configuration so that all rows are multiples of 256 values.
func wide(layers int) func(c *llama.Config) {
	return func(c *llama.Config) {
		c.HiddenSize, c.IntermediateSize, c.Heads, c.KVHeads, c.HeadDim, c.Layers = 256, 512, 8, 2, 32, layers
	}
}

// TestMixes checks the types of all tensors of files of the mixed types. Of four layers, the last
// two have more bits.
func TestMixes(t *testing.T) {
	more := []int{2, 3}
	for _, family := range []string{"llama", "llama3"} { // with tied embeddings, and without
		dir, w := resized(t, family, wide(4))
		for kind, common := range map[string]quant.Type{"q4_k_m": quant.Q4_K, "q5_k_m": quant.Q5_K} {
			f := export(t, dir, kind)
			for name, one := range f.tensors {
				want, layer := common, -1
				if strings.HasPrefix(name, "blk.") {
					_, err := fmt.Sscanf(name, "blk.%d.", &layer)
					require.NoError(t, err)
				}
				sensitive := strings.HasSuffix(name, "attn_v.weight") || strings.HasSuffix(name, "ffn_down.weight")
				switch {
				case len(one.shape) == 1:
					want = quant.F32
				case name == "output.weight", name == "token_embd.weight" && w.Config.TieWordEmbeddings,
					sensitive && slices.Contains(more, layer):
					want = quant.Q6_K
				}
				assert.Equal(t, want, quant.Type(one.kind), "%s %s: %s", family, kind, name)
			}
			assert.EqualValues(t, map[string]uint32{"q4_k_m": 15, "q5_k_m": 17}[kind], f.metadata["general.file_type"])
			assert.EqualValues(t, 2, f.metadata["general.quantization_version"])
		}
	}
}

// TestQuantizedTensors bounds the root mean square of the errors of each matrix in units of the
// standard deviation of its values, as package quant's TestErrors does for each type.
func TestQuantizedTensors(t *testing.T) {
	dir, _ := resized(t, "llama3", wide(1))
	limits := map[quant.Type]float64{quant.Q4_K: 0.08, quant.Q5_K: 0.04, quant.Q6_K: 0.02, quant.Q8_0: 0.008}
	exact := export(t, dir, "f32")
	for _, kind := range []string{"q8_0", "q5_k_m", "q4_k_m"} {
		f := export(t, dir, kind)
		require.Len(t, f.tensors, len(exact.tensors))
		for name, want := range exact.tensors {
			got := f.tensors[name]
			if len(want.shape) == 1 {
				require.Equal(t, want.values, got.values, name)
				continue
			}
			squares, errors := 0.0, 0.0
			for i, v := range want.values {
				squares += float64(v) * float64(v)
				errors += math.Pow(float64(v-got.values[i]), 2)
			}
			require.Contains(t, limits, quant.Type(got.kind))
			require.Less(t, math.Sqrt(errors/squares), limits[quant.Type(got.kind)], "%s %s", kind, name)
		}
	}
}

// TestReplacedTypes checks that rows whose length is not a multiple of a block are stored in the
// types that llama.cpp falls back to, and that Export reports them.
func TestReplacedTypes(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, miniature.Write(dir, "llama3")) // rows of 64 and 96 values
	for kind, want := range map[gguf.FileType][]string{
		gguf.F16:  nil,
		gguf.Q8_0: nil,
		gguf.Q4_K_M: {
			"12 matrices with rows of 64 values, which is not a multiple of 256, are stored as Q5_0 instead of Q4_K",
			"1 matrices with rows of 96 values, which is not a multiple of 256, are stored as Q5_0 instead of Q4_K",
			"2 matrices with rows of 64 values, which is not a multiple of 256, are stored as Q8_0 instead of Q6_K",
			"1 matrices with rows of 96 values, which is not a multiple of 256, are stored as Q8_0 instead of Q6_K",
		},
		gguf.Q5_K_M: {
			"12 matrices with rows of 64 values, which is not a multiple of 256, are stored as Q5_1 instead of Q5_K",
			"1 matrices with rows of 96 values, which is not a multiple of 256, are stored as Q5_1 instead of Q5_K",
			"2 matrices with rows of 64 values, which is not a multiple of 256, are stored as Q8_0 instead of Q6_K",
			"1 matrices with rows of 96 values, which is not a multiple of 256, are stored as Q8_0 instead of Q6_K",
		},
	} {
		replaced, err := gguf.Export(t.Context(), &bytes.Buffer{}, dir, gguf.Options{Type: kind})
		require.NoError(t, err)
		var got []string
		for _, one := range replaced {
			got = append(got, one.String())
		}
		assert.ElementsMatch(t, want, got, kind)
	}
	odd, _ := resized(t, "qwen2", func(c *llama.Config) { c.IntermediateSize = 100 })
	f := export(t, odd, "q4_k_m")
	assert.Equal(t, quant.F16, quant.Type(f.tensors["blk.0.ffn_down.weight"].kind), "100 is not a multiple of 32 either")
}

// TestParallelExport checks that the number of cores does not affect the file, and that Progress
// counts all bytes.
func TestParallelExport(t *testing.T) {
	dir, _ := resized(t, "llama3", wide(2))
	var files [][]byte
	for _, workers := range []int{1, 3} {
		var out bytes.Buffer
		done, total := int64(0), int64(-1)
		_, err := gguf.Export(t.Context(), &out, dir, gguf.Options{Type: gguf.Q4_K_M, Workers: workers,
			Progress: func(_ string, bytes, all int64) { done, total = done+bytes, all }})
		require.NoError(t, err)
		require.Equal(t, total, done)
		files = append(files, out.Bytes())
	}
	require.True(t, bytes.Equal(files[0], files[1]))
}

func TestExportIsCanceled(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, miniature.Write(dir, "llama3"))
	ctx, cancel := context.WithCancel(t.Context())
	_, err := gguf.Export(ctx, &bytes.Buffer{}, dir, gguf.Options{Type: gguf.F16,
		Progress: func(string, int64, int64) { cancel() }})
	require.ErrorIs(t, err, context.Canceled)
}

// TestTooLargeValues checks that a value which a 16-bit float cannot represent is an error, not
// infinity.
func TestTooLargeValues(t *testing.T) {
	dir, w := resized(t, "llama", func(*llama.Config) {})
	w.Layers[1].Up.Data[3] = 70000
	require.NoError(t, w.Save(dir))
	for _, kind := range []gguf.FileType{gguf.F16, gguf.Q8_0, gguf.Q4_K_M} {
		_, err := gguf.Export(t.Context(), &bytes.Buffer{}, dir, gguf.Options{Type: kind})
		require.ErrorContains(t, err, "value 3 of blk.1.ffn_up.weight is 70000")
		require.ErrorContains(t, err, "export the model as bf16 or f32")
		require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	}
	for _, kind := range []gguf.FileType{gguf.F32, gguf.BF16} {
		_, err := gguf.Export(t.Context(), &bytes.Buffer{}, dir, gguf.Options{Type: kind})
		require.NoError(t, err)
	}
}
