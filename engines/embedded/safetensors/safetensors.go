// Package safetensors reads and writes the safetensors format: eight bytes with the
// little-endian length of a JSON header, the header, and the tensors' values, row-major,
// little-endian and contiguous.
package safetensors

import (
	"encoding/binary"
	"math"
	"slices"

	"anneal/domain/weights"
)

// A DType is the type in which a tensor's values are stored.
type DType string

// The supported types.
const (
	F32  DType = "F32"
	BF16 DType = "BF16"
	F16  DType = "F16"
	F8   DType = "F8_E4M3" // can be read but not written; another tensor has its scales
	I8   DType = "I8"      // can be read but not written; another tensor has its scales
)

// Eight reports whether the type has 8-bit values, which are multiplied by scales.
func (t DType) Eight() bool { return t == F8 || t == I8 }

// Size returns the size of a value in bytes; 0 for an unknown type.
func (t DType) Size() int {
	switch t {
	case F32:
		return 4
	case BF16, F16:
		return 2
	case F8, I8:
		return 1
	}
	return 0
}

// An Info describes a tensor.
type Info struct {
	Name  string
	DType DType
	Shape []int // dimensions, outermost first; empty for a scalar
}

// Count returns the number of values.
func (i Info) Count() int {
	n := 1
	for _, d := range i.Shape {
		n *= d
	}
	return n
}

// Is reports whether the tensor has the given shape.
func (i Info) Is(shape ...int) bool { return slices.Equal(i.Shape, shape) }

// decode converts len(dst) stored values in src to float32.
func decode(dst []float32, src []byte, t DType) {
	switch t {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case BF16:
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
	case F16:
		for i := range dst {
			dst[i] = weights.FromHalf(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case F8:
		for i := range dst {
			dst[i] = weights.FromFloat8(src[i])
		}
	case I8:
		for i := range dst {
			dst[i] = float32(int8(src[i]))
		}
	}
}

// encode appends values in a storage type to dst.
func encode(dst []byte, src []float32, t DType) []byte {
	for _, v := range src {
		switch t {
		case F32:
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(v))
		case BF16:
			dst = binary.LittleEndian.AppendUint16(dst, toBfloat(v))
		case F16:
			dst = binary.LittleEndian.AppendUint16(dst, weights.ToHalf(v))
		}
	}
	return dst
}

// RoundBF16 rounds v to BF16, to nearest, ties to even.
func RoundBF16(v float32) float32 {
	return math.Float32frombits(uint32(toBfloat(v)) << 16)
}

func toBfloat(v float32) uint16 {
	bits := math.Float32bits(v)
	if v != v {
		// the set bit keeps a NaN from becoming infinite
		return uint16(bits>>16) | 0x40
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}
