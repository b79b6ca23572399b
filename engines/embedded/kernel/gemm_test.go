package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// atEveryLevel runs a test at each level of this processor, and then restores the previous level.
func atEveryLevel(t *testing.T, test func(t *testing.T)) {
	before := Level()
	t.Cleanup(func() { require.NoError(t, SetLevel(before)) })
	for _, level := range Levels() {
		t.Run(level, func(t *testing.T) {
			require.NoError(t, SetLevel(level))
			test(t)
		})
	}
}

// guard is the value around test data by which writes out of bounds are detected.
const guard = -12345.5

// random returns a matrix of random values whose stride exceeds its columns. The elements
// between the rows are guards.
func random(r *rand.Rand, rows, cols int) Matrix {
	stride := cols + r.IntN(5)
	if cols%512 == 0 {
		stride = cols
	}
	m := Matrix{Data: make([]float32, rows*stride+3), Rows: rows, Cols: cols, Stride: stride}
	for i := range m.Data {
		m.Data[i] = guard
	}
	for i := range rows {
		for j := range cols {
			m.Data[i*stride+j] = r.Float32()*2 - 1
		}
	}
	return m
}

func copyOf(m Matrix) Matrix {
	m.Data = append([]float32(nil), m.Data...)
	return m
}

// requireGuards fails if values outside the matrix have changed.
func requireGuards(t *testing.T, m Matrix) {
	t.Helper()
	for i, v := range m.Data {
		if row := i / max(1, m.Stride); row < m.Rows && i-row*m.Stride < m.Cols {
			continue
		}
		if v == guard {
			continue
		}
		require.Fail(t, "written outside the matrix", "number %d lies outside the %d×%d view", i, m.Rows, m.Cols)
	}
}

// sizes holds 0, the sizes around those of tiles and panels, and primes.
var sizes = []int{0, 1, 2, 3, 5, 7, 8, 13, 14, 15, 16, 17, 29, 31, 32, 33, 63, 64, 65, 97, 128, 131}

// someShapes returns m, n and k of products: many random shapes, a shape of the shipped model, and
// a shape whose k is reduced in two steps and whose row stride conflicts in the cache.
func someShapes(r *rand.Rand) [][3]int {
	list := [][3]int{{30, 260, 128}, {15, 40, 512}}
	for range 50 {
		list = append(list, [3]int{sizes[r.IntN(len(sizes))], sizes[r.IntN(len(sizes))], sizes[r.IntN(len(sizes))]})
	}
	return list
}

// requireProduct checks that got is before plus the sum of k terms, computed in float64; term
// returns one term of the sum. A sum of k products of numbers up to 1 has an error of at most k
// roundings of numbers up to k.
func requireProduct(t *testing.T, got, before Matrix, k int, term func(i, j, l int) float64) {
	t.Helper()
	for i := range got.Rows {
		for j := range got.Cols {
			want := float64(before.Row(i)[j])
			size := math.Abs(want)
			for l := range k {
				product := term(i, j, l)
				want += product
				size += math.Abs(product)
			}
			bound := size * float64(k+1) * 0x1p-24
			if math.Abs(want-float64(got.Row(i)[j])) <= bound {
				continue
			}
			require.InDelta(t, want, float64(got.Row(i)[j]), bound, "element %d,%d of %d×%d over %d", i, j, got.Rows, got.Cols,
				k)
		}
	}
}

func TestGemm(t *testing.T) {
	atEveryLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		for _, s := range someShapes(r) {
			m, n, k := s[0], s[1], s[2]
			a, w, b, c := random(r, m, k), random(r, n, k), random(r, k, n), random(r, m, n)
			zero := NewMatrix(m, n)
			var packed Packed
			packed.PackT(w)
			plain := copyOf(c)
			Gemm(plain, a, &packed, false, 1+r.IntN(3))
			requireProduct(t, plain, zero, k, func(i, j, l int) float64 { return float64(a.Row(i)[l]) * float64(w.Row(j)[l]) })
			requireGuards(t, plain)
			packed.Pack(b)
			added := copyOf(c)
			Gemm(added, a, &packed, true, 1+r.IntN(3))
			requireProduct(t, added, c, k, func(i, j, l int) float64 { return float64(a.Row(i)[l]) * float64(b.Row(l)[j]) })
			requireGuards(t, added)
		}
	})
}

