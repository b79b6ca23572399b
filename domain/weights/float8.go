package weights

import (
	"encoding/binary"
	"io"
	"math"
	"strings"
)

// In a copy in FP8, the projections of a model's layers are stored as F8_E4M3 (OCP 8-bit floating
// point, 3 bits of fraction, without infinities) with one scale factor per row: the maximum
// absolute value of the row is stored as 448, the maximum of the type. Embeddings and norms are not
// converted. The layout is "float-quantized" of compressed-tensors with channel-wise weights: W
// [out, in] and W_scale [out, 1] in F32.

const (
	float8      = "F8_E4M3"
	maxFloat8   = 448
	scaleSuffix = "_scale"
)

// ErrNoProjections is returned when a model has no tensors to store in 8 bits.
var ErrNoProjections = invalidf(
	"no weight file has projections (…_proj.weight) to store in 8 bits: prepare the model in BF16 or FP16 instead")

// isQuantizable reports whether a tensor is a projection, which a copy in FP8 stores in 8 bits.
func isQuantizable(t Tensor) bool {
	const limit = 1 << 22 // maximum of rows and of columns, because one row and all scale factors are in memory
	return len(t.Shape) == 2 && t.Count() > 0 && t.Shape[0] <= limit && t.Shape[1] <= limit &&
		strings.HasSuffix(t.Name, "_proj.weight")
}

// quantize reads the matrix t row by row from r, and writes it to w as F8_E4M3, followed by the
// scale factors of its rows as F32.
func quantize(w io.Writer, r io.Reader, t Tensor) error {
	in := make([]byte, t.Shape[1]*widths[t.DType])
	row, out := make([]float32, t.Shape[1]), make([]byte, t.Shape[1])
	factors := make([]byte, 0, 4*t.Shape[0])
	for range t.Shape[0] {
		if _, err := io.ReadFull(r, in); err != nil {
			return err
		}
		widen(row, in, t.DType)
		largest := float32(0)
		for _, v := range row {
			if a := float32(math.Abs(float64(v))); a > largest || a != a {
				largest = a
			}
		}
		if largest != largest || math.IsInf(float64(largest), 0) {
			return invalidf("the tensor %s contains NaN or infinity, which cannot be stored in 8 bits", quoted(t.Name))
		}
		factor := largest / maxFloat8
		if factor == 0 { // all numbers of the row are 0, or too small for a scale factor
			factor = 1
		}
		for i, v := range row {
			out[i] = ToFloat8(v / factor)
		}
		factors = binary.LittleEndian.AppendUint32(factors, math.Float32bits(factor))
		if _, err := w.Write(out); err != nil {
			return err
		}
	}
	_, err := w.Write(factors)
	return err
}

// ToFloat8 returns the F8_E4M3 value nearest to v, ties to even; values beyond 448 become 448.
func ToFloat8(v float32) byte {
	bits := math.Float32bits(v)
	sign, magnitude := byte(bits>>24&0x80), bits&0x7fffffff
	switch {
	case magnitude > 0x7f800000: // not a number
		return sign | 0x7f
	case magnitude >= 0x43e00000: // 448 and more become 448
		return sign | 0x7e
	case magnitude < 0x3c800000: // below 2^-6: a multiple of 2^-9
		return sign | byte(math.RoundToEven(float64(math.Float32frombits(magnitude))*0x1p9))
	}
	// Change the bias of the exponent from 127 to 7. A carry of the rounding increments the exponent.
	return sign | byte((magnitude-0x3c000000+0x7ffff+magnitude>>20&1)>>20)
}

// FromFloat8 decodes an F8_E4M3 value.
func FromFloat8(b byte) float32 {
	sign, exponent, fraction := uint32(b>>7)<<31, uint32(b>>3&0xf), uint32(b&7)
	switch {
	case b&0x7f == 0x7f:
		return float32(math.NaN())
	case exponent == 0:
		return math.Float32frombits(math.Float32bits(float32(fraction)*0x1p-9) | sign)
	}
	return math.Float32frombits(sign | (exponent+120)<<23 | fraction<<20)
}

// quantizationConfig is the field quantization_config in the config.json of a copy in FP8.
const quantizationConfig = `{"quant_method": "compressed-tensors", "format": "float-quantized",` +
	` "quantization_status": "compressed", "ignore": ["lm_head"],
	"config_groups": {"group_0": {"targets": ["Linear"], "input_activations": null, "output_activations": null,
	"weights": {"num_bits": 8, "type": "float", "symmetric": true, "strategy": "channel", "dynamic": false}}}}`
