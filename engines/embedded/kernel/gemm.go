package kernel

import "sync"

const (
	// depth is the maximum number of products that one inner call adds to a sum: the parts of A and
	// B that it reads stay in the L1 cache.
	depth = 512
	// fewDepth replaces depth if all rows of A fit into one tile and A is not transposed. B is then
	// read only once, and hardware prefetching works better on longer sequential reads.
	fewDepth = 1024
	// block is the maximum number of elements of B that are read before a panel is used again, so
	// that they stay in the L2 cache.
	block = 192 << 10
	// inline is the number of multiplications below which a second goroutine is not worthwhile.
	inline = 1 << 20
	// share is the number of parts of a product for each worker, for load balancing.
	share = 3
	// conflict is a row stride, in elements: rows whose stride is a multiple of it compete for few
	// sets of the L1 cache.
	conflict = 256
)

// Gemm computes C = A·B, or C += A·B if accumulate is set. c is [m × n], a is [m × k], and b
// packs a [k × n] matrix. Gemm uses at most workers goroutines, including the caller's.
func Gemm(c, a Matrix, b *Packed, accumulate bool, workers int) {
	c.check("c")
	a.check("a")
	same("rows of a", a.Rows, c.Rows)
	same("columns of a", a.Cols, b.k)
	same("columns of b", b.n, c.Cols)
	if accumulate && b.scales != nil {
		addScaled(c, a, b, workers)
		return
	}
	p := product{c: c, a: a.Data, rowStride: a.Stride, kStride: 1, b: b, load: accumulate}
	if b.k == 0 {
		p.clear()
		return
	}
	workers = min(workers, c.Rows*c.Cols*b.k/inline)
	if workers < 2 {
		p.part(0, c.Rows, 0, b.panels())
		return
	}
	tiles := (c.Rows + tileRows() - 1) / tileRows()
	byRows := tiles >= share*workers || tiles >= b.panels()
	cut(c.Rows, b.panels(), workers, byRows, p.part)
}

// addScaled computes C += A·B when b has scales: it multiplies the elements of the product by the
// scales before it adds them to C.
func addScaled(c, a Matrix, b *Packed, workers int) {
	buffer := sums.Get().(*[]float32)
	defer sums.Put(buffer)
	if n := c.Rows * c.Cols; cap(*buffer) < n {
		*buffer = make([]float32, n)
	}
	part := Matrix{Data: (*buffer)[:c.Rows*c.Cols], Rows: c.Rows, Cols: c.Cols, Stride: c.Cols}
	Gemm(part, a, b, false, workers)
	for i := range c.Rows {
		add(c.Row(i), c.Row(i), part.Row(i))
	}
}

// sums is a pool of buffers for addScaled.
var sums = sync.Pool{New: func() any { return new([]float32) }}

// columns is a pool of buffers for GemmTN, into which it packs the right operand.
var columns = sync.Pool{New: func() any { return new(Packed) }}

// GemmTN computes C += Aᵀ·B, the gradient of a weight: a is [m × p], b is [m × q], c is [p × q]. It
// adds the products in ascending order of m.
func GemmTN(c, a, b Matrix, workers int) {
	c.check("c")
	a.check("a")
	b.check("b")
	same("rows of b", b.Rows, a.Rows)
	same("rows of c", c.Rows, a.Cols)
	same("columns of c", c.Cols, b.Cols)
	workers = min(workers, c.Rows*c.Cols*a.Rows/inline)
	if workers < 2 {
		gradient(c, a, b)
		return
	}
	// If C is divided by rows, each part packs all of B, so that is worthwhile only for few panels.
	byRows := panels(c.Cols) < 2*workers
	cut(c.Rows, panels(c.Cols), workers, byRows, func(r0, r1, p0, p1 int) {
		c0, c1 := p0*panelCols, min(p1*panelCols, c.Cols)
		gradient(c.RowRange(r0, r1).ColRange(c0, c1), a.ColRange(r0, r1), b.ColRange(c0, c1))
	})
}

// gradient computes a part of GemmTN. It packs B piece by piece, and uses each piece while it is in
// the L2 cache.
func gradient(c, a, b Matrix) {
	if c.Rows == 0 || c.Cols == 0 {
		return
	}
	packed := columns.Get().(*Packed)
	defer columns.Put(packed)
	steps := (a.Rows + depth - 1) / depth
	for i := range steps {
		k0, k1 := a.Rows*i/steps, a.Rows*(i+1)/steps
		packed.Pack(b.RowRange(k0, k1))
		p := product{c: c, a: a.Data[k0*a.Stride:], rowStride: 1, kStride: a.Stride, b: packed, load: true}
		p.part(0, c.Rows, 0, packed.panels())
	}
}

