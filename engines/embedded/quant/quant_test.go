package quant_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain/weights"
	"anneal/engines/embedded/quant"
)

var types = []quant.Type{quant.F32, quant.F16, quant.BF16, quant.Q8_0, quant.Q5_0, quant.Q5_1, quant.Q6_K, quant.Q5_K,
	quant.Q4_K}

// TestSizes checks the sizes of blocks against the static_asserts of ggml-common.h.
func TestSizes(t *testing.T) {
	for as, want := range map[quant.Type]struct{ values, bytes int }{
		quant.F32: {1, 4}, quant.F16: {1, 2}, quant.BF16: {1, 2}, quant.Q8_0: {32, 34}, quant.Q5_0: {32, 22},
		quant.Q5_1: {32, 24}, quant.Q4_K: {256, 144}, quant.Q5_K: {256, 176}, quant.Q6_K: {256, 210},
	} {
		assert.Equal(t, want.values, as.Block(), as)
		assert.EqualValues(t, 3*want.bytes, as.Bytes(3*want.values), as)
	}
}

func half(v float32) []byte { return binary.LittleEndian.AppendUint16(nil, weights.ToHalf(v)) }

func join(parts ...[]byte) (all []byte) {
	for _, part := range parts {
		all = append(all, part...)
	}
	return all
}

func repeat(b byte, n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = b
	}
	return out
}

// at returns n bytes, of which byte i is b and all others are 0.
func at(n, i int, b byte) []byte {
	out := make([]byte, n)
	out[i] = b
	return out
}

// TestDecode compares values with those that the layout of ggml's blocks gives by hand.
func TestDecode(t *testing.T) {
	for name, c := range map[string]struct {
		as   quant.Type
		data []byte
		want map[int]float32 // by position
	}{
		"Q8_0": {quant.Q8_0, join(half(0.5), []byte{1, 0xff, 127, 0x80}, make([]byte, 28)),
			map[int]float32{0: 0.5, 1: -0.5, 2: 63.5, 3: -64, 4: 0}},
		// byte 0 has the integers 3 and 12 of values 0 and 16; bits 0 and 17 of the word add 16 to values 0
		// and 17
		"Q5_0": {quant.Q5_0, join(half(2), []byte{1, 0, 2, 0}, at(16, 0, 0xc3)),
			map[int]float32{0: 2 * (3 + 16 - 16), 16: 2 * (12 - 16), 17: 2 * (0 + 16 - 16), 1: 2 * -16}},
		"Q5_1": {quant.Q5_1, join(half(2), half(-3), []byte{1, 0, 2, 0}, at(16, 0, 0xc3)),
			map[int]float32{0: 2*19 - 3, 16: 2*12 - 3, 17: 2*16 - 3, 1: -3}},
		// scales: group 0 has s 5 and t 6; group 4 s 7 + 16·2 and t 8 + 16·3, whose upper bits are in bytes 0 and 4
		"Q4_K": {quant.Q4_K, join(half(0.5), half(0.25), []byte{5 | 2<<6, 0, 0, 0, 6 | 3<<6, 0, 0, 0, 7 | 8<<4, 0, 0, 0},
			at(128, 0, 0x9a)[:64], at(64, 0, 0xe4)),
			map[int]float32{
				0: 0.5*5*10 - 0.25*6, 1: -0.25 * 6, 32: 0, // group 1 has no scale
				128: 0.5*39*4 - 0.25*56, 129: -0.25 * 56, 160: 0,
			}},
		// the fifth bit of value 0 is bit 0 of its byte in group 0, and bit 4 in group 4
		"Q5_K": {quant.Q5_K, join(half(0.5), half(0.25), []byte{5 | 2<<6, 0, 0, 0, 6 | 3<<6, 0, 0, 0, 7 | 8<<4, 0, 0, 0},
			at(32, 0, 1|1<<4), at(128, 0, 0x9a)[:64], at(64, 0, 0xe4)),
			map[int]float32{0: 0.5*5*26 - 0.25*6, 1: -0.25 * 6, 128: 0.5*39*20 - 0.25*56, 129: -0.25 * 56}},
		// value 0 has the lower bits 9 of byte 0 and the upper bits 2; value 64 shares the byte, with 3 and 1
		"Q6_K": {quant.Q6_K, join(at(128, 0, 0x39), at(64, 0, 2|1<<4), repeat(4, 8), repeat(0xfe, 8), half(0.5)),
			map[int]float32{0: 0.5 * 4 * (9 + 32 - 32), 64: 0.5 * 4 * (3 + 16 - 32), 1: 0.5 * 4 * -32, 128: 0.5 * -2 * -32}},
		"BF16": {quant.BF16, []byte{0x80, 0x3f, 0, 0xc0}, map[int]float32{0: 1, 1: -2}},
		"F16":  {quant.F16, join(half(1), half(-2)), map[int]float32{0: 1, 1: -2}},
	} {
		x := make([]float32, len(c.data)/int(c.as.Bytes(c.as.Block()))*c.as.Block())
		require.EqualValues(t, len(c.data), c.as.Bytes(len(x)), name)
		c.as.Decode(x, c.data)
		for i, want := range c.want {
			assert.Equal(t, want, x[i], "%s: value %d", name, i)
		}
	}
}

