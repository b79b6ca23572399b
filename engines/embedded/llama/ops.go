package llama

import "anneal/engines/embedded/kernel"

// Each calls do with every number from 0 to n-1, on at most workers goroutines, and waits for the
// calls. It starts them in ascending order.
func Each(n, workers int, do func(i int)) {
	kernel.Each(n, workers, func(_, i int) { do(i) })
}

// normalize writes the RMS norm of every row of x to out, and the reciprocal of the root mean
// square of every row to inverse.
func normalize(out, x kernel.Matrix, inverse, weight []float32, eps float64) {
	for i := range x.Rows {
		inverse[i] = kernel.RMSNorm(out.Row(i), x.Row(i), weight, float32(eps))
	}
}

// normalizeBack adds the gradients of normalize to dx and dweight. If dweight is nil, it only
// computes dx.
func normalizeBack(dx, dout, x kernel.Matrix, inverse, weight, dweight []float32) {
	for i := range x.Rows {
		kernel.RMSNormGrad(dx.Row(i), dweight, dout.Row(i), x.Row(i), weight, inverse[i])
	}
}

// NormalizeHeads replaces each head in heads, first those of the queries and then those of the
// keys, by its RMS norm. It writes the reciprocal of the root mean square of each head to inverse,
// unless inverse is nil. queries and keys are the weights of the norms; if queries is nil,
// NormalizeHeads does nothing.
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

// AddBias adds bias to every row of y. It does nothing if bias is nil.
func AddBias(y kernel.Matrix, bias []float32) {
	if bias == nil {
		return
	}
	for i := range y.Rows {
		kernel.Add(y.Row(i), y.Row(i), bias)
	}
}

// gate computes SwiGLU of every row of gu. The first half of a row is the gate, the second half is
// up.
func gate(out, gu kernel.Matrix) {
	n := out.Cols
	for i := range out.Rows {
		row := gu.Row(i)
		kernel.SwiGLU(out.Row(i), row[:n], row[n:])
	}
}

// gateBack replaces gu by its gradient. dout is the gradient of the result of gate.
func gateBack(gu, dout kernel.Matrix) {
	n := dout.Cols
	for i := range dout.Rows {
		row := gu.Row(i)
		kernel.SwiGLUGrad(row[:n], row[n:], row[:n], row[n:], dout.Row(i))
	}
}

// copyRows copies src to dst, which has the same size and is dense.
func copyRows(dst, src kernel.Matrix) {
	copy(dst.Data[:src.Rows*src.Cols], src.Data[:src.Rows*src.Cols])
}
