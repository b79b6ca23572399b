package kernel

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// shapes holds m, k and n of products [m × k]·[k × n]: those of the shipped model's layers, a
// larger product, and the small batches of decoding.
var shapes = [][3]int{
	{2048, 768, 256}, {64, 128, 128}, {64, 128, 352}, {64, 352, 128}, {256, 128, 384}, {1024, 128, 352}, {1024, 352, 128},
	{256, 128, 260}, {128, 32, 128}, {1, 128, 352}, {2, 128, 352}, {4, 128, 352}, {8, 128, 352},
}

// report adds the metrics GFLOP/s and %peak, the percentage of one core's peak rate. flops is the
// number of operations of one iteration.
func report(b *testing.B, flops float64) {
	rate := flops * float64(b.N) / float64(b.Elapsed().Nanoseconds())
	b.ReportMetric(rate, "GFLOP/s")
	b.ReportMetric(100*rate/PeakGFlops(), "%peak")
}

func BenchmarkGemm(b *testing.B) {
	for _, s := range shapes {
		b.Run(fmt.Sprintf("%dx%dx%d", s[0], s[1], s[2]), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			a, w, c := random(r, s[0], s[1]), random(r, s[2], s[1]), random(r, s[0], s[2])
			var packed Packed
			packed.PackT(w)
			for b.Loop() {
				Gemm(c, a, &packed, false, 1)
			}
			report(b, 2*float64(s[0]*s[1]*s[2]))
		})
	}
}

func BenchmarkGemmTN(b *testing.B) {
	for _, s := range shapes[:9] {
		b.Run(fmt.Sprintf("%dx%dx%d", s[0], s[1], s[2]), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			x, dy, dw := random(r, s[0], s[1]), random(r, s[0], s[2]), random(r, s[1], s[2])
			for b.Loop() {
				GemmTN(dw, x, dy, 1)
			}
			report(b, 2*float64(s[0]*s[1]*s[2]))
		})
	}
}

func BenchmarkPackT(b *testing.B) {
	for _, s := range [][2]int{{352, 128}, {128, 352}, {260, 128}, {768, 3072}} {
		b.Run(fmt.Sprintf("%dx%d", s[0], s[1]), func(b *testing.B) {
			w := random(rand.New(rand.NewPCG(1, 1)), s[0], s[1])
			var packed Packed
			for b.Loop() {
				packed.PackT(w)
			}
			b.SetBytes(int64(4 * s[0] * s[1]))
		})
	}
}

// BenchmarkRow multiplies one row, as in decoding, with weights of every format that exceed the
// caches. The metric of-bandwidth is the bytes of weights read per second divided by a core's
// memory bandwidth.
func BenchmarkRow(b *testing.B) {
	bandwidth := ReadBandwidth() * 1e9
	for _, s := range [][2]int{{1536, 512}, {16384, 4096}} {
		n, k := s[0], s[1]
		for name, one := range packings(rand.New(rand.NewPCG(1, 1)), n, k) {
			b.Run(fmt.Sprintf("%dx%d/%s", n, k, name), func(b *testing.B) {
				x, y := NewMatrix(1, k), NewMatrix(1, n)
				for b.Loop() {
					Gemm(y, x, &one.packed, false, 1)
				}
				b.SetBytes(one.packed.Bytes())
				b.ReportMetric(float64(one.packed.Bytes())*float64(b.N)/b.Elapsed().Seconds()/bandwidth, "of-bandwidth")
			})
		}
	}
}

func BenchmarkVector(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	const n = 352
	x, y, z, d, e := numbers(r, n, 2), numbers(r, n, 2), numbers(r, n, 2), numbers(r, n, 2), numbers(r, n, 2)
	step := Adam{Rate: 1e-9, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8, Step: 1}
	for _, k := range []struct {
		name string
		run  func()
	}{
		{"Dot", func() { Dot(x, y) }},
		{"Axpy", func() { Axpy(1e-9, x, y) }},
		{"Exp", func() { Exp(z, x) }},
		{"Softmax", func() { copy(z, x); Softmax(z) }},
		{"SwiGLU", func() { SwiGLU(z, x, y) }},
		{"SwiGLUGrad", func() { SwiGLUGrad(d, e, x, y, z) }},
		{"RMSNorm", func() { RMSNorm(z, x, y, 1e-5) }},
		{"Adam", func() { step.Update(x, d, e, z) }},
	} {
		clear(e)
		b.Run(k.name, func(b *testing.B) {
			for b.Loop() {
				k.run()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/number")
		})
	}
}
