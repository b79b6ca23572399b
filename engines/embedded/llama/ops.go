package llama

import (
	"sync"
	"sync/atomic"

	"anneal/engines/embedded/kernel"
)

// Each runs do for 0 to n-1, in ascending order, on at most workers goroutines, and waits for
// them.
func Each(n, workers int, do func(i int)) {
	var next atomic.Int64
	run := func() {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			do(i)
		}
	}
	var wg sync.WaitGroup
	for range min(workers, n) - 1 {
		wg.Go(run)
	}
	run()
	wg.Wait()
}

// normalize computes the RMS norm of every row of x into out, and its factor into inverse.
func normalize(out, x kernel.Matrix, inverse, weight []float32, eps float64) {
	for i := range x.Rows {
		inverse[i] = kernel.RMSNorm(out.Row(i), x.Row(i), weight, float32(eps))
	}
}

// normalizeBack adds the gradients of normalize to dx and dweight, which may be nil.
func normalizeBack(dx, dout, x kernel.Matrix, inverse, weight, dweight []float32) {
	for i := range x.Rows {
		kernel.RMSNormGrad(dx.Row(i), dweight, dout.Row(i), x.Row(i), weight, inverse[i])
	}
}

// NormalizeHeads replaces each head of heads, the queries' and then the keys', by its RMS norm.
// It writes the factors to inverse, which may be nil. Without norm weights it does nothing.
func (c *Config) NormalizeHeads(heads, queries, keys, inverse []float32) {
	if queries == nil {
		return
	}
	for i := 0; len(heads) > 0; i++ {
		weight := queries
		if i >= c.Heads {
			weight = keys
		}
		factor := kernel.RMSNorm(heads[:c.HeadDim], heads[:c.HeadDim], weight, float32(c.NormEps))
		if inverse != nil {
			inverse[i] = factor
		}
		heads = heads[c.HeadDim:]
	}
}

// AddBias adds a bias to every row of y, unless it is nil.
func AddBias(y kernel.Matrix, bias []float32) {
	if bias == nil {
		return
	}
	for i := range y.Rows {
		kernel.Add(y.Row(i), y.Row(i), bias)
	}
}

// gate computes SwiGLU of rows whose first half is the gate.
func gate(out, gu kernel.Matrix) {
	n := out.Cols
	for i := range out.Rows {
		row := gu.Row(i)
		kernel.SwiGLU(out.Row(i), row[:n], row[n:])
	}
}

// gateBack replaces gu by its gradient, given that of gate's output.
func gateBack(gu, dout kernel.Matrix) {
	n := dout.Cols
	for i := range dout.Rows {
		row := gu.Row(i)
		kernel.SwiGLUGrad(row[:n], row[n:], row[:n], row[n:], dout.Row(i))
	}
}

// copyRows copies src to dst, which is dense and has the same size.
func copyRows(dst, src kernel.Matrix) {
	copy(dst.Data[:src.Rows*src.Cols], src.Data[:src.Rows*src.Cols])
}