func TestGemmTN(t *testing.T) {
	atEveryLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 4))
		for _, s := range someShapes(r) {
			p, q, m := s[0], s[1], s[2]
			a, b, c := random(r, m, p), random(r, m, q), random(r, p, q)
			got := copyOf(c)
			GemmTN(got, a, b, 1+r.IntN(3))
			requireProduct(t, got, c, m, func(i, j, l int) float64 { return float64(a.Row(l)[i]) * float64(b.Row(l)[j]) })
			requireGuards(t, got)
		}
	})
}

func bits(row []float32) []uint32 {
	list := make([]uint32, len(row))
	for i, v := range row {
		list[i] = math.Float32bits(v)
	}
	return list
}

// TestBitsDependOnNothingButK checks that a row of a product is bit-identical alone, anywhere in
// a batch, with fewer columns, with any number of workers, and computed by MulPanel.
func TestBitsDependOnNothingButK(t *testing.T) {
	atEveryLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(5, 6))
		for _, k := range []int{1, 3, 4, 31, 128, 384, 385, 512, 769, 5000} {
			for _, m := range []int{1, 2, 15, 37} {
				n := 1 + r.IntN(140)
				t.Run(fmt.Sprintf("%dx%dx%d", m, n, k), func(t *testing.T) { requireSameBits(t, r, m, n, k) })
			}
		}
		// The products are large enough to use several workers.
		requireSameBits(t, r, 200, 260, 128)
		requireSameBits(t, r, 3, 2001, 769)
	})
}

func requireSameBits(t *testing.T, r *rand.Rand, m, n, k int) {
	t.Helper()
	a, w := random(r, m, k), random(r, n, k)
	var packed, part Packed
	packed.PackT(w)
	whole := NewMatrix(m, n)
	Gemm(whole, a, &packed, false, 1)
	for _, workers := range []int{2, 3, 7} {
		again := NewMatrix(m, n)
		Gemm(again, a, &packed, false, workers)
		require.Equal(t, bits(whole.Data), bits(again.Data), "%d workers", workers)
	}
	i := r.IntN(m)
	want := bits(whole.Row(i))
	alone := NewMatrix(1, n)
	Gemm(alone, a.RowRange(i, i+1), &packed, false, 1)
	require.Equal(t, want, bits(alone.Data), "row %d alone", i)
	requireSameBitsByPanel(t, whole, a, w, r.IntN(k)+1)
	lo := r.IntN(n)
	part.PackT(w.RowRange(lo, n))
	some := NewMatrix(m, n-lo)
	Gemm(some, a, &part, false, 1)
	require.Equal(t, want[lo:], bits(some.Row(i)), "columns from %d on", lo)
}

// requireSameBitsByPanel multiplies a and w by MulPanel, panel by panel and in parts of step
// elements of k, and checks that the result is bit-identical to want.
func requireSameBitsByPanel(t *testing.T, want, a, w Matrix, step int) {
	t.Helper()
	got := NewMatrix(want.Rows, want.Cols)
	for j := 0; j < w.Rows; j += PanelWidth {
		some := w.RowRange(j, min(j+PanelWidth, w.Rows))
		panel := make([]float32, w.Cols*PanelWidth)
		for i := range panel {
			panel[i] = float32(math.NaN()) // columns past the last column must be ignored
		}
		for i := range some.Rows {
			for l, v := range some.Row(i) {
				panel[l*PanelWidth+i] = v
			}
		}
		for from := 0; from < w.Cols; from += step {
			to := min(from+step, w.Cols)
			MulPanel(got.ColRange(j, j+some.Rows), a.ColRange(from, to), panel[from*PanelWidth:], from > 0)
		}
	}
	require.Equal(t, bits(want.Data), bits(got.Data), "by panels, in parts of %d", step)
}

