package kernel

import "unsafe"

// panelCols is the width of a panel: two AVX-512 registers. All levels use the same layout, so
// a packed operand remains valid when the level changes.
const panelCols = 32

// Packed is the right operand B [k × n] of a product, divided into panels of 32 columns. In a
// panel, the 32 elements of one k are adjacent. The last panel is padded with zeros. The
// elements are float32, bfloat16, binary16, or int8 or E4M3 with a factor for each column.
// Products are equal to those of the float32 values that the elements represent. The zero value
// is ready to use, and packing again reuses its memory. A Packed may be read concurrently.
type Packed struct {
	numbers panel // panels() × k × panelCols
	factors []float32
	k, n    int
}

// panel is a run of packed elements; exactly one field is set.
type panel struct {
	float []float32
	bf16  []uint16 // upper half of a float32
	f16   []uint16 // IEEE 754 binary16
	int8  []int8
	e4m3  []uint8 // OCP 8-bit floating point, without infinities
}

// codeScale corrects products of E4M3 codes. The codes are widened as if they were binary16,
// which makes the products too small by this factor.
const codeScale = 256

// Size returns the shape of the operand: k rows, n columns.
func (p *Packed) Size() (k, n int) { return p.k, p.n }

// PackT packs B = Wᵀ, for C = A·Wᵀ: w is [n × k], the layout of a linear layer's weight in a
// checkpoint (out × in).
func (p *Packed) PackT(w Matrix) {
	w.check("w")
	p.size(w.Cols, w.Rows)
	data := reserve(p.numbers.float, p.cells())
	p.numbers = panel{float: data}
	for j := 0; j < w.Rows && w.Cols > 0; j += panelCols {
		packPanelT(data[j*p.k:(j+panelCols)*p.k], w.RowRange(j, min(j+panelCols, w.Rows)))
	}
}

// Pack packs b, which is [k × n], for C = A·B.
func (p *Packed) Pack(b Matrix) {
	b.check("b")
	p.size(b.Rows, b.Cols)
	data := reserve(p.numbers.float, p.cells())
	p.numbers = panel{float: data}
	for j := 0; j < b.Cols && b.Rows > 0; j += panelCols {
		packPanel(data[j*p.k:(j+panelCols)*p.k], b.ColRange(j, min(j+panelCols, b.Cols)))
	}
}

// PackTBF16 is PackT of bfloat16 values, the upper halves of float32: w is a dense [n × k]. The
// packed values remain 16 bits wide, so a memory-bound product takes half the time, and the
// results are bit-identical to those of float32.
func (p *Packed) PackTBF16(w []uint16, n, k int) {
	same("length of w", len(w), n*k)
	p.size(k, n)
	data := reserve(p.numbers.bf16, p.cells())
	p.numbers = panel{bf16: data}
	packDense(data, w, n, k)
}

// PackTF16 is PackT of IEEE 754 binary16 values: w is a dense [n × k]. The packed values remain
// 16 bits wide, and the results are bit-identical to those of float32.
func (p *Packed) PackTF16(w []uint16, n, k int) {
	same("length of w", len(w), n*k)
	p.size(k, n)
	data := reserve(p.numbers.f16, p.cells())
	p.numbers = panel{f16: data}
	packDense(data, w, n, k)
}

// PackTInt8 is PackT of W = factors·w. w is a dense [n × k] matrix of bytes, and factors has an
// element for each row of w, which multiplies the finished sums.
func (p *Packed) PackTInt8(w []int8, factors []float32, n, k int) {
	same("length of w", len(w), n*k)
	same("length of factors", len(factors), n)
	p.size(k, n)
	data := reserve(p.numbers.int8, p.cells())
	p.numbers = panel{int8: data}
	p.factors = append([]float32(nil), factors...)
	packDense(data, w, n, k)
}

// PackTE4M3 is PackTInt8 of OCP 8-bit floating-point codes, E4M3. The codes must not be NaN
// (0x7f and 0xff).
func (p *Packed) PackTE4M3(w []uint8, factors []float32, n, k int) {
	same("length of w", len(w), n*k)
	same("length of factors", len(factors), n)
	p.size(k, n)
	data := reserve(p.numbers.e4m3, p.cells())
	p.numbers = panel{e4m3: data}
	p.factors = append([]float32(nil), factors...)
	scale(p.factors, codeScale)
	packDense(data, w, n, k)
}

// RowT writes row j of W as float32 to dst. p must have packed Wᵀ.
func (p *Packed) RowT(dst []float32, j int) {
	same("length of dst", len(dst), p.k)
	if p.k == 0 {
		return
	}
	p.numbers.slice(j/panelCols*panelCols*p.k+j%panelCols, p.cells()).widen(dst, panelCols)
	if p.factors != nil {
		scale(dst, p.factors[j])
	}
}

// Bytes returns the memory of the packed elements and factors in bytes.
func (p *Packed) Bytes() int64 {
	n := p.numbers
	return int64(4*(cap(n.float)+len(p.factors)) + 2*(cap(n.bf16)+cap(n.f16)) + cap(n.int8) + cap(n.e4m3))
}

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

func (p *Packed) size(k, n int) { p.k, p.n, p.factors = k, n, nil }

func (p *Packed) cells() int { return p.panels() * panelCols * p.k }

func (p *Packed) panels() int { return panels(p.n) }

// panels returns the number of panels that n columns need.
func panels(n int) int { return (n + panelCols - 1) / panelCols }

// panel returns the elements of panel j from row "from" of B on.
func (p *Packed) panel(j, from int) panel {
	return p.numbers.slice((j*p.k+from)*panelCols, (j+1)*p.k*panelCols)
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
// that is aligned to a cache line, so that no load of the inner loop crosses two lines.
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
