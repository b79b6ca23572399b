package gguf

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/quant"
)

// TestMatrixType compares the layers in which the mixes store attn_v and ffn_down in more bits with
// those of llama.cpp's use_more_bits: the first and the last eighth, and every third between.
func TestMatrixType(t *testing.T) {
	for _, c := range []struct {
		layers int
		more   []int
	}{
		{1, []int{0}},
		{4, []int{2, 3}},
		{16, []int{0, 1, 4, 7, 10, 13, 14, 15}},
		{24, []int{0, 1, 2, 5, 8, 11, 14, 17, 20, 21, 22, 23}},
		{32, []int{0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31}},
	} {
		for file, common := range map[FileType]quant.Type{Q4_K_M: quant.Q4_K, Q5_K_M: quant.Q5_K, Q8_0: quant.Q8_0,
			F16: quant.F16} {
			config := &llama.Config{ModelType: "llama", Layers: c.layers}
			var more []int
			for i := range c.layers {
				for m := range llama.Modules {
					as := matrixType(config, file, role{layer: i, m: m})
					switch {
					case as == quant.Q6_K && m == llama.Value:
						more = append(more, i)
					case as == quant.Q6_K && m == llama.Down:
						assert.Equal(t, i, more[len(more)-1], "the layers of attn_v are those of ffn_down")
					default:
						assert.Equal(t, common, as)
					}
				}
			}
			if file.Mixed() {
				assert.Equal(t, c.more, more, "%s of %d layers", file, c.layers)
			} else {
				assert.Empty(t, more)
			}
		}
	}
}

// TestLargeModels checks the rule for models of 70 billion parameters.
func TestLargeModels(t *testing.T) {
	large := role{layer: 10, m: llama.Value}
	for model, want := range map[string]quant.Type{"llama": quant.Q5_K, "qwen2": quant.Q5_K, "qwen3": quant.Q4_K} {
		assert.Equal(t, want, matrixType(&llama.Config{ModelType: model, Layers: 80}, Q4_K_M, large), model)
	}
	c := &llama.Config{ModelType: "llama", Layers: 80}
	assert.Equal(t, quant.Q5_K, matrixType(c, Q5_K_M, large))
	assert.Equal(t, quant.Q4_K, matrixType(c, Q4_K_M, role{layer: 10, m: llama.Down}))
	assert.Equal(t, quant.Q6_K, matrixType(c, Q4_K_M, role{layer: -1, head: true}))
	assert.Equal(t, quant.Q4_K, matrixType(c, Q4_K_M, role{layer: -1}))
}

// TestFitting checks that fitting chooses the types of llama.cpp for rows that are not a multiple
// of a block.
func TestFitting(t *testing.T) {
	for _, c := range []struct {
		as      quant.Type
		columns int
		want    quant.Type
	}{
		{quant.Q4_K, 512, quant.Q4_K}, {quant.Q4_K, 96, quant.Q5_0}, {quant.Q4_K, 100, quant.F16},
		{quant.Q5_K, 896, quant.Q5_1}, {quant.Q6_K, 896, quant.Q8_0}, {quant.Q6_K, 65, quant.F16},
		{quant.Q8_0, 896, quant.Q8_0}, {quant.Q8_0, 48, quant.F16}, {quant.BF16, 7, quant.BF16}, {quant.F32, 7, quant.F32},
	} {
		assert.Equal(t, c.want, fitting(c.as, c.columns), "%s with rows of %d", c.as, c.columns)
	}
}
