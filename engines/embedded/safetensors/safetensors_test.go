package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines/embedded/safetensors"
)

func tensors() []safetensors.Tensor {
	many := make([]float32, 300_000)
	for i := range many {
		many[i] = float32(i) * 0.5
	}
	return []safetensors.Tensor{
		{
			Info: safetensors.Info{Name: "z.weight", DType: safetensors.F32, Shape: []int{2, 3}},
			Data: []float32{1, -2, 0.1, math.MaxFloat32, 5, 6},
		},
		{
			Info: safetensors.Info{Name: "half", DType: safetensors.BF16, Shape: []int{3}}, Data: []float32{1, 1.00390625, -3.5},
		},
		{Info: safetensors.Info{Name: "f16", DType: safetensors.F16, Shape: []int{3}}, Data: []float32{1, 0.5, -65504}},
		{Info: safetensors.Info{Name: "scalar", DType: safetensors.F32}, Data: []float32{42}},
		{Info: safetensors.Info{Name: "many", DType: safetensors.F32, Shape: []int{300, 1000}}, Data: many},
		{Info: safetensors.Info{Name: "none", DType: safetensors.F32, Shape: []int{0, 4}}},
	}
}

func TestRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.safetensors")
	require.NoError(t, safetensors.WriteFile(path, tensors(), map[string]string{"base": "abc"}))
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	assert.Equal(t, map[string]string{"base": "abc", "format": "pt"}, f.Metadata())
	assert.Len(t, f.Tensors(), 6)
	for _, want := range tensors() {
		got := make([]float32, len(want.Data))
		require.NoError(t, f.Read(got, want.Name, want.Shape...), want.Name)
		for i := range want.Data {
			expected := want.Data[i]
			if want.DType == safetensors.BF16 {
				expected = safetensors.RoundBF16(expected)
			}
			require.Equal(t, expected, got[i], "%s[%d]", want.Name, i)
		}
	}
	assert.NoFileExists(t, path+".part")
}

func TestValuesAreAligned(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, safetensors.Write(&b, tensors(), nil))
	assert.Zero(t, binary.LittleEndian.Uint64(b.Bytes())%8)
}

func TestReadChecksTheShape(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, safetensors.Write(&b, tensors(), nil))
	f, err := safetensors.Parse("x", b.Bytes())
	require.NoError(t, err)
	err = f.Read(make([]float32, 6), "z.weight", 3, 2)
	assert.ErrorContains(t, err, "x: tensor z.weight has shape [2 3]")
	assert.ErrorContains(t, f.Read(nil, "y"), "tensor y is missing")
	assert.ErrorContains(t, f.Read(nil, "z.weight", 2, 3), "the buffer has 0")
}

// file returns a file with the given header and n bytes of values.
func file(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, n)...)
}

func TestInvalidFiles(t *testing.T) {
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"short":       {[]byte("abc"), "at least 8"},
		"long header": {append(binary.LittleEndian.AppendUint64(nil, 1<<62), 1, 2), "it claims a header of"},
		"cut header":  {file("{}", 0)[:9], "it claims a header of"},
		"no JSON":     {file("{nope", 0), "not JSON"},
		"metadata":    {file(`{"__metadata__":3}`, 0), "__metadata__"},
		"type":        {file(`{"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}`, 8), `type "I64"`},
		"shape":       {file(`{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}`, 4), "impossible shape"},
		"overflow": {
			file(`{"a":{"dtype":"F32","shape":[4611686018427387904,4611686018427387904],"data_offsets":[0,0]}}`, 0),
			"impossible shape",
		},
		"offsets":  {file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, 4), "needs 8 bytes"},
		"negative": {file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}}`, 4), "needs 4 bytes"},
		"overlap": {
			file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`,
				8),
			"begins at byte 0",
		},
		"gap":     {file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8), "begins at byte 4"},
		"cut off": {file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 7), "truncated"},
		"surplus": {file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 5), "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "bad.safetensors")
			require.NoError(t, os.WriteFile(path, c.data, 0o644))
			_, err := safetensors.Open(path)
			require.ErrorContains(t, err, c.want)
			assert.ErrorContains(t, err, "bad.safetensors")
			assert.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
		})
	}
	_, err := safetensors.Open(filepath.Join(t.TempDir(), "absent.safetensors"))
	assert.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
}

func TestInvalidTensors(t *testing.T) {
	good := tensors()[0]
	for name, bad := range map[string]safetensors.Tensor{
		"used twice": good,
		"needs 4":    {Info: safetensors.Info{Name: "a", DType: safetensors.F32, Shape: []int{4}}},
		"cannot":     {Info: safetensors.Info{Name: "a", DType: "I8"}, Data: []float32{1}},
		"is empty":   {Info: safetensors.Info{DType: safetensors.F32}, Data: []float32{1}},
		"reserved":   {Info: safetensors.Info{Name: "__metadata__", DType: safetensors.F32}, Data: []float32{1}},
	} {
		path := filepath.Join(t.TempDir(), "m.safetensors")
		assert.ErrorContains(t, safetensors.WriteFile(path, []safetensors.Tensor{good, bad}, nil), name)
		assert.NoFileExists(t, path)
		assert.NoFileExists(t, path+".part")
	}
}

func TestBF16RoundsToNearestEven(t *testing.T) {
	for _, c := range []struct{ in, want float32 }{
		{1, 1},
		{1 + 0x1p-8, 1},            // a tie, rounded down to even
		{1 + 0x3p-8, 1 + 0x2p-7},   // a tie, rounded up to even
		{1 + 0x1.8p-8, 1 + 0x1p-7}, // above a tie
		{-1.00001, -1},
		{math.MaxFloat32, float32(math.Inf(1))},
		{0x1p-140, 0x1p-133 * 0}, // less than half of the smallest number
	} {
		assert.Equal(t, c.want, safetensors.RoundBF16(c.in), "%g", c.in)
	}
	assert.True(t, math.IsNaN(float64(safetensors.RoundBF16(math.Float32frombits(0x7f800001)))))
}

func TestHalfPrecisionIsRead(t *testing.T) {
	halves := []uint16{0x3c00, 0xc000, 0x7bff, 0x0001, 0x8001, 0x0400, 0x7c00, 0xfc00, 0x0000}
	want := []float32{1, -2, 65504, 0x1p-24, -0x1p-24, 0x1p-14, float32(math.Inf(1)), float32(math.Inf(-1)), 0}
	data := file(`{"h":{"dtype":"F16","shape":[9],"data_offsets":[0,18]}}`, 0)
	for _, h := range halves {
		data = binary.LittleEndian.AppendUint16(data, h)
	}
	f, err := safetensors.Parse("h", data)
	require.NoError(t, err)
	got := make([]float32, 9)
	require.NoError(t, f.Read(got, "h", 9))
	assert.Equal(t, want, got)
}

func FuzzParse(f *testing.F) {
	f.Add(file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4))
	f.Add(file(`{"a":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]},"__metadata__":{"x":"y"}}`, 4))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := safetensors.Parse("fuzz", data)
		if err != nil {
			return
		}
		for _, info := range file.Tensors() {
			require.NoError(t, file.Read(make([]float32, info.Count()), info.Name, info.Shape...))
		}
	})
}