// cut divides C by its rows if byRows is true, otherwise by its panels, and calls part for each
// part: rows r0 to r1 of panels p0 to p1.
func cut(rows, panels, workers int, byRows bool, part func(r0, r1, p0, p1 int)) {
	if byRows {
		n := min((rows+tileRows()-1)/tileRows(), share*workers)
		Each(n, workers, func(_, i int) { part(rows*i/n, rows*(i+1)/n, 0, panels) })
		return
	}
	n := min(panels, share*workers)
	Each(n, workers, func(_, i int) { part(0, rows, panels*i/n, panels*(i+1)/n) })
}

// A product describes a product C = A·B. The element of A for row i and step k is
// a[i*rowStride+k*kStride].
type product struct {
	c                  Matrix
	a                  []float32
	rowStride, kStride int
	b                  *Packed
	load               bool // add the product to C instead of overwriting C
}

// clear computes the product for k = 0: it sets C to zero, unless load is true.
func (p product) clear() {
	if p.load {
		return
	}
	for i := range p.c.Rows {
		clear(p.c.Row(i))
	}
}

// part computes rows r0 to r1 of panels p0 to p1. It divides the rows evenly into tiles, so that no
// tile has only one or two rows.
func (p product) part(r0, r1, p0, p1 int) {
	rows, k := r1-r0, p.b.k
	if rows == 0 || p0 == p1 {
		return
	}
	s := stages.Get().(*stage)
	defer stages.Put(s)
	tiles := (rows + tileRows() - 1) / tileRows()
	maxDepth := depth
	if tiles == 1 && p.rowStride != 1 {
		maxDepth = fewDepth
	}
	steps := (k + maxDepth - 1) / maxDepth
	// width is a multiple of 4, the number of panels of a call of quad, if possible
	width := max(4, block/((k+steps-1)/steps*panelCols)&^3)
	for lo := p0; lo < p1; lo += width {
		hi := min(lo+width, p1)
		for step := range steps {
			k0, k1 := k*step/steps, k*(step+1)/steps
			for t := range tiles {
				p.strip(s, r0+rows*t/tiles, r0+rows*(t+1)/tiles, lo, hi, k0, k1)
			}
		}
	}
	if p.b.scales != nil {
		for i := r0; i < r1; i++ {
			row, scales := p.c.Row(i)[p0*panelCols:], p.b.scales[p0*panelCols:]
			n := min(len(row), (p1-p0)*panelCols)
			mul(row[:n], row[:n], scales[:n])
		}
	}
}

// A stage is a copy of the part of A for one tile, in contiguous memory.
type stage [16 * (fewDepth + 16)]float32

var stages = sync.Pool{New: func() any { return new(stage) }}

// strip adds the products of steps k0 to k1 to rows i0 to i1 of panels lo to hi of C. There are at
// most as many rows as one tile has.
func (p product) strip(s *stage, i0, i1, lo, hi, k0, k1 int) {
	load := p.load || k0 > 0
	a, rowStride, kStride := p.gather(s, i0, i1, k0, k1)
	j := lo
	for ; i1-i0 <= quadRows() && j+4 <= hi && (j+4)*panelCols <= p.c.Cols; j += 4 {
		quad(p.c.Data[i0*p.c.Stride+j*panelCols:], p.c.Stride, a, rowStride, kStride, p.b.panel(j, k0), p.b.k, k1-k0, i1-i0,
			load)
	}
	for ; j < hi; j++ {
		c := p.c.Data[i0*p.c.Stride+j*panelCols:]
		tile(c, p.c.Stride, a, rowStride, kStride, p.b.panel(j, k0), k1-k0, i1-i0, min(panelCols, p.c.Cols-j*panelCols), load)
	}
}

// gather returns rows i0 to i1 of A from step k0 on, and their strides. a is a part of p.a, or a
// copy in s if the rows of A would conflict in the L1 cache.
func (p product) gather(s *stage, i0, i1, k0, k1 int) (a []float32, rowStride, kStride int) {
	a = p.a[i0*p.rowStride+k0*p.kStride:]
	if p.rowStride == 1 && packTile(s[:], a, p.kStride, k1-k0, i1-i0) {
		return s[:], 1, 16
	}
	if p.kStride == 1 && i1-i0 > quadRows() && p.rowStride >= 2*conflict && p.rowStride%conflict == 0 {
		for i := range i1 - i0 {
			copy(s[i*(fewDepth+16):], a[i*p.rowStride:][:k1-k0])
		}
		return s[:], fewDepth + 16, 1
	}
	return a, p.rowStride, p.kStride
}
