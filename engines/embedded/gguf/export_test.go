package gguf_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/domain/weights"
	"anneal/engines/embedded"
	"anneal/engines/embedded/gguf"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/miniature"
	"anneal/engines/embedded/quant"
	"anneal/internal/testutil"
)

// A file is a GGUF file. Its methods parse it as the format's specification describes, without
// code of package gguf.
type file struct {
	*bytes.Reader
	t        *testing.T
	metadata map[string]any
	tensors  map[string]stored
}

type stored struct {
	shape  []uint64 // innermost first
	kind   uint32
	values []float32
}

func (f *file) u32() (v uint32) { return read(f, v) }
func (f *file) u64() (v uint64) { return read(f, v) }

func read[T any](f *file, v T) T {
	require.NoError(f.t, binary.Read(f, binary.LittleEndian, &v))
	return v
}

func (f *file) text() string {
	data := make([]byte, f.u64())
	_, err := f.Read(data)
	require.NoError(f.t, err)
	return string(data)
}

func (f *file) value(kind uint32) any {
	switch kind {
	case 4:
		return f.u32()
	case 5:
		return read(f, int32(0))
	case 6:
		return read(f, float32(0))
	case 7:
		return read(f, uint8(0)) == 1
	case 8:
		return f.text()
	}
	require.EqualValues(f.t, 9, kind)
	inner, n := f.u32(), f.u64()
	list := make([]any, n)
	for i := range list {
		list[i] = f.value(inner)
	}
	return list
}

func parse(t *testing.T, data []byte) *file {
	f := &file{bytes.NewReader(data), t, map[string]any{}, map[string]stored{}}
	require.Equal(t, uint32(0x46554747), f.u32())
	require.Equal(t, uint32(3), f.u32())
	tensors, entries := f.u64(), f.u64()
	for range entries {
		key := f.text()
		f.metadata[key] = f.value(f.u32())
	}
	offsets := map[string]uint64{}
	for range tensors {
		name, one := f.text(), stored{}
		for range f.u32() {
			one.shape = append(one.shape, f.u64())
		}
		one.kind, offsets[name] = f.u32(), f.u64()
		require.Zero(t, offsets[name]%32)
		f.tensors[name] = one
	}
	start := (len(data) - f.Len() + 31) / 32 * 32
	for name, one := range f.tensors {
		one.values = values(one, data[start+int(offsets[name]):])
		f.tensors[name] = one
	}
	return f
}

func values(one stored, data []byte) []float32 {
	n := uint64(1)
	for _, d := range one.shape {
		n *= d
	}
	out := make([]float32, n)
	for i := range out {
		switch one.kind {
		case 0:
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		case 1:
			out[i] = weights.FromHalf(binary.LittleEndian.Uint16(data[2*i:]))
		case 30:
			out[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(data[2*i:])) << 16)
		case 8:
			block := data[i/32*34:]
			out[i] = weights.FromHalf(binary.LittleEndian.Uint16(block)) * float32(int8(block[2+i%32]))
		default:
			quant.Type(one.kind).Decode(out, data)
			return out
		}
	}
	return out
}

func export(t *testing.T, dir, kind string) *file {
	t.Helper()
	return exportWith(t, dir, kind, nil)
}

func exportWith(t *testing.T, dir, kind string, adapter *llama.Adapter) *file {
	t.Helper()
	as, err := gguf.ParseFileType(kind)
	require.NoError(t, err)
	var out bytes.Buffer
	_, err = gguf.Export(t.Context(), &out, dir, gguf.Options{Name: "mini", Type: as, Adapter: adapter})
	require.NoError(t, err)
	return parse(t, out.Bytes())
}

// TestTensors checks the names and values that Export writes for the tensors of layer 1, for the
// tensors outside of the layers, and for one bias. The values must match within the precision of
// the storage type.
func TestTensors(t *testing.T) {
	for _, family := range miniature.Families() {
		dir := t.TempDir()
		require.NoError(t, miniature.Write(dir, family))
		w, err := llama.Load(dir)
		require.NoError(t, err)
		for kind, near := range map[string]float64{"f32": 0, "f16": 1.0 / 2048, "bf16": 1.0 / 256, "q8_0": 1.0 / 100} {
			f := export(t, dir, kind)
			l := w.Layers[1]
			for name, want := range map[string][]float32{
				"token_embd.weight": w.Embed.Data, "output_norm.weight": w.Norm, "blk.1.attn_norm.weight": l.AttnNorm,
				"blk.1.ffn_norm.weight": l.MLPNorm,
				"blk.1.attn_v.weight":   l.V.Data, "blk.1.attn_output.weight": l.O.Data, "blk.1.ffn_gate.weight": l.Gate.Data,
				"blk.1.ffn_up.weight": l.Up.Data, "blk.1.ffn_down.weight": l.Down.Data, "output.weight": w.Head.Data,
				"blk.1.attn_q_norm.weight": l.QNorm, "blk.1.attn_k_norm.weight": l.KNorm,
				"blk.1.attn_q.weight": permutedHeads(w, l.Q.Data), "blk.1.attn_k.weight": permutedHeads(w, l.K.Data),
			} {
				got, ok := f.tensors[name]
				if name == "output.weight" && w.Config.TieWordEmbeddings || want == nil {
					assert.False(t, ok, "%s has %s", family, name)
					continue
				}
				require.Len(t, got.values, len(want), "%s %s %s", family, kind, name)
				amax := 0.0
				for _, v := range want {
					amax = max(amax, math.Abs(float64(v)))
				}
				for i := range want {
					require.InDelta(t, want[i], got.values[i], amax*near, "%s %s %s", family, kind, name)
				}
				if len(got.shape) == 1 {
					assert.Zero(t, got.kind, "vectors are stored in full")
				}
			}
			if bias, ok := f.tensors["blk.0.attn_k.bias"]; family == "qwen2" {
				assert.Equal(t, w.Layers[0].Bias[0][64:96], bias.values)
			} else {
				assert.False(t, ok)
			}
		}
	}
}

