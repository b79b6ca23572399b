package gguf_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines/embedded/gguf"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/miniature"
)

// adapted writes a miniature model and an adapter of all its projections.
func adapted(t *testing.T, family string) (base, dir string, w *llama.Weights, a *llama.Adapter) {
	t.Helper()
	base, dir = t.TempDir(), t.TempDir()
	require.NoError(t, miniature.Write(base, family))
	w, err := llama.Load(base)
	require.NoError(t, err)
	var all []llama.Module
	for m := range llama.Modules {
		all = append(all, m)
	}
	a = llama.NewAdapter(w.Config, 4, 8, all)
	source := rand.New(rand.NewPCG(1, 2))
	for i := range a.Flat() {
		a.Flat()[i] = float32(source.NormFloat64() * 0.1)
	}
	a.BaseHash = w.Hash()
	require.NoError(t, a.Save(dir, 0))
	return base, dir, w, a
}

var names = map[llama.Module]string{llama.Query: "attn_q", llama.Key: "attn_k", llama.Value: "attn_v",
	llama.Output: "attn_output", llama.Gate: "ffn_gate", llama.Up: "ffn_up", llama.Down: "ffn_down"}

// TestMergedExport checks that a file with a merged adapter has the weights that the engine computes
// with when it serves the adapter.
func TestMergedExport(t *testing.T) {
	for _, family := range miniature.Families() {
		base, _, w, a := adapted(t, family)
		f, merged := exportWith(t, base, "f32", a), a.Merge(w)
		for i := range merged.Layers {
			for m, name := range names {
				want := merged.Layers[i].Matrix(m).Data
				if m == llama.Query || m == llama.Key {
					want = permutedHeads(merged, want)
				}
				require.Equal(t, want, f.tensors["blk."+string(rune('0'+i))+"."+name+".weight"].values, "%s %s", family, name)
			}
		}
		require.Equal(t, w.Embed.Data, f.tensors["token_embd.weight"].values)
	}
}

// TestExportAdapter reads LoRA files back: with the weights of the base model's file and the formula
// of llama.cpp, W + alpha/rank·B·A, they give the weights of the file with the merged adapter.
func TestExportAdapter(t *testing.T) {
	for _, family := range miniature.Families() {
		base, dir, w, a := adapted(t, family)
		var out bytes.Buffer
		replaced, err := gguf.ExportAdapter(t.Context(), &out, dir, base, gguf.Options{Name: "polite", Type: gguf.F32})
		require.NoError(t, err)
		require.Empty(t, replaced)
		f, plain, merged := parse(t, out.Bytes()), export(t, base, "f32"), exportWith(t, base, "f32", a)
		architecture := map[string]string{"llama3": "llama"}[family]
		if architecture == "" {
			architecture = family
		}
		for key, want := range map[string]any{"general.architecture": architecture, "general.type": "adapter",
			"adapter.type": "lora", "adapter.lora.alpha": float32(8), "general.name": "polite",
			"general.file_type": uint32(0)} {
			assert.Equal(t, want, f.metadata[key], key)
		}
		require.Len(t, f.tensors, 2*7*w.Config.Layers)
		for name, want := range merged.tensors {
			lower, ok := f.tensors[name+".lora_a"]
			if !ok {
				require.Equal(t, plain.tensors[name].values, want.values, name)
				continue
			}
			upper := f.tensors[name+".lora_b"]
			columns, rank, rows := int(lower.shape[0]), int(lower.shape[1]), int(upper.shape[1])
			require.Equal(t, []uint64{4, uint64(rows)}, upper.shape, "innermost first")
			require.Equal(t, []uint64{uint64(columns), uint64(rows)}, want.shape)
			scale := float64(8) / float64(rank)
			for i, v := range plain.tensors[name].values {
				sum := 0.0
				for r := range rank {
					sum += float64(upper.values[i/columns*rank+r]) * float64(lower.values[r*columns+i%columns])
				}
				require.InDelta(t, float64(v)+scale*sum, want.values[i], 1e-5, "%s %s value %d", family, name, i)
			}
		}
	}
}

func TestAdapterTypes(t *testing.T) {
	base, dir, _, a := adapted(t, "qwen3")
	for kind, near := range map[gguf.FileType]float64{gguf.F16: 1.0 / 2048, gguf.BF16: 1.0 / 256, gguf.Q8_0: 1.0 / 100} {
		var out bytes.Buffer
		replaced, err := gguf.ExportAdapter(t.Context(), &out, dir, base, gguf.Options{Type: kind})
		require.NoError(t, err)
		require.Equal(t, kind == gguf.Q8_0, len(replaced) == 1, "B has rows of 4 values, and is stored as F16")
		f := parse(t, out.Bytes())
		assert.InDeltaSlice(t, a.Layers[1][llama.Up].A.Data, f.tensors["blk.1.ffn_up.weight.lora_a"].values, near, kind)
		assert.InDeltaSlice(t, a.Layers[1][llama.Up].B.Data, f.tensors["blk.1.ffn_up.weight.lora_b"].values, near, kind)
	}
	_, err := gguf.ExportAdapter(t.Context(), &bytes.Buffer{}, dir, base, gguf.Options{Type: gguf.Q4_K_M})
	require.ErrorContains(t, err, `type: must be f32, f16, bf16 or q8_0 for an adapter, is "q4_k_m": merge the adapter`)
	assert.Equal(t, domain.InvalidArgument, domain.CodeOf(err))

	other, _ := resized(t, "qwen3", func(c *llama.Config) { c.Layers++ })
	_, err = gguf.ExportAdapter(t.Context(), &bytes.Buffer{}, dir, other, gguf.Options{})
	require.ErrorContains(t, err, "all 3 layers")
}

// TestTemplate checks that a template replaces that of the model.
func TestTemplate(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, miniature.Write(dir, "qwen2"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte("the model's"), 0o600))
	for given, want := range map[string]string{"": "the model's", "the adapter's": "the adapter's"} {
		var out bytes.Buffer
		_, err := gguf.Export(t.Context(), &out, dir, gguf.Options{Template: given})
		require.NoError(t, err)
		require.Equal(t, want, parse(t, out.Bytes()).metadata["tokenizer.chat_template"])
	}
}
