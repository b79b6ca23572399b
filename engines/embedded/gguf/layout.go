package gguf

import (
	"fmt"

	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/safetensors"
)

// A layout maps a model's tensors to llama.cpp's names.
type layout struct {
	config *llama.Config
	files  *safetensors.Shards
	as     Type // of matrices
}

// modules are llama.cpp's names of the projections.
var modules = [llama.Modules]string{"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}

func (l *layout) tensors() []tensor {
	c := l.config
	all := []tensor{l.stored("token_embd.weight", "model.embed_tokens.weight", 0, c.VocabSize, c.HiddenSize)}
	if c.Scaling().Kind() == llama.Llama3Rope {
		all = append(all, l.frequencies())
	}
	for i := range c.Layers {
		all = append(all, l.layer(fmt.Sprintf("blk.%d.", i), fmt.Sprintf("model.layers.%d.", i))...)
	}
	all = append(all, l.stored("output_norm.weight", "model.norm.weight", 0, c.HiddenSize))
	if !c.TieWordEmbeddings {
		all = append(all, l.stored("output.weight", "lm_head.weight", 0, c.VocabSize, c.HiddenSize))
	}
	return all
}

func (l *layout) layer(to, from string) []tensor {
	c := l.config
	all := []tensor{
		l.stored(to+"attn_norm.weight", from+"input_layernorm.weight", 0, c.HiddenSize),
		l.stored(to+"ffn_norm.weight", from+"post_attention_layernorm.weight", 0, c.HiddenSize),
	}
	if c.HeadNorms() {
		all = append(all, l.stored(to+"attn_q_norm.weight", from+"self_attn.q_norm.weight", 0, c.HeadDim),
			l.stored(to+"attn_k_norm.weight", from+"self_attn.k_norm.weight", 0, c.HeadDim))
	}
	for m := range llama.Modules {
		out, in := m.Shape(c)
		heads := 0
		if architectures[c.ModelType] == "llama" {
			heads = map[llama.Module]int{llama.Query: c.Heads, llama.Key: c.KVHeads}[m]
		}
		all = append(all, l.stored(to+modules[m]+".weight", from+m.Path()+".weight", heads, out, in))
		if c.Biased(m) {
			all = append(all, l.stored(to+modules[m]+".bias", from+m.Path()+".bias", heads, out))
		}
	}
	return all
}

// stored is a tensor of the model's files. If heads is set, its rows are those of heads heads,
// and are reordered for ggml's rotation in the llama architecture: from pairs (j, j + half) to
// (2j, 2j+1).
func (l *layout) stored(name, from string, heads int, shape ...int) tensor {
	as := F32
	if len(shape) > 1 {
		as = l.as
	}
	if as == Q8 && shape[len(shape)-1]%block != 0 {
		as = F16 // rows that are not a multiple of the block size, as in llama.cpp's own tools
	}
	t := tensor{name: name, shape: shape, as: as}
	t.read = func() ([]float32, error) {
		data := make([]float32, t.count())
		if err := l.files.Read(data, from, shape...); err != nil {
			return nil, err
		}
		if heads > 0 {
			data = interleave(data, heads, shape[0]/heads)
		}
		return data, nil
	}
	return t
}

// interleave moves row j + half of each head after row j.
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

// frequencies are ggml's divisors of the rotation angles.
func (l *layout) frequencies() tensor {
	half := l.config.HeadDim / 2
	return tensor{name: "rope_freqs.weight", shape: []int{half}, as: F32, read: func() ([]float32, error) {
		out := make([]float32, half)
		for j := range out {
			out[j] = float32(l.config.RopeDivisor(j))
		}
		return out, nil
	}}
}