// permutedHeads returns data, the weights of the heads of a projection, with the rows of each head
// reordered as llama.cpp expects for the llama architecture: row j + half follows row j.
func permutedHeads(w *llama.Weights, data []float32) []float32 {
	c := &w.Config
	if c.ModelType != "llama" {
		return data
	}
	out := make([]float32, len(data))
	for i := range out {
		row, column := i/c.HiddenSize, i%c.HiddenSize
		head, at := row/c.HeadDim, row%c.HeadDim
		out[i] = data[(head*c.HeadDim+at/2+at%2*c.HeadDim/2)*c.HiddenSize+column]
	}
	return out
}

func TestMetadata(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, miniature.Write(dir, "llama3"))
	f := export(t, dir, "q8_0")
	for key, want := range map[string]any{
		"general.architecture": "llama", "general.name": "mini", "general.file_type": uint32(7),
		"general.quantization_version": uint32(2),
		"llama.context_length":         uint32(256),
		"llama.embedding_length":       uint32(64), "llama.block_count": uint32(2), "llama.feed_forward_length": uint32(96),
		"llama.attention.head_count":    uint32(4),
		"llama.attention.head_count_kv": uint32(2), "llama.attention.key_length": uint32(16),
		"llama.rope.dimension_count": uint32(16),
		"llama.rope.freq_base":       float32(500000), "llama.attention.layer_norm_rms_epsilon": float32(1e-5),
		"llama.vocab_size":     uint32(385),
		"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": true,
		"tokenizer.ggml.bos_token_id": uint32(376), "tokenizer.ggml.eos_token_id": uint32(380),
	} {
		assert.Equal(t, want, f.metadata[key], key)
	}
	tokens, types := f.metadata["tokenizer.ggml.tokens"].([]any), f.metadata["tokenizer.ggml.token_type"].([]any)
	assert.Equal(t, []any{"A", "<|eot_id|>", "[PAD381]"}, []any{tokens[65], tokens[380], tokens[381]})
	assert.Equal(t, []any{int32(1), int32(3), int32(5)}, []any{types[65], types[380], types[381]})
	assert.Contains(t, f.metadata["tokenizer.chat_template"], "start_header_id")
	assert.Equal(t, "Ġ t", f.metadata["tokenizer.ggml.merges"].([]any)[0])
	divisors := f.tensors["rope_freqs.weight"].values
	assert.Equal(t, []float32{1, 8}, []float32{divisors[0], divisors[7]})
	assert.Equal(t, uint32(8), f.tensors["blk.0.attn_q.weight"].kind)

	require.NoError(t, miniature.Write(dir, "qwen3"))
	assert.Equal(t, int32(4), export(t, dir, "f16").metadata["tokenizer.ggml.token_type"].([]any)[359], "<think> is text")
}

func TestExportShippedModel(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, embedded.WriteBase(dir))
	f := export(t, dir, "bf16")
	assert.Equal(t, "llama", f.metadata["general.architecture"])
	assert.Len(t, f.metadata["tokenizer.ggml.tokens"], 260)
}

func TestUnsupportedModels(t *testing.T) {
	_, err := gguf.ParseFileType("q4")
	require.EqualError(t, err, `type: must be f32, f16, bf16, q8_0, q5_k_m or q4_k_m, is "q4"`)
	for want, damage := range map[string]func(t *testing.T, dir string){
		"the files are an adapter": func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "adapter_config.json"), nil, 0o644))
		},
		"rope_scaling llama3 is not supported": func(t *testing.T, dir string) {
			path := filepath.Join(dir, "config.json")
			data := testutil.ReadFile(t, path)
			require.NoError(t,
				os.WriteFile(path, []byte(strings.Replace(string(data), `"model_type": "llama"`, `"model_type": "qwen3"`, 1)),
					0o644))
		},
		"model-00002-of-00003.safetensors is missing": func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "model-00002-of-00003.safetensors")))
		},
	} {
		dir := t.TempDir()
		require.NoError(t, miniature.Write(dir, "llama3"))
		damage(t, dir)
		_, err := gguf.Export(t.Context(), &bytes.Buffer{}, dir, gguf.Options{Name: "mini", Type: gguf.F16})
		require.ErrorContains(t, err, want)
		assert.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	}
}
