package gguf

import (
	"encoding/binary"
	"math"

	"anneal/domain"
	"anneal/domain/weights"
	"anneal/engines/embedded/kernel"
)

// A Type is a storage type of weights, numbered as in ggml.
type Type uint32

// The supported types.
const (
	F32  Type = 0
	F16  Type = 1
	Q8   Type = 8 // Q8_0: blocks of 32 values in 8 bits with a 16-bit scale
	BF16 Type = 30
)

// names are the names of types, and the file type of a file that consists mostly of the type
// (general.file_type).
var names = map[string]struct {
	as   Type
	file uint32
}{"f32": {F32, 0}, "f16": {F16, 1}, "q8_0": {Q8, 7}, "bf16": {BF16, 32}}

// ParseType returns the type of a name: f32, f16, bf16 or q8_0.
func ParseType(name string) (Type, error) {
	one, ok := names[name]
	if !ok {
		return 0, domain.Errorf(domain.InvalidArgument, "type: must be f32, f16, bf16 or q8_0, is %q", name)
	}
	return one.as, nil
}

func (t Type) file() uint32 {
	for _, one := range names {
		if one.as == t {
			return one.file
		}
	}
	return 0
}

const block = 32 // values per block

// bytes is the size of n values.
func (t Type) bytes(n int) int64 {
	switch t {
	case F32:
		return 4 * int64(n)
	case Q8:
		return int64(n) / block * (block + 2)
	}
	return 2 * int64(n)
}

func (t Type) encode(values []float32) []byte {
	out := make([]byte, 0, t.bytes(len(values)))
	switch t {
	case F32:
		for _, v := range values {
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
		}
	case F16:
		for _, v := range values {
			out = binary.LittleEndian.AppendUint16(out, weights.ToHalf(v))
		}
	case BF16:
		halves := make([]uint16, len(values))
		kernel.RoundBF16(halves, values)
		for _, h := range halves {
			out = binary.LittleEndian.AppendUint16(out, h)
		}
	case Q8:
		for ; len(values) > 0; values = values[block:] {
			out = appendBlock(out, values[:block])
		}
	}
	return out
}

// appendBlock quantizes a block to multiples of 1/127 of its largest absolute value.
func appendBlock(out []byte, values []float32) []byte {
	amax := float32(0)
	for _, v := range values {
		amax = max(amax, float32(math.Abs(float64(v))))
	}
	step := amax / 127
	out = binary.LittleEndian.AppendUint16(out, weights.ToHalf(step))
	for _, v := range values {
		q := 0.0
		if step > 0 {
			q = math.Round(float64(v / step))
		}
		out = append(out, byte(int8(q)))
	}
	return out
}
