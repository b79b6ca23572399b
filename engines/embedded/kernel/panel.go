package kernel

// PanelWidth is how many columns a panel has.
const PanelWidth = panelCols

// PanelsAtOnce is how many panels MulPanels takes.
const PanelsAtOnce = 4

// MulPanels is MulPanel of each of the four rows of A with a panel of its own:
// that of row i begins at b[i*apart]. It gives the bits of MulPanel, in a
// quarter of the time where all lies in a cache.
func MulPanels(c, a Matrix, b []float32, apart int, accumulate bool) {
	c.check("c")
	a.check("a")
	same("rows of a", a.Rows, PanelsAtOnce)
	same("rows of c", c.Rows, PanelsAtOnce)
	same("columns of c within a panel", min(c.Cols, panelCols), c.Cols)
	same("numbers of b", min(len(b), (PanelsAtOnce-1)*apart+a.Cols*panelCols), (PanelsAtOnce-1)*apart+a.Cols*panelCols)
	if a.Cols > 0 && a.Cols <= depth && c.Cols > 0 && fourRows(c, a, b, apart, accumulate) {
		return
	}
	for i := range PanelsAtOnce {
		MulPanel(c.RowRange(i, i+1), a.RowRange(i, i+1), b[i*apart:], accumulate)
	}
}

// MulPanel computes C = A·B, or C += A·B when accumulate is set, for a B that
// lies as one panel: the PanelWidth numbers of each of its k rows together. c
// is [m × n], a is [m × k]; n is at most PanelWidth, and the columns of B from
// there on may hold anything. It gives the bits of Gemm, and a product whose k
// is cut into parts, each added to the one before, has the bits of the whole.
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
