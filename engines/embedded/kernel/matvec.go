package kernel

// MatVecT computes y = W·x for one row x, reading w [n × k] as it lies in the
// checkpoint: y has n numbers, x has k. It gives the bits that Gemm gives for
// that row.
func MatVecT(y, x []float32, w Matrix, workers int) {
	w.check("w")
	same("length of y", len(y), w.Rows)
	same("length of x", len(x), w.Cols)
	if w.Cols == 0 {
		clear(y)
		return
	}
	workers = min(workers, w.Rows*w.Cols/inline)
	if workers < 2 {
		matVec(y, x, w)
		return
	}
	parts := min(share*workers, (w.Rows+panelCols-1)/panelCols)
	split(parts, workers, func(i int) {
		lo, hi := w.Rows*i/parts, w.Rows*(i+1)/parts
		matVec(y[lo:hi], x, w.RowRange(lo, hi))
	})
}
