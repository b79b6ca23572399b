package serve

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	stored "anneal/domain/weights"
	"anneal/engines"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/safetensors"
	"anneal/engines/embedded/tokenizer"
	"anneal/internal/testutil"
)

// storages maps each storage format of weights to its number of bytes per weight.
var storages = map[string]int64{"float32": 4, "bfloat16": 2, "float16": 2, "FP8": 1, "int8": 1}

// saveAs writes the directory of a model whose projections are stored in a format, and returns
// its path.
func saveAs(t testing.TB, w *llama.Weights, storage string) string {
	dir := t.TempDir()
	require.NoError(t, tokenizer.NewBytes().Save(dir))
	as := w.Clone()
	if storages[storage] == 2 {
		as.Config.TorchDType = storage
	}
	require.NoError(t, as.Save(dir))
	path := filepath.Join(dir, "model.safetensors")
	var converted bytes.Buffer
	switch storage {
	case "FP8":
		_, err := directoryOf(t, dir).Convert(&converted, "model.safetensors", "F8_E4M3")
		require.NoError(t, err)
	case "int8":
		writeInt8(t, &converted, w)
	default:
		return dir
	}
	require.NoError(t, os.WriteFile(path, converted.Bytes(), 0o644))
	return dir
}

func directoryOf(t testing.TB, dir string) stored.Directory {
	sizes := map[string]int64{}
	entries := testutil.ReadDir(t, dir)
	for _, entry := range entries {
		info, err := entry.Info()
		require.NoError(t, err)
		sizes[entry.Name()] = info.Size()
	}
	return stored.Directory{Sizes: sizes, Open: func(name string, offset, length int64) (io.ReadCloser, error) {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		if length < 0 {
			length = int64(len(data)) - offset
		}
		return io.NopCloser(bytes.NewReader(data[offset : offset+length])), nil
	}}
}

