//go:build openblas

package oracle

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/engines/embedded/kernel"
)

// BenchmarkGemm multiplies m rows of k elements with n×k weights on one core, alternating with
// OpenBLAS. of-openblas is OpenBLAS's time divided by the kernel's, with weights packed once as
// in a served model. For of-openblas-packing the kernel packs the weights each time, as OpenBLAS
// always does.
func BenchmarkGemm(b *testing.B) {
	for _, s := range [][3]int{
		{64, 128, 352}, {64, 352, 128}, {512, 128, 128}, {512, 512, 1408}, {2048, 768, 256}, {1024, 1024, 1024},
		{2048, 2048, 2048},
	} {
		m, k, n := s[0], s[1], s[2]
		b.Run(fmt.Sprintf("%dx%dx%d", m, k, n), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			x, w, ours, theirs := kernel.NewMatrix(m, k), kernel.NewMatrix(n, k), kernel.NewMatrix(m, n), kernel.NewMatrix(m, n)
			for _, data := range [][]float32{x.Data, w.Data} {
				for i := range data {
					data[i] = float32(r.NormFloat64())
				}
			}
			var packed kernel.Packed
			packed.PackT(w)
			var we, packing, they time.Duration
			for b.Loop() {
				at := time.Now()
				kernel.Gemm(ours, x, &packed, false, 1)
				we += time.Since(at)
				at = time.Now()
				packed.PackT(w)
				packing += time.Since(at)
				at = time.Now()
				sgemmT(m, n, k, x.Data, w.Data, theirs.Data)
				they += time.Since(at)
			}
			require.InDeltaSlice(b, theirs.Data, ours.Data, 1e-2)
			b.ReportMetric(2*float64(m*n*k)*float64(b.N)/we.Seconds()/1e9, "GFLOP/s")
			b.ReportMetric(they.Seconds()/we.Seconds(), "of-openblas")
			b.ReportMetric(they.Seconds()/(we+packing).Seconds(), "of-openblas-packing")
		})
	}
}
