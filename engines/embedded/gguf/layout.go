package gguf

import (
	"fmt"

	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/quant"
	"anneal/engines/embedded/safetensors"
)

// A layout collects the tensors of a model under llama.cpp's names.
type layout struct {
	config  *llama.Config
	files   *safetensors.Shards
	as      FileType
	adapter *llama.Adapter // adapter to merge into the projections; nil for none
	workers int

	replaced []Replaced
}

// modules are llama.cpp's names of the projections.
var modules = [llama.Modules]string{"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}

func (l *layout) tensors() []tensor {
	c := l.config
	embedding := role{layer: -1, head: c.TieWordEmbeddings}
	all := []tensor{l.matrix("token_embd.weight", "model.embed_tokens.weight", embedding, c.VocabSize, c.HiddenSize)}
	if c.Scaling().Kind() == llama.Llama3Rope {
		all = append(all, l.frequencies())
	}
	for i := range c.Layers {
		all = append(all, l.layer(i)...)
	}
	all = append(all, l.vector("output_norm.weight", "model.norm.weight", c.HiddenSize))
	if !c.TieWordEmbeddings {
		all = append(all, l.matrix("output.weight", "lm_head.weight", role{layer: -1, head: true}, c.VocabSize, c.HiddenSize))
	}
	return all
}

func (l *layout) layer(i int) []tensor {
	c, to, from := l.config, fmt.Sprintf("blk.%d.", i), fmt.Sprintf("model.layers.%d.", i)
	all := []tensor{
		l.vector(to+"attn_norm.weight", from+"input_layernorm.weight", c.HiddenSize),
		l.vector(to+"ffn_norm.weight", from+"post_attention_layernorm.weight", c.HiddenSize),
	}
	if c.HeadNorms() {
		all = append(all, l.vector(to+"attn_q_norm.weight", from+"self_attn.q_norm.weight", c.HeadDim),
			l.vector(to+"attn_k_norm.weight", from+"self_attn.k_norm.weight", c.HeadDim))
	}
	for m := range llama.Modules {
		out, in := m.Shape(c)
		all = append(all, l.projection(to+modules[m]+".weight", from+m.Path()+".weight", i, m, out, in))
		if c.Biased(m) {
			bias := l.vector(to+modules[m]+".bias", from+m.Path()+".bias", out)
			bias.read = interleaved(bias.read, rotatedHeads(c, m), out)
			all = append(all, bias)
		}
	}
	return all
}

// projection returns the tensor of a projection, into which the adapter is merged.
func (l *layout) projection(name, from string, i int, m llama.Module, out, in int) tensor {
	t := l.matrix(name, from, role{layer: i, m: m}, out, in)
	stored := t.read
	merged := func() ([]float32, error) {
		data, err := stored()
		if err == nil && l.adapter.Has(m) {
			l.adapter.MergeModule(i, m, kernel.Matrix{Data: data, Rows: out, Cols: in, Stride: in}, l.workers)
		}
		return data, err
	}
	t.read = interleaved(merged, rotatedHeads(l.config, m), out)
	return t
}

// rotatedHeads returns the number of heads of a projection whose rows must be reordered, because
// ggml's llama architecture rotates other pairs of rows than the checkpoint. It returns 0 for
// projections that keep their order.
func rotatedHeads(c *llama.Config, m llama.Module) int {
	if architectures[c.ModelType] != "llama" {
		return 0
	}
	return map[llama.Module]int{llama.Query: c.Heads, llama.Key: c.KVHeads}[m]
}

// matrix returns the tensor name of the GGUF file, with the values of the checkpoint's matrix
// source.
func (l *layout) matrix(name, source string, r role, rows, columns int) tensor {
	wanted := matrixType(l.config, l.as, r)
	as := fitting(wanted, columns)
	if as != wanted {
		l.replaced = addReplaced(l.replaced, Replaced{wanted, as, columns, 1})
	}
	return l.stored(name, source, as, rows, columns)
}

func (l *layout) vector(name, from string, n int) tensor { return l.stored(name, from, quant.F32, n) }

func (l *layout) stored(name, from string, as quant.Type, shape ...int) tensor {
	t := tensor{name: name, shape: shape, as: as}
	t.read = func() ([]float32, error) {
		data := make([]float32, t.count())
		return data, l.files.Read(data, from, shape...)
	}
	return t
}

// interleaved returns a function that calls read, and reorders the rows of each head for ggml's
// llama architecture: from the pairs (j, j + half) to (2j, 2j+1). rows is the number of rows of all
// heads. If heads is 0, interleaved returns read.
func interleaved(read func() ([]float32, error), heads, rows int) func() ([]float32, error) {
	if heads == 0 {
		return read
	}
	return func() ([]float32, error) {
		data, err := read()
		if err != nil {
			return nil, err
		}
		return interleave(data, heads, rows/heads), nil
	}
}

// interleave moves row j + half of each head to the place after row j. dim is the number of rows of
// a head.
func interleave(data []float32, heads, dim int) []float32 {
	row, half := len(data)/(heads*dim), dim/2
	out := make([]float32, 0, len(data))
	for head := range heads {
		for j := range half {
			for _, at := range []int{head*dim + j, head*dim + j + half} {
				out = append(out, data[at*row:(at+1)*row]...)
			}
		}
	}
	return out
}

// frequencies returns the tensor of the numbers by which ggml divides the angles of the rotary
// embedding.
func (l *layout) frequencies() tensor {
	half := l.config.HeadDim / 2
	return tensor{name: "rope_freqs.weight", shape: []int{half}, as: quant.F32, read: func() ([]float32, error) {
		out := make([]float32, half)
		for j := range out {
			out[j] = float32(l.config.RopeDivisor(j))
		}
		return out, nil
	}}
}