// writeInt8 writes a file of weights whose projections are int8. The scale of a row is its
// largest absolute value divided by 127, as in published quantized checkpoints.
func writeInt8(t testing.TB, out *bytes.Buffer, w *llama.Weights) {
	type described struct {
		DType   string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	header, data := map[string]described{}, []byte{}
	put := func(name, dtype string, shape []int, raw []byte) {
		header[name] = described{dtype, shape, [2]int{len(data), len(data) + len(raw)}}
		data = append(data, raw...)
	}
	for _, tensor := range w.Tensors(safetensors.F32) {
		if len(tensor.Shape) != 2 || tensor.Name == "model.embed_tokens.weight" || tensor.Name == "lm_head.weight" {
			put(tensor.Name, "F32", tensor.Shape, littleEndian(tensor.Data))
			continue
		}
		cols := tensor.Shape[1]
		quantized, scales := make([]byte, len(tensor.Data)), make([]float32, tensor.Shape[0])
		for row := range scales {
			numbers := tensor.Data[row*cols : (row+1)*cols]
			amax := max(slices.Max(numbers), -slices.Min(numbers))
			scales[row] = amax / 127
			for i, v := range numbers {
				quantized[row*cols+i] = byte(int8(math.RoundToEven(float64(v / amax * 127))))
			}
		}
		put(tensor.Name, "I8", tensor.Shape, quantized)
		put(tensor.Name+"_scale", "F32", []int{len(scales), 1}, littleEndian(scales))
	}
	text := testutil.Marshal(t, header)
	out.Write([]byte{byte(len(text)), byte(len(text) >> 8), byte(len(text) >> 16), 0, 0, 0, 0, 0})
	out.Write(text)
	out.Write(data)
}

func littleEndian(numbers []float32) (raw []byte) {
	for _, v := range numbers {
		b := math.Float32bits(v)
		raw = append(raw, byte(b), byte(b>>8), byte(b>>16), byte(b>>24))
	}
	return raw
}

// packedOf loads the model in a directory and returns its decoder.
func packedOf(t testing.TB, dir string) *decoder {
	r, err := llama.Open(dir)
	require.NoError(t, err)
	d, err := newDecoder(r, r.Config, 200, 2)
	require.NoError(t, err)
	whole, err := llama.Load(dir)
	require.NoError(t, err)
	require.Equal(t, whole.Hash(), r.Hash())
	require.NoError(t, r.Close())
	return d
}

func (d *decoder) bytes() (sum int64) {
	seen := map[*kernel.Packed]bool{d.embed: true, d.head: true}
	for i := range d.layers {
		l := &d.layers[i]
		for _, p := range []*kernel.Packed{&l.qkv, &l.o, &l.gateUp, &l.down} {
			seen[p] = true
		}
	}
	for p := range seen {
		sum += p.Bytes()
	}
	return sum
}

// TestServedAsStored checks that weights keep their storage format. With 32 and 16 bits, the
// logits are bit-identical to those of training. With 8 bits, they differ by a rounding, because
// the scale multiplies a sum instead of its terms.
func TestServedAsStored(t *testing.T) {
	w := weights(func(c *llama.Config) { c.HiddenSize, c.IntermediateSize, c.TieWordEmbeddings = 96, 160, false })
	tokens := ids(60, 1)
	for storage, each := range storages {
		t.Run(storage, func(t *testing.T) {
			dir := saveAs(t, w, storage)
			whole, err := llama.Load(dir)
			require.NoError(t, err)
			want := trained(whole, tokens)
			d, cache := packedOf(t, dir), newCache(&w.Config, 100)
			logits := d.step([]span{{cache: cache, tokens: tokens, all: true}})
			for i := range tokens {
				probs := slices.Clone(logits.Row(i))
				kernel.Softmax(probs)
				if each > 1 {
					require.Equal(t, want.Row(i), probs, "after %d tokens", i+1)
					continue
				}
				for token, p := range probs {
					require.InDelta(t, math.Log(float64(want.Row(i)[token])), math.Log(float64(p)), 2e-4, "token %d after %d", token,
						i+1)
				}
			}
			r, err := llama.Open(dir)
			require.NoError(t, err)
			defer r.Close()
			bytes, _ := r.Bytes()
			require.InEpsilon(t, bytes, d.bytes(), 0.2,
				"the estimate is exact except for the last panels and the scales")
		})
	}
}

// TestNaNCodes checks that weights are not packed in 8 bits if one of them is NaN.
func TestNaNCodes(t *testing.T) {
	w := weights()
	w.Layers[1].Up.Row(3)[5] = 1
	dir := saveAs(t, w, "FP8")
	path := filepath.Join(dir, "model.safetensors")
	data := testutil.ReadFile(t, path)
	h, err := directoryOf(t, dir).ReadHeader("model.safetensors")
	require.NoError(t, err)
	for _, tensor := range h.Tensors {
		if tensor.Name == "model.layers.1.mlp.up_proj.weight" {
			data[h.Start+tensor.Begin+7] = 0xff
		}
	}
	require.NoError(t, os.WriteFile(path, data, 0o644))
	r, err := llama.Open(dir)
	require.NoError(t, err)
	defer r.Close()
	_, err = r.Embedding()
	require.NoError(t, err)
	for layer := range w.Config.Layers {
		part, err := r.Layer(layer)
		require.NoError(t, err)
		for input, quantized := range part.Quantized {
			require.Equal(t, layer == 1 && input == int(llama.ToGateUp), quantized == nil, "layer %d, input %d",
				layer, input)
		}
	}
}

// TestReplicaMemory checks that the KV cache uses the part of the replica's memory that the
// weights leave, and that loading fails if this part is too small.
func TestReplicaMemory(t *testing.T) {
	w := mediumModel(false) // 1.7 M parameters, 3 MiB in 16 bits
	w.Config.MaxPositions = 1 << 20
	dir := saveAs(t, w, "bfloat16")
	keys, values := blockSize(&w.Config)
	perToken := int64(4 * (keys + values) / blockTokens)
	for _, c := range []struct{ memory, option, cache int64 }{
		{0, 0, 1 << 30},
		{0, 1 << 20, 1 << 20},
		{128 << 20, 0, 60 << 20},
		{128 << 20, 8 << 20, 8 << 20},
		{3 << 30, 0, 3<<30 - 68<<20},
		{32 << 20, 0, minCache},
	} {
		m, err := New(Options{Parallelism: 1, CacheBytes: c.option}).Load(t.Context(),
			engines.ModelFiles{Dir: dir, MemoryBytes: c.memory})
		require.NoError(t, err)
		require.InDelta(t, c.cache, int64(m.Info().ContextLength)*perToken, 1<<20, "%+v", c)
		require.NoError(t, m.Close())
	}
	_, err := New(Options{}).Load(t.Context(), engines.ModelFiles{Dir: dir, MemoryBytes: 16 << 20})
	require.EqualError(
		t, err, "the model's weights take 3 MiB of memory, but the replica was allocated 16 MiB including its KV cache: "+
			"the server places the replica again once it knows how much memory the model needs")
	_, err = New(Options{}).Load(t.Context(), engines.ModelFiles{Dir: dir, MemoryBytes: 1 << 50})
	require.ErrorContains(t, err, "the embedded engine needs")
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
}

// heapOf loads the model in dir, and returns the bytes of heap that the model uses, and the
// model.
func heapOf(t testing.TB, dir string) (heap int64, m engines.Model) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	m, err := New(Options{Parallelism: 1}).Load(t.Context(), engines.ModelFiles{Dir: dir})
	require.NoError(t, err)
	runtime.GC()
	runtime.ReadMemStats(&after)
	return int64(after.HeapAlloc) - int64(before.HeapAlloc), m
}

