package weights_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"anneal/domain/weights"
)

func TestHalf(t *testing.T) {
	for h := range 1 << 16 {
		v := weights.FromHalf(uint16(h))
		if v != v {
			require.NotEqual(t, v, weights.FromHalf(weights.ToHalf(v)))
			continue
		}
		if back := weights.ToHalf(v); back != uint16(h) {
			t.Fatalf("%#x is decoded and encoded as %#x", h, back)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Float32Range(-65504, 65504).Draw(t, "v")
		h := weights.ToHalf(v)
		near := math.Abs(float64(weights.FromHalf(h)) - float64(v))
		for _, other := range []uint16{h - 1, h + 1} {
			o := float64(weights.FromHalf(other))
			if o != o || math.IsInf(o, 0) || (other^h)&0x8000 != 0 {
				continue
			}
			far := math.Abs(o - float64(v))
			require.LessOrEqual(t, near, far, "%g", v)
			require.False(t, near == far && h&1 == 1, "%g: ties go to even", v)
		}
	})
	require.Equal(t, uint16(0x7c00), weights.ToHalf(65520))
	require.Equal(t, uint16(0x7bff), weights.ToHalf(65519.9))
	require.Equal(t, uint16(0xfc00), weights.ToHalf(float32(math.Inf(-1))))
}

func TestFloat8(t *testing.T) {
	for b := range 256 {
		v := weights.FromFloat8(byte(b))
		if v == v && weights.ToFloat8(v) != byte(b) {
			t.Fatalf("%#x is decoded and encoded as %#x", b, weights.ToFloat8(v))
		}
	}
	require.Equal(t, float32(448), weights.FromFloat8(0x7e))
	require.Equal(t, float32(0x1p-9), weights.FromFloat8(1))
	require.Equal(t, byte(0x7e), weights.ToFloat8(1e9))
	require.Equal(t, byte(0xfe), weights.ToFloat8(-460))
	require.Equal(t, byte(0x7f), weights.ToFloat8(float32(math.NaN())))
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Float32Range(-448, 448).Draw(t, "v")
		b := weights.ToFloat8(v)
		near := math.Abs(float64(weights.FromFloat8(b)) - float64(v))
		for _, other := range []byte{b - 1, b + 1} {
			o := float64(weights.FromFloat8(other))
			if o != o || (other^b)&0x80 != 0 {
				continue
			}
			far := math.Abs(o - float64(v))
			require.LessOrEqual(t, near, far, "%g", v)
			require.False(t, near == far && b&1 == 1, "%g: ties go to even", v)
		}
	})
}

// withNumbers returns a file with one float32 tensor.
func withNumbers(values ...float32) files {
	data := tensors(map[string][]int{"w": {len(values)}})
	at := len(data) - 4*len(values)
	for i, v := range values {
		binary.LittleEndian.PutUint32(data[at+4*i:], math.Float32bits(v))
	}
	return files{"model.safetensors": data}
}

func convert(f files, w io.Writer, dtype string) error {
	_, err := f.directory().Convert(w, "model.safetensors", dtype)
	return err
}

func TestConvert(t *testing.T) {
	values := make([]float32, 600_000) // more than one chunk
	for i := range values {
		values[i] = float32(i-300_000) / 7
	}
	f := withNumbers(values...)
	for _, c := range []struct {
		dtype string
		widen func(uint16) float32
		step  float64 // maximum relative rounding error
	}{{"F16", weights.FromHalf, 0x1p-11}, {"BF16", func(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) },
		0x1p-8}} {
		var out bytes.Buffer
		require.NoError(t, convert(f, &out, c.dtype))
		g := files{"model.safetensors": out.Bytes()}.directory()
		h, err := g.ReadHeader("model.safetensors")
		require.NoError(t, err)
		require.Equal(t, map[string]string{"format": "pt"}, h.Metadata)
		require.Equal(t, []weights.Tensor{{Name: "w", DType: c.dtype, Shape: []int64{600_000}, End: 1_200_000}}, h.Tensors)
		require.Zero(t, h.Start%8)
		data := out.Bytes()[h.Start:]
		for i, want := range values {
			got := c.widen(binary.LittleEndian.Uint16(data[2*i:]))
			if off := math.Abs(float64(want) - float64(got)); off > math.Abs(float64(want))*c.step {
				t.Fatalf("number %d is off by %g", i, off)
			}
		}
		var again bytes.Buffer
		require.NoError(t, convert(files{"model.safetensors": out.Bytes()}, &again, c.dtype))
		require.Equal(t, out.Bytes(), again.Bytes(), "tensors that already have the type are unchanged")
	}
	err := convert(withNumbers(1, 70_000), io.Discard, "F16")
	require.True(t, weights.IsInvalid(err))
	require.ErrorContains(t, err, "contains 70000, which is too large for F16: prepare the model in BF16 instead")
	require.NoError(t, convert(withNumbers(1, float32(math.Inf(1)), float32(math.NaN())), io.Discard, "F16"))
	bytesOnly := files{"model.safetensors": raw(`{"w":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}}`, 4)}
	require.ErrorContains(t, convert(bytesOnly, io.Discard, "F16"), "cannot be converted")
}

func TestConvertedSettings(t *testing.T) {
	for given, want := range map[string]string{
		`{"a": 1}`:                         `{"a": 1, "torch_dtype": "bfloat16"}`,
		`{"torch_dtype": "float32"}`:       `{"torch_dtype": "bfloat16"}`,
		`{"dtype": "float32"}`:             `{"dtype": "bfloat16"}`,
		`{"dtype": "x", "torch_dtype": 3}`: `{"dtype": "bfloat16", "torch_dtype": "bfloat16"}`,
	} {
		got, err := files{"config.json": []byte(given)}.directory().ConvertedConfig("BF16")
		require.NoError(t, err)
		require.JSONEq(t, want, string(got))
	}
	got, err := sharded("llama").directory().ConvertedIndex(77,
		map[string][]string{"model-00001-of-00002.safetensors": {"x_scale"}})
	require.NoError(t, err)
	require.Contains(t, string(got), `"total_size": 77`)
	require.Contains(t, string(got), `"x_scale": "model-00001-of-00002.safetensors"`)
	got, err = model("llama").directory().ConvertedConfig("F8_E4M3")
	require.NoError(t, err)
	require.Contains(t, string(got), `"quant_method": "compressed-tensors"`)
	names, err := sharded("llama").directory().WeightFiles()
	require.NoError(t, err)
	require.Equal(t, []string{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}, names)
}
