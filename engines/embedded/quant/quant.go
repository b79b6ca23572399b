// Package quant encodes and decodes weights in the storage types of ggml, the library of
// llama.cpp: float32, 16-bit floats, and blocks of small integers with scales. Its functions are
// pure.
//
// The layout of each block is that of ggml's ggml-common.h, and the value of each code that of
// ggml's dequantize_row functions. How a quantizer chooses the scales is not part of the format;
// this package chooses them by least squares.
package quant

import (
	"encoding/binary"
	"fmt"
	"math"

	"anneal/domain/weights"
	"anneal/engines/embedded/safetensors"
)

// A Type is a storage type of weights, numbered as ggml's ggml_type.
type Type uint32

// The supported types. In the formulas, x is a value, q the integer that is stored for it, and d,
// m, s and t are numbers that the block stores for several values.
const (
	F32  Type = 0
	F16  Type = 1
	Q5_0 Type = 6  // blocks of 32: x = d·(q-16), q of 5 bits; d in F16
	Q5_1 Type = 7  // blocks of 32: x = d·q + m, q of 5 bits; d and m in F16
	Q8_0 Type = 8  // blocks of 32: x = d·q, q of 8 bits; d in F16
	Q4_K Type = 12 // blocks of 256, 8 groups of 32: x = d·s·q - m·t, q of 4 bits, s and t of 6 bits; d and m in F16
	Q5_K Type = 13 // as Q4_K, but q of 5 bits
	Q6_K Type = 14 // blocks of 256, 16 groups of 16: x = d·s·(q-32), q of 6 bits, s of 8 bits; d in F16
	BF16 Type = 30
)

// A format describes a type.
type format struct {
	name   string
	values int // number of values in a block
	bytes  int // size of a block in bytes
	encode func(to []byte, x []float32)
	decode func(x []float32, from []byte)
}

// formats are the supported types. Their functions encode and decode one block.
var formats = map[Type]format{
	F32:  {"F32", 1, 4, encodeF32, decodeF32},
	F16:  {"F16", 1, 2, encodeF16, decodeF16},
	BF16: {"BF16", 1, 2, encodeBF16, decodeBF16},
	Q5_0: {"Q5_0", small, 2 + small/8 + small/2, encodeQ50, decodeQ50},
	Q5_1: {"Q5_1", small, 2 + 2 + small/8 + small/2, encodeQ51, decodeQ51},
	Q8_0: {"Q8_0", small, 2 + small, encodeQ80, decodeQ80},
	Q4_K: {"Q4_K", super, 2 + 2 + packedScales + super/2, encodeQ4K, decodeQ4K},
	Q5_K: {"Q5_K", super, 2 + 2 + packedScales + super/8 + super/2, encodeQ5K, decodeQ5K},
	Q6_K: {"Q6_K", super, super/2 + super/4 + super/16 + 2, encodeQ6K, decodeQ6K},
}

const (
	small        = 32  // number of values in a block of Q5_0, Q5_1 and Q8_0
	super        = 256 // number of values in a block of Q4_K, Q5_K and Q6_K
	packedScales = 12  // size in bytes of eight 6-bit scales and eight 6-bit minimums
)

// String returns ggml's name of the type.
func (t Type) String() string {
	if f, ok := formats[t]; ok {
		return f.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Block returns the number of values in a block. The length of a row must be a multiple of it.
func (t Type) Block() int { return formats[t].values }

// Bytes returns the size of n values in bytes. n must be a multiple of Block.
func (t Type) Bytes(n int) int64 {
	f := formats[t]
	return int64(n/f.values) * int64(f.bytes)
}

// Limit returns the greatest absolute value that the type can represent. In all types but F32 and
// BF16, the scale of a block is a 16-bit float.
func (t Type) Limit() float32 {
	if t == F32 || t == BF16 {
		return math.MaxFloat32
	}
	return 65504
}

// Encode stores the values x in the t.Bytes(len(x)) bytes of dst. The length of x must be a
// multiple of Block, and no absolute value may exceed Limit.
func (t Type) Encode(dst []byte, x []float32) {
	f := formats[t]
	for ; len(x) > 0; x, dst = x[f.values:], dst[f.bytes:] {
		f.encode(dst[:f.bytes], x[:f.values])
	}
}

// Decode reads len(x) values from the t.Bytes(len(x)) bytes of src. The length of x must be a
// multiple of Block.
func (t Type) Decode(x []float32, src []byte) {
	f := formats[t]
	for ; len(x) > 0; x, src = x[f.values:], src[f.bytes:] {
		f.decode(x[:f.values], src[:f.bytes])
	}
}

func encodeF32(to []byte, x []float32) { binary.LittleEndian.PutUint32(to, math.Float32bits(x[0])) }

func decodeF32(x []float32, from []byte) {
	x[0] = math.Float32frombits(binary.LittleEndian.Uint32(from))
}

func encodeF16(to []byte, x []float32)   { putHalf(to, x[0]) }
func decodeF16(x []float32, from []byte) { x[0] = half(from) }

func encodeBF16(to []byte, x []float32) {
	binary.LittleEndian.PutUint16(to, uint16(math.Float32bits(safetensors.RoundBF16(x[0]))>>16))
}

func decodeBF16(x []float32, from []byte) {
	x[0] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(from)) << 16)
}

// putHalf stores v as a 16-bit float, and returns the stored value.
func putHalf(to []byte, v float32) float32 {
	bits := weights.ToHalf(v)
	binary.LittleEndian.PutUint16(to, bits)
	return weights.FromHalf(bits)
}

// half returns the 16-bit float that putHalf has stored.
func half(from []byte) float32 { return weights.FromHalf(binary.LittleEndian.Uint16(from)) }
