package kernel

import "unsafe"

// panelCols is the width of a panel: two AVX-512 registers. One layout serves
// every level, so a packed operand outlives a change of level.
const panelCols = 32

// Packed is the right operand B [k × n] of a product, cut into panels of 32
// columns; in a panel the 32 numbers of one k lie together. The last panel is
// filled up with zeros. The zero value is ready, and packing again reuses its
// memory. It may be read by many products at once.
type Packed struct {
	data []float32 // panels() × k × panelCols
	k, n int
}

// Size gives the shape of the operand: k rows, n columns.
func (p *Packed) Size() (k, n int) { return p.k, p.n }

// PackT packs B = Wᵀ, for C = A·Wᵀ: w is [n × k], the layout of a linear
// layer's weight in a checkpoint (out × in).
func (p *Packed) PackT(w Matrix) {
	w.check("w")
	p.reserve(w.Cols, w.Rows)
	for j := 0; j < w.Rows && w.Cols > 0; j += panelCols {
		packPanelT(p.data[j*p.k:(j+panelCols)*p.k], w.RowRange(j, min(j+panelCols, w.Rows)))
	}
}

// Pack packs B as it is, for C = A·B: b is [k × n].
func (p *Packed) Pack(b Matrix) {
	b.check("b")
	p.reserve(b.Rows, b.Cols)
	for j := 0; j < b.Cols && b.Rows > 0; j += panelCols {
		packPanel(p.data[j*p.k:(j+panelCols)*p.k], b.ColRange(j, min(j+panelCols, b.Cols)))
	}
}

func (p *Packed) panels() int { return panels(p.n) }

// panels is how many panels hold n columns.
func panels(n int) int { return (n + panelCols - 1) / panelCols }

// panel is the part of panel j from k = from on.
func (p *Packed) panel(j, from int) []float32 {
	return p.data[(j*p.k+from)*panelCols : (j+1)*p.k*panelCols]
}

// reserve makes room for k × n numbers, aligned to a cache line so that no
// load of the inner loop crosses one.
func (p *Packed) reserve(k, n int) {
	p.k, p.n = k, n
	size := p.panels() * panelCols * k
	if cap(p.data) < size {
		const line = 64 / 4
		room := make([]float32, size+line)
		skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(room)))/4) & (line - 1)
		p.data = room[skip : skip+size : skip+size]
	}
	p.data = p.data[:size]
}
