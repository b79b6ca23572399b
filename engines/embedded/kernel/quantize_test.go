package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// dense is a random matrix without gaps.
func dense(r *rand.Rand, rows, cols int) Matrix {
	m := NewMatrix(rows, cols)
	for i := range m.Data {
		m.Data[i] = r.Float32()*2 - 1
	}
	return m
}

// Weights in bfloat16 give the bits of the same weights in float32.
func TestBF16GivesTheBitsOfFloat32(t *testing.T) {
	atEveryLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(31, 32))
		for _, s := range someShapes(r) {
			m, n, k := s[0], s[1], s[2]
			a, w := random(r, m, k), dense(r, n, k)
			half := make([]uint16, len(w.Data))
			RoundBF16(half, w.Data)
			WidenBF16(w.Data, half)
			var wide, narrow Packed
			wide.PackT(w)
			narrow.PackTBF16(half, n, k)
			want := random(r, m, n)
			got := copyOf(want)
			accumulate := r.IntN(2) == 0
			Gemm(want, a, &wide, accumulate, 1)
			Gemm(got, a, &narrow, accumulate, 1+r.IntN(3))
			require.Equal(t, bits(want.Data), bits(got.Data))
		}
	})
}

func TestInt8(t *testing.T) {
	atEveryLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(33, 34))
		for _, s := range someShapes(r) {
			m, n, k := s[0], s[1], s[2]
			a, w := random(r, m, k), dense(r, n, k)
			small, factors := make([]int8, n*k), make([]float32, n)
			for j := range n {
				factors[j] = QuantizeInt8(small[j*k:(j+1)*k], w.Row(j))
				for l, v := range w.Row(j) {
					if math.Abs(float64(v-float32(small[j*k+l])*factors[j])) > float64(factors[j])*0.5001 {
						require.Failf(t, "too far", "%v stored as %d·%v", v, small[j*k+l], factors[j])
					}
				}
			}
			var packed Packed
			packed.PackTInt8(small, factors, n, k)
			before := random(r, m, n)
			got, added := copyOf(before), copyOf(before)
			Gemm(got, a, &packed, false, 1+r.IntN(3))
			Gemm(added, a, &packed, true, 1)
			requireProduct(t, got, NewMatrix(m, n), k, func(i, j, l int) float64 {
				return float64(a.Row(i)[l]) * float64(small[j*k+l]) * float64(factors[j])
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
