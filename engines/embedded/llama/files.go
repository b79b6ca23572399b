package llama

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"anneal/domain"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/safetensors"
)

const weightsFile = "model.safetensors"

// Load reads a model from a Hugging Face directory: config.json and
// model.safetensors, or the shards that its index names, stored as float32,
// float16 or bfloat16. A directory that is not such a model is a
// FailedPrecondition fault.
func Load(dir string) (*Weights, error) {
	c, err := ReadConfig(dir)
	if err != nil {
		return nil, err
	}
	file, err := safetensors.OpenDir(dir)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, ok := file.Lookup("model.embed_tokens.weight"); !ok || !info.Is(c.VocabSize, c.HiddenSize) {
		return nil, domain.Faultf(domain.FailedPrecondition,
			"the weights do not fit config.json: model.embed_tokens.weight must have the shape [%d %d]", c.VocabSize, c.HiddenSize)
	}
	w := NewWeights(c)
	for _, t := range w.Tensors(safetensors.F32) {
		if err := file.Read(t.Data, t.Name, t.Shape...); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// Save writes config.json and model.safetensors into dir, which must exist. The
// values are stored as the configuration's torch_dtype says.
func (w *Weights) Save(dir string) error {
	c := w.Config
	if len(c.Architectures) == 0 {
		c.Architectures = []string{families[c.ModelType]}
	}
	dtype := safetensors.F32
	switch c.TorchDType {
	case "bfloat16":
		dtype = safetensors.BF16
	case "float16":
		dtype = safetensors.F16
	}
	if err := writeJSON(filepath.Join(dir, "config.json"), c); err != nil {
		return err
	}
	return safetensors.WriteFile(filepath.Join(dir, weightsFile), w.Tensors(dtype), nil)
}

// Tensors names every parameter as checkpoints do, to be stored as dtype.
func (w *Weights) Tensors(dtype safetensors.DType) []safetensors.Tensor {
	var out []safetensors.Tensor
	vector := func(name string, v []float32) {
		out = append(out, safetensors.Tensor{Info: safetensors.Info{Name: name, DType: dtype, Shape: []int{len(v)}}, Data: v})
	}
	matrix := func(name string, m kernel.Matrix) { out = append(out, tensorOf(name, m, dtype)) }
	matrix("model.embed_tokens.weight", w.Embed)
	for i := range w.Layers {
		l, prefix := &w.Layers[i], fmt.Sprintf("model.layers.%d.", i)
		vector(prefix+"input_layernorm.weight", l.AttnNorm)
		vector(prefix+"post_attention_layernorm.weight", l.MLPNorm)
		if l.QNorm != nil {
			vector(prefix+"self_attn.q_norm.weight", l.QNorm)
			vector(prefix+"self_attn.k_norm.weight", l.KNorm)
		}
		for m := range Modules {
			matrix(prefix+m.Path()+".weight", l.Matrix(m))
			if bias := w.Config.bias(l, m); bias != nil {
				vector(prefix+m.Path()+".bias", bias)
			}
		}
	}
	vector("model.norm.weight", w.Norm)
	if !w.Config.TieWordEmbeddings {
		matrix("lm_head.weight", w.Head)
	}
	return out
}

func tensorOf(name string, m kernel.Matrix, dtype safetensors.DType) safetensors.Tensor {
	return safetensors.Tensor{Info: safetensors.Info{Name: name, DType: dtype, Shape: []int{m.Rows, m.Cols}}, Data: m.Data[:m.Rows*m.Cols]}
}

// writeJSON writes a value as an indented file, whole or not at all.
func writeJSON(path string, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	part := path + ".part"
	if err := os.WriteFile(part, append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(part, path)
}
