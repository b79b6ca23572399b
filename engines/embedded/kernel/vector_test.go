package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

var lengths = []int{0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 352, 1000, 40000}

// numbers returns n random numbers between -size and size, followed by a guard.
func numbers(r *rand.Rand, n int, size float32) []float32 {
	x := make([]float32, n+1)
	for i := range n {
		x[i] = (r.Float32()*2 - 1) * size
	}
	x[n] = guard
	return x[:n]
}

// guarded returns an array for n results, followed by a guard.
func guarded(n int) []float32 {
	x := make([]float32, n+1)
	x[n] = guard
	return x[:n]
}

func clone(x []float32) []float32 { return append(append(guarded(0), x...), guard)[:len(x)] }

// requireNear checks got against want, a reference in float64. The tolerance is relative to the
// larger of 1 and the reference's absolute value.
func requireNear(t *testing.T, got []float32, tolerance float64, want func(i int) float64) {
	t.Helper()
	for i, v := range got {
		w := want(i)
		if math.Abs(w-float64(v)) <= tolerance*max(1, math.Abs(w)) {
			continue
		}
		require.InDelta(t, w, float64(v), tolerance*max(1, math.Abs(w)), "number %d of %d", i, len(got))
	}
	require.Equal(t, float32(guard), got[:len(got)+1][len(got)], "written past the end")
}

func total(n int, term func(i int) float64) (s float64) {
	for i := range n {
		s += term(i)
	}
	return s
}

func TestReductions(t *testing.T) {
	atEveryLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(11, 12))
		for _, n := range lengths {
			a, b, c := numbers(r, n, 1), numbers(r, n, 1), numbers(r, n, 1)
			near := float64(n+1) * 0x1p-22
			require.InDelta(t, total(n, func(i int) float64 { return float64(a[i]) * float64(b[i]) }), Dot(a, b), near)
			require.InDelta(t, total(n, func(i int) float64 { return float64(a[i]) * float64(a[i]) }), SumSquares(a), near)
			require.InDelta(t, total(n, func(i int) float64 { return float64(a[i]) }), Sum(a), near)
			require.InDelta(t, total(n, func(i int) float64 { return float64(a[i]) * float64(b[i]) * float64(c[i]) }),
				dot3(a, b, c), near)
			for i := range a {
				a[i] -= 10 // with negative values only, a missing lane that counts as zero is detected
			}
			top := float32(math.Inf(-1))
			for _, v := range a {
				top = max(top, v)
			}
			require.Equal(t, top, Max(a))
		}
	})
}

func TestElementwise(t *testing.T) {
	atEveryLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(13, 14))
		for _, n := range lengths {
			x, y, out := numbers(r, n, 3), numbers(r, n, 3), guarded(n)
			f := func(x []float32, i int) float64 { return float64(x[i]) }
			Add(out, x, y)
			requireNear(t, out, 1e-6, func(i int) float64 { return f(x, i) + f(y, i) })
			Mul(out, x, y)
			requireNear(t, out, 1e-6, func(i int) float64 { return f(x, i) * f(y, i) })
			got := clone(y)
			Axpy(-0.75, x, got)
			requireNear(t, got, 1e-6, func(i int) float64 { return f(y, i) - 0.75*f(x, i) })
			got = clone(x)
			Scale(1.25, got)
			requireNear(t, got, 1e-6, func(i int) float64 { return 1.25 * f(x, i) })
			Silu(out, x)
			requireNear(t, out, 1e-6, func(i int) float64 { return f(x, i) / (1 + math.Exp(-f(x, i))) })
			SwiGLU(out, x, y)
			requireNear(t, out, 1e-6, func(i int) float64 { return f(x, i) / (1 + math.Exp(-f(x, i))) * f(y, i) })
		}
	})
}

func TestExpIsAccurateOverItsWholeRange(t *testing.T) {
	atEveryLevel(t, func(t *testing.T) {
		var x []float32
		for v := -87.3; v < 88.72; v += 0.0037 {
			x = append(x, float32(v))
		}
		x = append(x, 88.7228, -87.3365, 0)
		got := make([]float32, len(x))
		Exp(got, x)
		worst := 0.0
		for i, v := range got {
			want := math.Exp(float64(x[i]))
			worst = max(worst, math.Abs(float64(v)-want)/want)
		}
		require.Less(t, worst, 2*0x1p-23)
		inf, nan := float32(math.Inf(1)), float32(math.NaN())
		odd := []float32{inf, -inf, nan, 89, 1000, -87.4, -1000, -0}
		Exp(odd, odd)
		require.True(t, math.IsNaN(float64(odd[2])))
		odd[2] = 0
		require.Equal(t, []float32{inf, 0, 0, inf, inf, 0, 0, 1}, odd)
	})
}

func TestSoftmaxAndLogSumExp(t *testing.T) {
	atEveryLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(15, 16))
		for _, n := range lengths[1:] {
			x := numbers(r, n, 20)
			for i := 1; i < n; i += 3 {
				x[i] = float32(math.Inf(-1))
			}
			top := float64(Max(x))
			sum := total(n, func(i int) float64 { return math.Exp(float64(x[i]) - top) })
			require.InDelta(t, top+math.Log(sum), LogSumExp(guarded(n), x), 1e-5+float64(n)*1e-9)
			p := clone(x)
			Softmax(p)
			requireNear(t, p, 1e-6, func(i int) float64 { return math.Exp(float64(x[i])-top) / sum })
			for i := 1; i < n; i += 3 {
				require.Zero(t, p[i])
			}
			d := numbers(r, n, 1)
			mean := total(n, func(i int) float64 { return float64(p[i]) * float64(d[i]) })
			got := clone(d)
			SoftmaxGrad(got, p)
			requireNear(t, got, 1e-6, func(i int) float64 { return float64(p[i]) * (float64(d[i]) - mean) })
		}
		masked := []float32{float32(math.Inf(-1)), float32(math.Inf(-1))}
		require.True(t, math.IsInf(float64(LogSumExp(guarded(2), masked)), -1))
		Softmax(masked)
		require.Equal(t, []float32{0, 0}, masked)
	})
}

