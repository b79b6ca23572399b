package kernel

import "unsafe"

// panelCols is the number of columns of a panel: two AVX-512 registers. All levels use the same
// layout, so a packed operand remains valid when the level changes.
const panelCols = 32

// A Packed is the right operand B [k × n] of a product, divided into panels of 32 columns. In a
// panel, the 32 elements of one row of B are adjacent. The last panel is padded with zeros. The
// elements are float32, bfloat16, binary16, or quantized values (int8 or E4M3) with a scale for
// each column. Products are equal to those of the float32 values that the elements represent. The
// zero value is ready to use, and packing again reuses its memory. Several goroutines may read a
// Packed concurrently.
type Packed struct {
	numbers panel // elements of all panels
	scales  []float32
	k, n    int
}

// A panel has packed elements. Exactly one field is set.
type panel struct {
	float []float32
	bf16  []uint16 // bfloat16: upper halves of float32 values
	f16   []uint16 // IEEE 754 binary16
	int8  []int8
	e4m3  []uint8 // OCP 8-bit floating point, without infinities
}

// e4m3Scale corrects products of E4M3 values. The kernels convert them as if they were binary16,
// which makes the products too small by this factor.
const e4m3Scale = 256

// Size returns the numbers of rows (k) and columns (n) of the operand.
func (p *Packed) Size() (k, n int) { return p.k, p.n }

// PackT packs B = Wᵀ for a product C = A·Wᵀ. w is [n × k], the layout of a linear layer's weight in
// a checkpoint (out × in).
func (p *Packed) PackT(w Matrix) {
	w.check("w")
	p.size(w.Cols, w.Rows)
	data := reserve(p.numbers.float, p.cells())
	p.numbers = panel{float: data}
	for j := 0; j < w.Rows && w.Cols > 0; j += panelCols {
		packPanelT(data[j*p.k:(j+panelCols)*p.k], w.RowRange(j, min(j+panelCols, w.Rows)))
	}
}

// Pack stores b, a [k × n] matrix, in panels, as the operand B of C = A·B.
func (p *Packed) Pack(b Matrix) {
	b.check("b")
	p.size(b.Rows, b.Cols)
	data := reserve(p.numbers.float, p.cells())
	p.numbers = panel{float: data}
	for j := 0; j < b.Cols && b.Rows > 0; j += panelCols {
		packPanel(data[j*p.k:(j+panelCols)*p.k], b.ColRange(j, min(j+panelCols, b.Cols)))
	}
}

// PackTBF16 is like PackT for bfloat16 values, the upper halves of float32. w is a dense [n × k]
// matrix. The packed values have 16 bits, so a memory-bound product takes half the time, and the
// results are bit-identical to those of float32.
func (p *Packed) PackTBF16(w []uint16, n, k int) {
	same("length of w", len(w), n*k)
	p.size(k, n)
	data := reserve(p.numbers.bf16, p.cells())
	p.numbers = panel{bf16: data}
	packDense(data, w, n, k)
}

// PackTF16 is like PackT for IEEE 754 binary16 values. w is a dense [n × k] matrix. The packed
// values have 16 bits, and the results are bit-identical to those of float32.
func (p *Packed) PackTF16(w []uint16, n, k int) {
	same("length of w", len(w), n*k)
	p.size(k, n)
	data := reserve(p.numbers.f16, p.cells())
	p.numbers = panel{f16: data}
	packDense(data, w, n, k)
}

// PackTInt8 is like PackT for the matrix W whose row j is scales[j] times row j of w. w is a dense
// [n × k] matrix. A scale multiplies the finished sums.
func (p *Packed) PackTInt8(w []int8, scales []float32, n, k int) {
	same("length of w", len(w), n*k)
	same("length of scales", len(scales), n)
	p.size(k, n)
	data := reserve(p.numbers.int8, p.cells())
	p.numbers = panel{int8: data}
	p.scales = append([]float32(nil), scales...)
	packDense(data, w, n, k)
}

// PackTE4M3 is like PackTInt8 for OCP 8-bit floating-point values (E4M3). The values must not be
// NaN (0x7f and 0xff).
func (p *Packed) PackTE4M3(w []uint8, scales []float32, n, k int) {
	same("length of w", len(w), n*k)
	same("length of scales", len(scales), n)
	p.size(k, n)
	data := reserve(p.numbers.e4m3, p.cells())
	p.numbers = panel{e4m3: data}
	p.scales = append([]float32(nil), scales...)
	scale(p.scales, e4m3Scale)
	packDense(data, w, n, k)
}

// RowT writes row j of W to dst as float32. p must have packed Wᵀ.
func (p *Packed) RowT(dst []float32, j int) {
	same("length of dst", len(dst), p.k)
	if p.k == 0 {
		return
	}
	p.numbers.slice(j/panelCols*panelCols*p.k+j%panelCols, p.cells()).widen(dst, panelCols)
	if p.scales != nil {
		scale(dst, p.scales[j])
	}
}

// Bytes returns the size of the packed elements and the scales in bytes.
func (p *Packed) Bytes() int64 {
	n := p.numbers
	return int64(4*(cap(n.float)+len(p.scales)) + 2*(cap(n.bf16)+cap(n.f16)) + cap(n.int8) + cap(n.e4m3))
}

// PackedBytes returns the size in bytes of a packed float32 operand [k × n].
func PackedBytes(k, n int) int64 { return 4 * int64(panels(n)*panelCols) * int64(k) }

// packDense packs the transpose of w.
func packDense[T any](dst, w []T, n, k int) {
	clear(dst)
	for j := range n {
		at := j/panelCols*panelCols*k + j%panelCols
		for l, v := range w[j*k : (j+1)*k] {
			dst[at+l*panelCols] = v
		}
	}
}

func (p *Packed) size(k, n int) { p.k, p.n, p.scales = k, n, nil }

func (p *Packed) cells() int { return p.panels() * panelCols * p.k }

func (p *Packed) panels() int { return panels(p.n) }

// panels returns the number of panels that n columns need.
func panels(n int) int { return (n + panelCols - 1) / panelCols }

// panel returns the elements of panel j, beginning with row start of B.
func (p *Packed) panel(j, start int) panel {
	return p.numbers.slice((j*p.k+start)*panelCols, (j+1)*p.k*panelCols)
}

func (b panel) slice(lo, hi int) panel {
	switch {
	case b.bf16 != nil:
		return panel{bf16: b.bf16[lo:hi]}
	case b.f16 != nil:
		return panel{f16: b.f16[lo:hi]}
	case b.int8 != nil:
		return panel{int8: b.int8[lo:hi]}
	case b.e4m3 != nil:
		return panel{e4m3: b.e4m3[lo:hi]}
	}
	return panel{float: b.float[lo:hi]}
}

// reserve returns a slice of size elements: old if its capacity suffices, otherwise a new slice
// that begins at a cache line, so that no load of the inner loop crosses two lines.
func reserve[T any](old []T, size int) []T {
	if old != nil && cap(old) >= size {
		return old[:size]
	}
	var one T
	line := 64 / int(unsafe.Sizeof(one))
	buffer := make([]T, size+line)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(buffer)))/unsafe.Sizeof(one)) & (line - 1)
	return buffer[skip : skip+size : skip+size]
}