// roundTrip returns x as it is decoded from its encoding, and the root mean square of the errors.
func roundTrip(as quant.Type, x []float32) (back []float32, rms float64) {
	data := make([]byte, as.Bytes(len(x)))
	as.Encode(data, x)
	back = make([]float32, len(x))
	as.Decode(back, data)
	for i := range x {
		rms += math.Pow(float64(x[i]-back[i]), 2)
	}
	return back, math.Sqrt(rms / float64(len(x)))
}

// TestErrors checks the bounds of the errors. The first are those of llama.cpp's
// tests/test-quantize-fns.cpp: for its 4096 values 0.1 + 2·cos(i), the root of the sum of the
// squared errors divided by the number of values is below 0.002 (MAX_QUANTIZATION_TOTAL_ERROR). The
// second are for values from a normal distribution, as the values of a matrix approximately are:
// they bound the error in units of the standard deviation.
func TestErrors(t *testing.T) {
	cosines, normal := make([]float32, 4096), make([]float32, 1<<16)
	for i := range cosines {
		cosines[i] = float32(0.1 + 2*math.Cos(float64(i)))
	}
	source := rand.New(rand.NewPCG(1, 2))
	for i := range normal {
		normal[i] = float32(source.NormFloat64())
	}
	for as, limit := range map[quant.Type]float64{quant.F32: 0, quant.F16: 0.0003, quant.BF16: 0.002, quant.Q8_0: 0.0055,
		quant.Q6_K: 0.0175, quant.Q5_K: 0.0355, quant.Q5_1: 0.0345, quant.Q5_0: 0.0405, quant.Q4_K: 0.0715} {
		_, rms := roundTrip(as, cosines)
		assert.Less(t, rms/math.Sqrt(float64(len(cosines))), 0.002, as)
		_, rms = roundTrip(as, normal)
		t.Logf("%s: %.5f of the standard deviation", as, rms)
		assert.LessOrEqual(t, rms, limit, as)
	}
}

// TestExtremes checks that every type represents values that are hard to scale: the error of a
// value is at most the step that the largest value of its block forces.
func TestExtremes(t *testing.T) {
	source := rand.New(rand.NewPCG(3, 4))
	noise := func(scale float64) func(int) float32 {
		return func(int) float32 { return float32(source.NormFloat64() * scale) }
	}
	for name, value := range map[string]func(i int) float32{
		"zeros":          func(int) float32 { return 0 },
		"one value":      func(int) float32 { return 0.37 },
		"negative value": func(int) float32 { return -0.37 },
		"positive":       func(i int) float32 { return 1 + float32(i%7) },
		"negative":       func(i int) float32 { return -1 - float32(i%7) },
		"two values":     func(i int) float32 { return float32(i%2)*2 - 1 },
		"an outlier":     func(i int) float32 { return map[bool]float32{true: 1000, false: 0.01}[i == 77] },
		"tiny":           noise(1e-7),
		"subnormal":      noise(1e-40),
		"huge":           func(i int) float32 { return float32(i%2*2-1) * 65504 },
		"noise":          noise(0.02),
	} {
		x := make([]float32, 512)
		peak := 0.0
		for i := range x {
			x[i] = value(i)
			peak = max(peak, math.Abs(float64(x[i])))
		}
		for _, as := range types {
			back, _ := roundTrip(as, x)
			// A 4-bit code has 15 steps. Scales below the smallest 16-bit float are lost.
			bound := 2*peak/15 + 64*0x1p-24
			for i := range x {
				require.InDelta(t, x[i], back[i], bound, "%s as %s: value %d", name, as, i)
			}
		}
	}
}

// TestEncodeIsStable checks that encoding a decoded block again adds little error: at most a fifth
// of the first error.
func TestEncodeIsStable(t *testing.T) {
	source := rand.New(rand.NewPCG(5, 6))
	x := make([]float32, 1<<14)
	for i := range x {
		x[i] = float32(source.NormFloat64())
	}
	for _, as := range types[1:] {
		back, first := roundTrip(as, x)
		_, second := roundTrip(as, back)
		assert.LessOrEqual(t, second, first/5, as)
	}
}

// TestBlocksAreIndependent checks that the encoding of a block does not depend on other blocks, so
// that several cores can encode a matrix.
func TestBlocksAreIndependent(t *testing.T) {
	source := rand.New(rand.NewPCG(7, 8))
	x := make([]float32, 1024)
	for i := range x {
		x[i] = float32(source.NormFloat64())
	}
	for _, as := range types {
		whole, alone := make([]byte, as.Bytes(len(x))), make([]byte, as.Bytes(256))
		as.Encode(whole, x)
		as.Encode(alone, x[256:512])
		require.Equal(t, alone, whole[as.Bytes(256):as.Bytes(512)], as)
	}
}

func BenchmarkEncode(b *testing.B) {
	source := rand.New(rand.NewPCG(9, 10))
	x := make([]float32, 1<<16)
	for i := range x {
		x[i] = float32(source.NormFloat64())
	}
	for _, as := range types {
		b.Run(fmt.Sprint(as), func(b *testing.B) {
			data := make([]byte, as.Bytes(len(x)))
			b.SetBytes(int64(4 * len(x)))
			for b.Loop() {
				as.Encode(data, x)
			}
		})
	}
}
