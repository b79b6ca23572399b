package llama

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"anneal/domain"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/safetensors"
)

const weightsFile = "model.safetensors"

// Load loads a model from a Hugging Face directory: config.json and model.safetensors, or the files
// that its index lists. The values can be float32, float16, bfloat16, or 8-bit values with scales.
// It returns FailedPrecondition for any other directory.
func Load(dir string) (*Weights, error) {
	c, file, err := openFiles(dir)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	w := NewWeights(c)
	return w, readAll(file, w.Tensors(safetensors.F32))
}

// openFiles reads config.json and opens the files with weights, which the caller closes.
func openFiles(dir string) (c Config, file *safetensors.Shards, err error) {
	if c, err = ReadConfig(dir); err != nil {
		return c, nil, err
	}
	if file, err = safetensors.OpenDir(dir); err != nil {
		return c, nil, err
	}
	if info, ok := file.Lookup(embedName); !ok || !info.Is(c.VocabSize, c.HiddenSize) {
		return c, nil, errors.Join(domain.Errorf(domain.FailedPrecondition,
			"config.json and weights do not match: %s must have the shape [%d %d]", embedName, c.VocabSize, c.HiddenSize),
			file.Close())
	}
	return c, file, nil
}

func readAll(file *safetensors.Shards, tensors []safetensors.Tensor) error {
	for _, t := range tensors {
		if err := file.Read(t.Data, t.Name, t.Shape...); err != nil {
			return err
		}
	}
	return nil
}

// Save writes config.json and model.safetensors to the directory dir, which must exist. It stores
// the values in the configuration's torch_dtype.
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

// Tensors returns all parameters with their names in checkpoints. dtype is the type in which they
// will be stored.
func (w *Weights) Tensors(dtype safetensors.DType) []safetensors.Tensor {
	out := []safetensors.Tensor{tensorOf(embedName, w.Embed, dtype)}
	for i := range w.Layers {
		out = append(out, w.Config.tensors(i, &w.Layers[i], dtype)...)
	}
	out = append(out, vectorOf(normName, w.Norm, dtype))
	if !w.Config.TieWordEmbeddings {
		out = append(out, tensorOf(headName, w.Head, dtype))
	}
	return out
}

const (
	embedName = "model.embed_tokens.weight"
	normName  = "model.norm.weight"
	headName  = "lm_head.weight"
)

// projection returns the name of a projection in checkpoints.
func projection(layer int, m Module) string {
	return fmt.Sprintf("model.layers.%d.%s.weight", layer, m.Path())
}

// tensors returns the parameters of layer i, which are in l, with their names in checkpoints.
func (c *Config) tensors(i int, l *Layer, dtype safetensors.DType) []safetensors.Tensor {
	prefix := fmt.Sprintf("model.layers.%d.", i)
	out := []safetensors.Tensor{
		vectorOf(prefix+"input_layernorm.weight", l.AttnNorm, dtype),
		vectorOf(prefix+"post_attention_layernorm.weight", l.MLPNorm, dtype),
	}
	if l.QNorm != nil {
		out = append(out, vectorOf(prefix+"self_attn.q_norm.weight", l.QNorm, dtype),
			vectorOf(prefix+"self_attn.k_norm.weight", l.KNorm, dtype))
	}
	for m := range Modules {
		out = append(out, tensorOf(projection(i, m), l.Matrix(m), dtype))
		if bias := c.bias(l, m); bias != nil {
			out = append(out, vectorOf(prefix+m.Path()+".bias", bias, dtype))
		}
	}
	return out
}

func vectorOf(name string, v []float32, dtype safetensors.DType) safetensors.Tensor {
	return safetensors.Tensor{Info: safetensors.Info{Name: name, DType: dtype, Shape: []int{len(v)}}, Data: v}
}

func tensorOf(name string, m kernel.Matrix, dtype safetensors.DType) safetensors.Tensor {
	return safetensors.Tensor{
		Info: safetensors.Info{Name: name, DType: dtype, Shape: []int{m.Rows, m.Cols}}, Data: m.Data[:m.Rows*m.Cols],
	}
}

// writeJSON writes a value as indented JSON to the file at path, completely or not at all.
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
