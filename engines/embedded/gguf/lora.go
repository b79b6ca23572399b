package gguf

import (
	"context"
	"fmt"
	"io"

	"anneal/domain"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
)

// ExportAdapter writes the LoRA adapter in the PEFT directory dir to out in GGUF, as llama.cpp's
// flag --lora reads it. Each matrix A [rank, in] becomes a tensor with the name of the model's
// tensor and the suffix ".lora_a", and each matrix B [out, rank] one with the suffix ".lora_b".
// llama.cpp adds alpha/rank·B·A to the model's tensor. base is the directory of the base model, of
// which only config.json is read. ExportAdapter returns FailedPrecondition if GGUF does not support
// the model or the adapter.
func ExportAdapter(ctx context.Context, out io.Writer, dir, base string, o Options) ([]Replaced, error) {
	if o.Type.Mixed() {
		return nil, domain.Errorf(domain.InvalidArgument,
			"type: must be f32, f16, bf16 or q8_0 for an adapter, is %q: merge the adapter into its base model for %s",
			o.Type, o.Type)
	}
	c, err := readConfig(base)
	if err != nil {
		return nil, err
	}
	a, err := llama.LoadAdapter(dir, "", c)
	if err != nil {
		return nil, err
	}
	metadata := []value{
		{"general.architecture", architectures[c.ModelType]}, {"general.type", "adapter"}, {"general.name", o.Name},
		{"general.file_type", uint32(o.Type)}, {"adapter.type", "lora"}, {"adapter.lora.alpha", float32(a.Alpha)},
	}
	if o.Type.matrix().Block() > 1 {
		metadata = append(metadata, value{"general.quantization_version", uint32(quantizationVersion)})
	}
	var tensors []tensor
	var replaced []Replaced
	add := func(name string, m kernel.Matrix, heads int) {
		t := tensor{name: name, shape: []int{m.Rows, m.Cols}, as: fitting(o.Type.matrix(), m.Cols)}
		if t.as != o.Type.matrix() {
			replaced = addReplaced(replaced, Replaced{o.Type.matrix(), t.as, m.Cols, 1})
		}
		read := func() ([]float32, error) { return m.Data[:m.Rows*m.Cols], nil }
		t.read = interleaved(read, heads, m.Rows)
		tensors = append(tensors, t)
	}
	for i := range a.Layers {
		for _, m := range a.Modules() {
			name, pair := fmt.Sprintf("blk.%d.%s.weight", i, modules[m]), &a.Layers[i][m]
			add(name+".lora_a", pair.A, 0)
			add(name+".lora_b", pair.B, rotatedHeads(&c, m))
		}
	}
	return replaced, write(ctx, out, metadata, tensors, o)
}
