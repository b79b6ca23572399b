package kernel

import "math"

// QuantizeInt8 stores a row as bytes: dst[i]·factor is row[i] to within half a
// factor, which is the greatest absolute value over 127. The row must be finite.
func QuantizeInt8(dst []int8, row []float32) (factor float32) {
	same("length of dst", len(dst), len(row))
	top := float32(0)
	for _, v := range row {
		top = max(top, float32(math.Abs(float64(v))))
	}
	if top == 0 {
		clear(dst)
		return 0
	}
	for i, v := range row {
		dst[i] = int8(math.RoundToEven(float64(v) / float64(top) * 127))
	}
	return top / 127
}

// RoundBF16 stores numbers as bfloat16, rounded to the nearest, of two equally
// near ones to the even.
func RoundBF16(dst []uint16, x []float32) {
	same("length of dst", len(dst), len(x))
	for i, v := range x {
		b := math.Float32bits(v)
		if v != v {
			dst[i] = uint16(b>>16) | 0x40 // a quiet NaN: rounding could make it infinite
			continue
		}
		dst[i] = uint16((b + 0x7fff + b>>16&1) >> 16)
	}
}

// WidenBF16 is the float32 that each bfloat16 stands for.
func WidenBF16(dst []float32, x []uint16) {
	same("length of dst", len(dst), len(x))
	for i, v := range x {
		dst[i] = math.Float32frombits(uint32(v) << 16)
	}
}