// TestMulPanels checks that MulPanels gives the same bits as MulPanel for each row.
func TestMulPanels(t *testing.T) {
	atEveryLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(9, 10))
		for _, k := range []int{1, 2, 31, 32, 64, 100, 500} {
			for _, n := range []int{1, 7, 8, 15, 16, 17, 31, 32} {
				a, before := random(r, PanelsAtOnce, k), random(r, PanelsAtOnce, n)
				stride := k*PanelWidth + r.IntN(3)*16
				b := random(r, 1, PanelsAtOnce*stride).Row(0)
				for _, accumulate := range []bool{false, true} {
					got, want := copyOf(before), copyOf(before)
					MulPanels(got, a, b, stride, accumulate)
					for i := range PanelsAtOnce {
						MulPanel(want.RowRange(i, i+1), a.RowRange(i, i+1), b[i*stride:], accumulate)
					}
					require.Equal(t, bits(want.Data), bits(got.Data), "%d columns over %d", n, k)
				}
			}
		}
	})
}

// TestGemmTNBits checks that the result of GemmTN does not depend on the division of m into
// calls or on the number of workers.
func TestGemmTNBits(t *testing.T) {
	atEveryLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(7, 8))
		// GemmTN divides the panels among the workers. For the last shape, it divides the rows.
		for _, s := range [][3]int{{1, 128, 352}, {37, 128, 352}, {130, 128, 352}, {130, 352, 64}} {
			m, p, q := s[0], s[1], s[2]
			a, b := random(r, m, p), random(r, m, q)
			once, twice, shared := NewMatrix(p, q), NewMatrix(p, q), NewMatrix(p, q)
			GemmTN(once, a, b, 1)
			GemmTN(shared, a, b, 5)
			h := m / 2
			GemmTN(twice, a.RowRange(0, h), b.RowRange(0, h), 1)
			GemmTN(twice, a.RowRange(h, m), b.RowRange(h, m), 1)
			require.Equal(t, bits(once.Data), bits(shared.Data))
			require.Equal(t, bits(once.Data), bits(twice.Data))
		}
	})
}

func TestMismatchPanics(t *testing.T) {
	var packed Packed
	packed.Pack(NewMatrix(4, 5))
	for name, call := range map[string]struct {
		run     func()
		message string
	}{
		"inner size": {
			func() { Gemm(NewMatrix(2, 5), NewMatrix(2, 3), &packed, false, 1) }, "kernel: columns of a is 3, want 4",
		},
		"rows": {
			func() { Gemm(NewMatrix(3, 5), NewMatrix(2, 4), &packed, false, 1) }, "kernel: rows of a is 2, want 3",
		},
		"transposed": {
			func() { GemmTN(NewMatrix(2, 5), NewMatrix(3, 2), NewMatrix(4, 5), 1) }, "kernel: rows of b is 4, want 3",
		},
		"short data": {
			func() { packed.PackT(Matrix{Data: make([]float32, 5), Rows: 2, Cols: 3, Stride: 3}) },
			"kernel: w is 2×3 with stride 3 but holds 5 numbers",
		},
		"short stride": {
			func() { packed.PackT(Matrix{Data: make([]float32, 9), Rows: 2, Cols: 3, Stride: 2}) },
			"kernel: w has stride 2, less than its 3 columns",
		},
		"different dots": {func() { Dot(make([]float32, 2), make([]float32, 3)) }, "kernel: length of b is 3, want 2"},
	} {
		t.Run(name, func(t *testing.T) { require.PanicsWithValue(t, call.message, call.run) })
	}
}

func TestSetLevelRejectsUnsupportedLevels(t *testing.T) {
	before := Level()
	require.ErrorContains(t, SetLevel("sse"), `kernel level "sse": this processor supports only`)
	require.Equal(t, before, Level())
}