// mediumModel returns a model of 25.8 M parameters if large is set, otherwise of 1.7 M
// parameters.
func mediumModel(large bool) *llama.Weights {
	c := config()
	c.HiddenSize, c.IntermediateSize, c.Layers, c.Heads, c.KVHeads, c.HeadDim, c.MaxPositions = 192, 512, 4, 6, 6, 32, 512
	if large {
		c.HiddenSize, c.IntermediateSize, c.Layers, c.Heads, c.KVHeads, c.HeadDim = 512, 1408, 8, 8, 8, 64
	}
	w := llama.NewWeights(c)
	w.Initialize(1)
	return w
}

// TestHeapOfALoadedModel checks by the size of the heap that a loaded model holds each weight
// once, in its storage format.
func TestHeapOfALoadedModel(t *testing.T) {
	w := mediumModel(false)
	for storage, each := range storages {
		heap, m := heapOf(t, saveAs(t, w, storage))
		require.NoError(t, m.Close())
		perParameter := float64(heap) / float64(w.Config.Parameters())
		t.Logf("%s: %.2f bytes a parameter", storage, perParameter)
		require.Less(t, perParameter, float64(each)+0.45, storage)
	}
}

// BenchmarkStorages decodes with 1 and 8 concurrent requests and weights of every format. The
// metric MB-heap is the heap of the loaded model. The metric of-bandwidth is the bytes of
// weights read per second divided by a core's memory bandwidth.
func BenchmarkStorages(b *testing.B) {
	bandwidth := kernel.ReadBandwidth() * 1e9
	w := mediumModel(true)
	for _, storage := range []string{"float32", "bfloat16", "float16", "FP8", "int8"} {
		dir := saveAs(b, w, storage)
		for _, requests := range []int{1, 8} {
			b.Run(fmt.Sprintf("%.1fM/%s/%d", float64(w.Config.Parameters())/1e6, storage, requests), func(b *testing.B) {
				heap, m := heapOf(b, dir)
				defer m.Close()
				generated := 0
				for b.Loop() {
					generated += generate(b, m, requests, 32, 128)
				}
				rate := float64(generated) / b.Elapsed().Seconds()
				b.ReportMetric(rate, "tok/s")
				b.ReportMetric(float64(heap)/1e6, "MB-heap")
				b.ReportMetric(rate/float64(requests)*float64(storages[storage]*w.Config.Parameters())/bandwidth, "of-bandwidth")
			})
		}
	}
}
