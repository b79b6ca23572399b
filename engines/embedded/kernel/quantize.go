package kernel

import "math"

// RoundBF16 converts values to bfloat16, rounding to nearest, ties to even.
func RoundBF16(dst []uint16, x []float32) {
	same("length of dst", len(dst), len(x))
	for i, v := range x {
		b := math.Float32bits(v)
		if v != v {
			dst[i] = uint16(b>>16) | 0x40 // the set bit keeps a NaN from becoming infinite
			continue
		}
		dst[i] = uint16((b + 0x7fff + b>>16&1) >> 16)
	}
}
