package weights

import (
	"encoding/binary"
	"io"
	"math"
	"strings"
)

// In 8 bits the projections of a model's layers are stored as F8_E4M3 (OCP
// 8-bit floating point, 3 bits of fraction, the variant without infinities) with
// one factor for each row: the row's greatest absolute value is stored as 448,
// the type's greatest. Embeddings and norms stay as they are. The layout is the
// one called compressed-tensors, "float-quantized", with channel-wise weights:
// W [out, in] and W_scale [out, 1] in F32.

const (
	eightBits   = "F8_E4M3"
	mostEight   = 448
	scaleSuffix = "_scale"
)

// ErrNoProjections is why a model has no copy in 8 bits; IsBroken holds for it.
var ErrNoProjections = brokenf("no file of weights has projections (…_proj.weight) to store in 8 bits: prepare the model in BF16 or FP16 instead")

// quantises tells whether a tensor is a projection that is stored in 8 bits.
func quantises(t Tensor) bool {
	const most = 1 << 22 // rows and columns: a row and all factors are held in memory
	return len(t.Shape) == 2 && t.Count() > 0 && t.Shape[0] <= most && t.Shape[1] <= most && strings.HasSuffix(t.Name, "_proj.weight")
}

// quantise reads a matrix row by row, writes it as F8_E4M3 and then the factors
// of its rows as F32.
func quantise(w io.Writer, r io.Reader, t Tensor) error {
	in := make([]byte, t.Shape[1]*widths[t.DType])
	row, out := make([]float32, t.Shape[1]), make([]byte, t.Shape[1])
	factors := make([]byte, 0, 4*t.Shape[0])
	for range t.Shape[0] {
		if _, err := io.ReadFull(r, in); err != nil {
			return err
		}
		widen(row, in, t.DType)
		most := float32(0)
		for _, v := range row {
			if a := float32(math.Abs(float64(v))); a > most || a != a {
				most = a
			}
		}
		if most != most || math.IsInf(float64(most), 0) {
			return brokenf("the tensor %s holds a number that is not finite, and cannot be stored in 8 bits", shown(t.Name))
		}
		factor := most / mostEight
		if factor == 0 { // also of numbers that are too small to have one
			factor = 1
		}
		for i, v := range row {
			out[i] = ToEight(v / factor)
		}
		factors = binary.LittleEndian.AppendUint32(factors, math.Float32bits(factor))
		if _, err := w.Write(out); err != nil {
			return err
		}
	}
	_, err := w.Write(factors)
	return err
}

// ToEight is the F8_E4M3 value nearest to v, ties to even; what is beyond 448 is
// 448.
func ToEight(v float32) byte {
	bits := math.Float32bits(v)
	sign, magnitude := byte(bits>>24&0x80), bits&0x7fffffff
	switch {
	case magnitude > 0x7f800000: // not a number
		return sign | 0x7f
	case magnitude >= 0x43e00000: // 448 and beyond
		return sign | 0x7e
	case magnitude < 0x3c800000: // below 2^-6: a multiple of 2^-9
		return sign | byte(math.RoundToEven(float64(math.Float32frombits(magnitude))*0x1p9))
	}
	// The exponent is rebiased from 127 to 7; a carry of the rounding goes into it.
	return sign | byte((magnitude-0x3c000000+0x7ffff+magnitude>>20&1)>>20)
}

// FromEight widens an F8_E4M3 value.
func FromEight(b byte) float32 {
	sign, exponent, fraction := uint32(b>>7)<<31, uint32(b>>3&0xf), uint32(b&7)
	switch {
	case b&0x7f == 0x7f:
		return float32(math.NaN())
	case exponent == 0:
		return math.Float32frombits(math.Float32bits(float32(fraction)*0x1p-9) | sign)
	}
	return math.Float32frombits(sign | (exponent+120)<<23 | fraction<<20)
}

// quantisation is what a config.json says of weights in 8 bits.
const quantisation = `{"quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed", "ignore": ["lm_head"],
	"config_groups": {"group_0": {"targets": ["Linear"], "input_activations": null, "output_activations": null,
	"weights": {"num_bits": 8, "type": "float", "symmetric": true, "strategy": "channel", "dynamic": false}}}}`
