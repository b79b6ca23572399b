package kernel

import "sync"

const (
	// depth bounds the k of one inner call: the rows of A that it reads and
	// the lines of B it streams stay in the first-level cache.
	depth = 384
	// depthTN is the same for a transposed A, where every k of a tile lies on
	// a cache line or two of its own.
	depthTN = 128
	// block bounds the numbers of B between two visits of the same panel, so
	// that they stay in the second-level cache.
	block = 128 << 10
	// inline is the number of multiplications below which handing a part to
	// another goroutine costs more than it saves.
	inline = 1 << 20
)

// Gemm computes C = A·B, or C += A·B when accumulate is set: c is [m × n], a is
// [m × k] and b packs [k × n]. The work is split over at most workers
// goroutines, the caller's among them.
func Gemm(c, a Matrix, b *Packed, accumulate bool, workers int) {
	c.check("c")
	a.check("a")
	same("rows of a", a.Rows, c.Rows)
	same("columns of a", a.Cols, b.k)
	same("columns of b", b.n, c.Cols)
	product{c: c, a: a.Data, rowStride: a.Stride, kStride: 1, b: b, depth: depth, load: accumulate}.run(workers)
}

// transposed holds the packed right operands of GemmTN between calls.
var transposed = sync.Pool{New: func() any { return new(Packed) }}

// GemmTN computes C += Aᵀ·B, the gradient of a weight: a is [m × p], b is
// [m × q], c is [p × q]. It is reduced over m in ascending order.
func GemmTN(c, a, b Matrix, workers int) {
	c.check("c")
	a.check("a")
	same("rows of b", b.Rows, a.Rows)
	same("rows of c", c.Rows, a.Cols)
	same("columns of c", c.Cols, b.Cols)
	packed := transposed.Get().(*Packed)
	packed.Pack(b)
	product{c: c, a: a.Data, rowStride: 1, kStride: a.Stride, b: packed, depth: depthTN, load: true}.run(workers)
	transposed.Put(packed)
}

// product is one C = A·B; the element of A for row i and step k is
// a[i*rowStride+k*kStride].
type product struct {
	c                  Matrix
	a                  []float32
	rowStride, kStride int
	b                  *Packed
	depth              int
	load               bool // C is read, not overwritten
}

// run cuts the rows, or the panels where rows are few, into parts.
func (p product) run(workers int) {
	rows, panels := p.c.Rows, p.b.panels()
	if rows == 0 || panels == 0 {
		return
	}
	if p.b.k == 0 {
		p.clear()
		return
	}
	workers = min(workers, rows*p.c.Cols*p.b.k/inline)
	if workers < 2 {
		p.part(0, rows, 0, panels)
		return
	}
	tiles := (rows + tileRows() - 1) / tileRows()
	if tiles >= 4*workers || tiles >= panels {
		n := min(tiles, 4*workers)
		split(n, workers, func(i int) { p.part(rows*i/n, rows*(i+1)/n, 0, panels) })
		return
	}
	n := min(panels, 4*workers)
	split(n, workers, func(i int) { p.part(0, rows, panels*i/n, panels*(i+1)/n) })
}

// clear gives a product over nothing its value.
func (p product) clear() {
	if p.load {
		return
	}
	for i := range p.c.Rows {
		clear(p.c.Row(i))
	}
}

// part computes rows r0 to r1 of panels p0 to p1. Rows are dealt out evenly
// over the tiles, so no tile is left with one or two.
func (p product) part(r0, r1, p0, p1 int) {
	rows, k := r1-r0, p.b.k
	tiles := (rows + tileRows() - 1) / tileRows()
	steps := (k + p.depth - 1) / p.depth
	width := max(1, block/((k+steps-1)/steps*panelCols))
	for lo := p0; lo < p1; lo += width {
		hi := min(lo+width, p1)
		for s := range steps {
			k0, k1 := k*s/steps, k*(s+1)/steps
			for t := range tiles {
				p.strip(r0+rows*t/tiles, r0+rows*(t+1)/tiles, lo, hi, k0, k1)
			}
		}
	}
}

// strip adds the products k0 to k1 into one tile's height of C.
func (p product) strip(i0, i1, lo, hi, k0, k1 int) {
	a := p.a[i0*p.rowStride+k0*p.kStride:]
	load := p.load || k0 > 0
	for j := lo; j < hi; j++ {
		c := p.c.Data[i0*p.c.Stride+j*panelCols:]
		tile(c, p.c.Stride, a, p.rowStride, p.kStride, p.b.panel(j, k0), k1-k0, i1-i0, min(panelCols, p.c.Cols-j*panelCols), load)
	}
}
