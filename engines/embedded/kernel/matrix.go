package kernel

import "fmt"

// A Matrix is a view of a row-major matrix in a slice: element (i, j) is Data[i*Stride+j].
type Matrix struct {
	Data               []float32
	Rows, Cols, Stride int
}

// NewMatrix returns a dense matrix of zeros.
func NewMatrix(rows, cols int) Matrix {
	return Matrix{Data: make([]float32, rows*cols), Rows: rows, Cols: cols, Stride: cols}
}

// Row returns row i, which shares the matrix's memory.
func (m Matrix) Row(i int) []float32 {
	return m.Data[i*m.Stride : i*m.Stride+m.Cols : i*m.Stride+m.Cols]
}

// RowRange returns the rows from lo to hi-1, which share the matrix's memory.
func (m Matrix) RowRange(lo, hi int) Matrix {
	if lo < 0 || hi < lo || hi > m.Rows {
		panic(fmt.Sprintf("kernel: rows %d:%d are outside of a matrix of %d rows", lo, hi, m.Rows))
	}
	v := Matrix{Rows: hi - lo, Cols: m.Cols, Stride: m.Stride}
	if hi > lo && m.Cols > 0 {
		v.Data = m.Data[lo*m.Stride:]
	}
	return v
}

// ColRange returns the columns from lo to hi-1, which share the matrix's memory.
func (m Matrix) ColRange(lo, hi int) Matrix {
	if lo < 0 || hi < lo || hi > m.Cols {
		panic(fmt.Sprintf("kernel: columns %d:%d are outside of a matrix of %d columns", lo, hi, m.Cols))
	}
	v := Matrix{Rows: m.Rows, Cols: hi - lo, Stride: m.Stride}
	if m.Rows > 0 && hi > lo {
		v.Data = m.Data[lo:]
	}
	return v
}

// check panics if the matrix is larger than its data. name is the matrix's name in the message.
func (m Matrix) check(name string) {
	switch {
	case m.Rows < 0 || m.Cols < 0 || m.Stride < 0:
		panic(fmt.Sprintf("kernel: %s has a negative size: %d×%d, stride %d", name, m.Rows, m.Cols, m.Stride))
	case m.Rows == 0 || m.Cols == 0:
	case m.Rows > 1 && m.Stride < m.Cols:
		panic(fmt.Sprintf("kernel: %s has stride %d, less than its %d columns", name, m.Stride, m.Cols))
	case len(m.Data) < (m.Rows-1)*m.Stride+m.Cols:
		panic(fmt.Sprintf("kernel: %s is %d×%d with stride %d but holds %d numbers", name, m.Rows, m.Cols, m.Stride,
			len(m.Data)))
	}
}

// same panics if two lengths differ. what names the length in the message.
func same(what string, got, want int) {
	if got != want {
		panic(fmt.Sprintf("kernel: %s is %d, want %d", what, got, want))
	}
}
