package kernel

import (
	"math"
	"sync"

	"anneal/domain/weights"
)

// The kernels of this file are plain Go. They convert each product to float32 before they add it,
// so that the compiler cannot use fused multiply-add instructions: it might use them in only some
// of the loops, but the result must not depend on which loop processes an element.

// widened is a pool of buffers for the float32 values of a panel of narrower elements.
var widened = sync.Pool{New: func() any { return new([depth * panelCols]float32) }}

// tileGo computes rows × cols elements of C from k steps of A and a panel. It adds to C if load is
// true, and overwrites C otherwise.
func tileGo(c []float32, ldc int, a []float32, rowStride, kStride int, b panel, k, rows, cols int, load bool) {
	if b.float == nil {
		buffer := widened.Get().(*[depth * panelCols]float32)
		defer widened.Put(buffer)
		narrow := b
		b.float = buffer[:k*panelCols]
		narrow.widen(b.float, 1)
	}
	for i := range rows {
		row := c[i*ldc:][:cols]
		for j := 0; j < cols; j += 8 {
			var s [8]float32
			part := row[j:min(j+8, cols)]
			if load {
				copy(s[:], part)
			}
			s = octet(s, a[i*rowStride:], kStride, b.float[j:], k)
			copy(part, s[:])
		}
	}
}

// widen writes every step-th element of a panel to dst, as float32.
func (b panel) widen(dst []float32, step int) {
	switch {
	case b.bf16 != nil:
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(b.bf16[i*step]) << 16)
		}
	case b.f16 != nil:
		for i := range dst {
			dst[i] = widenF16(b.f16[i*step])
		}
	case b.int8 != nil:
		for i := range dst {
			dst[i] = float32(b.int8[i*step])
		}
	case b.e4m3 != nil:
		for i := range dst {
			dst[i] = fromE4M3[b.e4m3[i*step]]
		}
	default:
		for i := range dst {
			dst[i] = b.float[i*step]
		}
	}
}

// widenF16 converts a binary16 to float32. It shifts the bits to their places, and corrects the
// bias of the exponent by a multiplication, which is exact for subnormal numbers too.
func widenF16(v uint16) float32 {
	if v&0x7c00 == 0x7c00 {
		return weights.FromHalf(v) // v is infinite or NaN
	}
	magnitude := math.Float32frombits(uint32(v&0x7fff)<<13) * 0x1p112
	return math.Float32frombits(math.Float32bits(magnitude) | uint32(v&0x8000)<<16)
}

// fromE4M3 maps each E4M3 value to its float32 divided by e4m3Scale, as the assembly kernels
// compute it.
var fromE4M3 = func() (table [256]float32) {
	for code := range table {
		table[code] = weights.FromFloat8(byte(code)) / e4m3Scale
	}
	return table
}()

// octet returns s plus the product of a row vector, the k elements of a that are kStride apart, and
// eight adjacent columns of a panel with k rows.
func octet(s [8]float32, a []float32, kStride int, b []float32, k int) [8]float32 {
	s0, s1, s2, s3, s4, s5, s6, s7 := s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]
	for l := range k {
		x, y := a[l*kStride], (*[8]float32)(b[l*panelCols:])
		s0 += float32(x * y[0])
		s1 += float32(x * y[1])
		s2 += float32(x * y[2])
		s3 += float32(x * y[3])
		s4 += float32(x * y[4])
		s5 += float32(x * y[5])
		s6 += float32(x * y[6])
		s7 += float32(x * y[7])
	}
	return [8]float32{s0, s1, s2, s3, s4, s5, s6, s7}
}

// packPanelGo copies up to 32 columns of b into a panel.
func packPanelGo(dst []float32, b Matrix) {
	for l := range b.Rows {
		copy(dst[l*panelCols:], b.Row(l))
	}
	clearRest(dst, b.Cols, b.Rows)
}

// packPanelTGo copies the transpose of up to 32 rows of w into a panel.
func packPanelTGo(dst []float32, w Matrix) {
	packRowsGo(dst, w, 0, w.Rows, 0)
	clearRest(dst, w.Rows, w.Cols)
}

// packRowsGo writes rows j0 to j1 of w into a panel as columns, beginning with column k0 of w.
func packRowsGo(dst []float32, w Matrix, j0, j1, k0 int) {
	for j := j0; j < j1; j++ {
		for l, v := range w.Row(j)[k0:] {
			dst[(k0+l)*panelCols+j] = v
		}
	}
}

// clearRest zeroes the columns of a panel from number cols on.
func clearRest(dst []float32, cols, k int) {
	for l := 0; l < k && cols < panelCols; l++ {
		clear(dst[l*panelCols+cols : (l+1)*panelCols])
	}
}
