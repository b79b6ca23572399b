package kernel

// PanelWidth is the number of columns of a panel.
const PanelWidth = panelCols

// PanelsAtOnce is the number of panels that one call of MulPanels multiplies.
const PanelsAtOnce = 4

// MulPanels multiplies each of the four rows of A with its own panel of B, like MulPanel. The panel
// of row i begins at b[i*stride]. The result is bit-identical to that of four calls of MulPanel,
// and takes a quarter of the time if all operands are in a cache.
func MulPanels(c, a Matrix, b []float32, stride int, accumulate bool) {
	c.check("c")
	a.check("a")
	same("rows of a", a.Rows, PanelsAtOnce)
	same("rows of c", c.Rows, PanelsAtOnce)
	same("columns of c within a panel", min(c.Cols, panelCols), c.Cols)
	same("numbers of b", min(len(b), (PanelsAtOnce-1)*stride+a.Cols*panelCols), (PanelsAtOnce-1)*stride+a.Cols*panelCols)
	if a.Cols > 0 && a.Cols <= depth && c.Cols > 0 && fourRows(c, a, b, stride, accumulate) {
		return
	}
	for i := range PanelsAtOnce {
		MulPanel(c.RowRange(i, i+1), a.RowRange(i, i+1), b[i*stride:], accumulate)
	}
}

// MulPanel computes C = A·B, or C += A·B if accumulate is true, for a B that is one panel: b has k
// rows of PanelWidth adjacent elements. c is [m × n], a is [m × k]. n is at most PanelWidth; the
// columns of B from n on are ignored. The result is bit-identical to that of Gemm, even if k is
// divided into several calls with accumulate.
func MulPanel(c, a Matrix, b []float32, accumulate bool) {
	c.check("c")
	a.check("a")
	same("rows of a", a.Rows, c.Rows)
	same("columns of c within a panel", min(c.Cols, panelCols), c.Cols)
	same("numbers of b", min(len(b), a.Cols*panelCols), a.Cols*panelCols)
	if a.Cols == 0 {
		product{c: c, load: accumulate}.clear()
	}
	if c.Cols == 0 {
		return
	}
	for from := 0; from < a.Cols; from += depth {
		k := min(depth, a.Cols-from)
		for i := 0; i < c.Rows; i += tileRows() {
			tile(c.Data[i*c.Stride:], c.Stride, a.Data[i*a.Stride+from:], a.Stride, 1,
				panel{float: b[from*panelCols:]}, k, min(tileRows(), c.Rows-i), c.Cols, accumulate || from > 0)
		}
	}
}