func TestSwiGLUGrad(t *testing.T) {
	atEveryLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(17, 18))
		for _, n := range lengths {
			gate, up, d, dGate, dUp := numbers(r, n, 4), numbers(r, n, 2), numbers(r, n, 2), guarded(n), guarded(n)
			SwiGLUGrad(dGate, dUp, gate, up, d)
			logistic := func(i int) float64 { return 1 / (1 + math.Exp(-float64(gate[i]))) }
			requireNear(t, dUp, 2e-6, func(i int) float64 { return float64(d[i]) * float64(gate[i]) * logistic(i) })
			requireNear(t, dGate, 2e-6, func(i int) float64 {
				s, x := logistic(i), float64(gate[i])
				return float64(d[i]) * float64(up[i]) * s * (1 + x*(1-s))
			})
		}
	})
}

// TestRMSNormAndItsGradient checks RMSNorm, and its gradient against central differences in
// float64.
func TestRMSNormAndItsGradient(t *testing.T) {
	const eps = 1e-5
	norm := func(x, w []float64, i int) float64 {
		s := 0.0
		for _, v := range x {
			s += v * v
		}
		return x[i] * w[i] / math.Sqrt(s/float64(len(x))+eps)
	}
	double := func(x []float32) (y []float64) {
		for _, v := range x {
			y = append(y, float64(v))
		}
		return y
	}
	atEveryLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(19, 20))
		for _, n := range []int{1, 7, 16, 33, 128} {
			x, w, dy, out := numbers(r, n, 2), numbers(r, n, 2), numbers(r, n, 1), guarded(n)
			inv := RMSNorm(out, x, w, eps)
			x64, w64 := double(x), double(w)
			requireNear(t, out, 1e-6, func(i int) float64 { return norm(x64, w64, i) })
			oldX, oldW := numbers(r, n, 1), numbers(r, n, 1)
			dx, dw := clone(oldX), clone(oldW)
			RMSNormGrad(dx, dw, dy, x, w, inv)
			loss := func() float64 { return total(n, func(i int) float64 { return norm(x64, w64, i) * float64(dy[i]) }) }
			slope := func(v *float64) float64 {
				const h = 1e-4
				at := *v
				*v = at + h
				up := loss()
				*v = at - h
				down := loss()
				*v = at
				return (up - down) / (2 * h)
			}
			requireNear(t, dx, 1e-4, func(i int) float64 { return float64(oldX[i]) + slope(&x64[i]) })
			requireNear(t, dw, 1e-4, func(i int) float64 { return float64(oldW[i]) + slope(&w64[i]) })
			again := clone(oldX)
			RMSNormGrad(again, nil, dy, x, w, inv)
			require.Equal(t, dx, again)
		}
	})
}

func TestRope(t *testing.T) {
	atEveryLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(21, 22))
		for _, h := range []int{0, 1, 4, 8, 16, 24, 32, 64} {
			x, cos, sin := numbers(r, 2*h, 1), guarded(h), guarded(h)
			for i := range h {
				angle := r.Float64() * 10
				cos[i], sin[i] = float32(math.Cos(angle)), float32(math.Sin(angle))
			}
			got := clone(x)
			Rope(got, cos, sin)
			requireNear(t, got, 1e-6, func(i int) float64 {
				j := i % max(1, h)
				a, b := float64(x[j]), float64(x[j+h])
				if i < h {
					return a*float64(cos[j]) - b*float64(sin[j])
				}
				return b*float64(cos[j]) + a*float64(sin[j])
			})
			RopeGrad(got, cos, sin)
			requireNear(t, got, 1e-6, func(i int) float64 { return float64(x[i]) })
		}
	})
}

func TestAdam(t *testing.T) {
	atEveryLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(23, 24))
		for _, n := range lengths {
			w, g := numbers(r, n, 1), numbers(r, n, 3)
			m, v := numbers(r, n, 1), numbers(r, n, 1)
			for i := range v {
				v[i] = v[i]*v[i] + 0.01
			}
			step := Adam{Rate: 1e-2, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8, Decay: 0.1, Clip: 0.5, Step: 3}
			gotW, gotM, gotV := clone(w), clone(m), clone(v)
			step.Update(gotW, gotM, gotV, g)
			wantM := func(i int) float64 { return 0.9*float64(m[i]) + 0.1*0.5*float64(g[i]) }
			wantV := func(i int) float64 { return 0.99*float64(v[i]) + 0.01*0.25*float64(g[i])*float64(g[i]) }
			requireNear(t, gotM, 1e-6, wantM)
			requireNear(t, gotV, 1e-6, wantV)
			requireNear(t, gotW, 1e-6, func(i int) float64 {
				m, v := wantM(i)/(1-math.Pow(0.9, 3)), wantV(i)/(1-math.Pow(0.99, 3))
				return float64(w[i]) - 1e-2*(m/(math.Sqrt(v)+1e-8)+0.1*float64(w[i]))
			})
		}
	})
}

func TestMeasurements(t *testing.T) {
	atEveryLevel(t, func(t *testing.T) { require.Greater(t, PeakGFlops(), 0.05) })
	require.Greater(t, ReadBandwidth(), 0.05)
}
