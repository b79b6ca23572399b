package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain/weights"
)

// dense returns a random matrix without gaps.
func dense(r *rand.Rand, rows, cols int) Matrix {
	m := NewMatrix(rows, cols)
	for i := range m.Data {
		m.Data[i] = r.Float32()*2 - 1
	}
	return m
}

// A packing holds weights [n × k] packed in one format, and what they represent: the float32
// value of each element, and the scale of each row.
type packing struct {
	packed  Packed
	numbers Matrix
	scales  []float32
}

// packings returns random weights in every format. Those in float16 include subnormal numbers, and
// those in E4M3 include all values except NaN.
func packings(r *rand.Rand, n, k int) map[string]*packing {
	all := map[string]*packing{}
	for _, name := range []string{"F32", "BF16", "F16", "Int8", "E4M3"} {
		p := &packing{numbers: dense(r, n, k), scales: make([]float32, n)}
		for j := range p.scales {
			p.scales[j] = 1
		}
		all[name] = p
		w, halves, codes, small := p.numbers.Data, make([]uint16, n*k), make([]uint8, n*k), make([]int8, n*k)
		switch name {
		case "F32":
			p.packed.PackT(p.numbers)
		case "BF16":
			RoundBF16(halves, w)
			widenBF16(w, halves)
			p.packed.PackTBF16(halves, n, k)
		case "F16":
			for i, v := range w {
				halves[i] = weights.ToHalf(v)
				if r.IntN(10) == 0 {
					halves[i] = uint16(r.IntN(0x401)) | halves[i]&0x8000 // a subnormal number, zero or the smallest normal number
				}
				w[i] = weights.FromHalf(halves[i])
			}
			p.packed.PackTF16(halves, n, k)
		case "Int8":
			for j := range n {
				p.scales[j] = quantizeInt8(small[j*k:(j+1)*k], p.numbers.Row(j))
			}
			for i, v := range small {
				w[i] = float32(v)
			}
			p.packed.PackTInt8(small, p.scales, n, k)
		case "E4M3":
			for i := range w {
				codes[i] = uint8(r.IntN(127)) | uint8(r.IntN(2)<<7)
				w[i] = weights.FromFloat8(codes[i])
			}
			for j := range p.scales {
				p.scales[j] = r.Float32() / 448
			}
			p.packed.PackTE4M3(codes, p.scales, n, k)
		}
	}
	return all
}

// TestStoragesGiveTheBitsOfFloat32 checks that a product with a matrix in every storage format is
// bit-identical to the product with its float32 values, where the scales multiply the
// final sums.
func TestStoragesGiveTheBitsOfFloat32(t *testing.T) {
	atEveryLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(31, 32))
		for _, s := range someShapes(r) {
			m, n, k := s[0], s[1], s[2]
			a := random(r, m, k)
			for name, one := range packings(r, n, k) {
				var wide Packed
				wide.PackT(one.numbers)
				before, want := random(r, m, n), NewMatrix(m, n)
				Gemm(want, a, &wide, false, 1)
				for i := range m {
					Mul(want.Row(i), want.Row(i), one.scales)
				}
				got, added := copyOf(before), copyOf(before)
				Gemm(got, a, &one.packed, false, 1+r.IntN(3))
				Gemm(added, a, &one.packed, true, 1+r.IntN(3))
				for i := range m {
					require.Equal(t, bits(want.Row(i)), bits(got.Row(i)), "%s: row %d of %d×%d over %d", name, i, m, n, k)
					for j := range n {
						require.InDelta(t, before.Row(i)[j]+got.Row(i)[j], added.Row(i)[j], 1e-4, name)
					}
				}
				requireGuards(t, got)
				requireGuards(t, added)
				row := make([]float32, k)
				for j := range n {
					one.packed.RowT(row, j)
					for l, v := range row {
						require.Equal(t, one.numbers.Row(j)[l]*one.scales[j], v, "%s: number %d of row %d", name, l, j)
					}
				}
			}
		}
	})
}

func TestInt8(t *testing.T) {
	atEveryLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(33, 34))
		for _, s := range someShapes(r) {
			m, n, k := s[0], s[1], s[2]
			a, w := random(r, m, k), dense(r, n, k)
			small, scales := make([]int8, n*k), make([]float32, n)
			for j := range n {
				scales[j] = quantizeInt8(small[j*k:(j+1)*k], w.Row(j))
				for l, v := range w.Row(j) {
					if math.Abs(float64(v-float32(small[j*k+l])*scales[j])) > float64(scales[j])*0.5001 {
						require.Failf(t, "too far", "%v stored as %d·%v", v, small[j*k+l], scales[j])
					}
				}
			}
			var packed Packed
			packed.PackTInt8(small, scales, n, k)
			before := random(r, m, n)
			got, added := copyOf(before), copyOf(before)
			Gemm(got, a, &packed, false, 1+r.IntN(3))
			Gemm(added, a, &packed, true, 1)
			requireProduct(t, got, NewMatrix(m, n), k, func(i, j, l int) float64 {
				return float64(a.Row(i)[l]) * float64(small[j*k+l]) * float64(scales[j])
			})
			requireGuards(t, got)
			for i := range m {
				for j := range n {
					require.InDelta(t, before.Row(i)[j]+got.Row(i)[j], added.Row(i)[j], 1e-6)
				}
			}
		}
	})
}

// quantizeInt8 writes row in 8 bits to dst, and returns the scale by which dst must be
// multiplied: the largest absolute value divided by 127. Each dst[i]·scale differs from row[i]
// by at most half the scale. The row must be finite.
func quantizeInt8(dst []int8, row []float32) (scale float32) {
	same("length of dst", len(dst), len(row))
	top := float32(0)
	for _, v := range row {
		top = max(top, float32(math.Abs(float64(v))))
	}
	if top == 0 {
		clear(dst)
		return 0
	}
	for i, v := range row {
		dst[i] = int8(math.RoundToEven(float64(v) / float64(top) * 127))
	}
	return top / 127
}

// widenBF16 converts bfloat16 to float32.
func widenBF16(dst []float32, x []uint16) {
	same("length of dst", len(dst), len(x))
	for i, v := range x {
		dst[i] = math.Float32frombits(uint32(v) << 16)
	}
}

func TestRoundBF16(t *testing.T) {
	for name, c := range map[string]struct {
		bits uint32
		want uint16
	}{
		"exact":             {0x3f800000, 0x3f80},
		"down":              {0x3f807fff, 0x3f80},
		"tie to even, down": {0x3f808000, 0x3f80},
		"tie to even, up":   {0x3f818000, 0x3f82},
		"up":                {0x3f808001, 0x3f81},
		"overflow":          {0x7f7fffff, 0x7f80},
		"infinite":          {0xff800000, 0xff80},
		"NaN stays one":     {0x7f800001, 0x7fc0},
		"negative":          {0xbf808001, 0xbf81},
	} {
		t.Run(name, func(t *testing.T) {
			got := make([]uint16, 1)
			RoundBF16(got, []float32{math.Float32frombits(c.bits)})
			require.Equal(t, c.want, got[0])
		})
	}
}
