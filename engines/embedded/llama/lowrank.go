package llama

import (
	"math/rand/v2"

	"anneal/engines/embedded/kernel"
)

// lowRanks computes the low-rank products of a pass for one input of a layer.
type lowRanks struct {
	*Pass
	layer, input int
}

// project adds the updates of the adapters to y, the outputs of the base model for the input x.
func (l lowRanks) project(y, x kernel.Matrix) {
	states := l.layers[l.layer].low[l.input][:0]
	for i := range l.segments {
		seg := &l.segments[i]
		in, s := &seg.adapter.layers[l.layer][l.input], lowState{}
		if len(in.low) > 0 {
			lo, hi := l.rows(seg)
			s = l.update(y.RowRange(lo, hi), x.RowRange(lo, hi), seg.adapter.Adapter, in)
		}
		states = append(states, s)
	}
	l.layers[l.layer].low[l.input] = states
}

// update adds the update of the adapter a to y, the outputs of the base model for the input x.
func (l lowRanks) update(y, x kernel.Matrix, a *Adapter, in *trainedInput) (s lowState) {
	s.in = l.drop(x)
	s.z = l.arena.matrix(x.Rows, len(in.low)*a.Rank)
	kernel.Gemm(s.z, s.in, &in.a, false, 1)
	kernel.Scale(a.Scale(), s.z.Data)
	for j := range in.low {
		low := &in.low[j]
		kernel.Gemm(y.ColRange(low.lo, low.hi), s.z.ColRange(j*a.Rank, (j+1)*a.Rank), &low.b, true, 1)
	}
	return s
}

// drop returns a copy of x after dropout; x itself if the batch has no dropout.
func (l lowRanks) drop(x kernel.Matrix) kernel.Matrix {
	if l.dropout == 0 {
		return x
	}
	out := l.arena.matrix(x.Rows, x.Cols)
	copyRows(out, x)
	l.mask(out)
	return out
}

// mask applies dropout to x: it sets some elements to zero, and multiplies the others by
// 1/(1-dropout). It selects the same elements in the forward and the backward pass.
func (l lowRanks) mask(x kernel.Matrix) {
	rng := rand.NewPCG(l.seed, uint64(l.layer*len(inputs)+l.input))
	keep, below := float32(1/(1-l.dropout)), uint32(l.dropout*(1<<32))
	for i := range x.Data[:x.Rows*x.Cols] {
		if uint32(rng.Uint64()>>32) < below {
			x.Data[i] = 0
		} else {
			x.Data[i] *= keep
		}
	}
}

// back adds the gradients of the adapters' pairs for the input to the gradients of the segments.
// Unless dx is empty, it adds the adapters' parts of the input's gradient to dx.
func (l lowRanks) back(dx, dy kernel.Matrix) {
	for i := range l.segments {
		seg := &l.segments[i]
		in := &seg.adapter.layers[l.layer][l.input]
		if len(in.low) == 0 {
			continue
		}
		lo, hi := l.rows(seg)
		s, dy := &l.layers[l.layer].low[l.input][i], dy.RowRange(lo, hi)
		dz := l.pairsBack(dy, s, seg)
		if dx.Rows > 0 {
			l.inputBack(dx.RowRange(lo, hi), dz, in)
		}
	}
}

// pairsBack returns the gradient of s.z before the scale, and adds the gradients of the pairs to that
// of the segment.
func (l lowRanks) pairsBack(dy kernel.Matrix, s *lowState, seg *segment) kernel.Matrix {
	in, a := &seg.adapter.layers[l.layer][l.input], seg.adapter.Adapter
	dz := l.arena.matrix(dy.Rows, len(in.low)*a.Rank)
	for j := range in.low {
		low := &in.low[j]
		kernel.Gemm(dz.ColRange(j*a.Rank, (j+1)*a.Rank), dy.ColRange(low.lo, low.hi), &low.back, false, 1)
	}
	kernel.Scale(a.Scale(), dz.Data)
	if seg.order != nil && !seg.order.begin(l.layer, l.input, seg.turn) {
		return dz
	}
	g := seg.gradient.adapter
	for j := range in.low {
		low := &in.low[j]
		z := s.z.ColRange(j*a.Rank, (j+1)*a.Rank)
		kernel.GemmTN(g.Layers[l.layer][low.module].B, dy.ColRange(low.lo, low.hi), z, 1)
	}
	kernel.GemmTN(g.stackedA(l.layer, in.low), dz, s.in, 1)
	if seg.order != nil {
		seg.order.done(l.layer, l.input)
	}
	return dz
}

// inputBack adds the adapter's part of the input's gradient, dz·A, to dx.
func (l lowRanks) inputBack(dx, dz kernel.Matrix, in *trainedInput) {
	if l.dropout == 0 {
		kernel.Gemm(dx, dz, &in.aBack, true, 1)
		return
	}
	din := l.arena.matrix(dx.Rows, dx.Cols)
	kernel.Gemm(din, dz, &in.aBack, false, 1)
	l.mask(din)
	kernel.Add(dx.Data, dx.Data, din.Data)
}

// rows returns the rows of a segment in the activations for the input.
func (l lowRanks) rows(seg *segment) (lo, hi int) {
	if l.layer == len(l.layers)-1 && Input(l.input) != ToQueryKeyValue {
		return seg.from, seg.last
	}
	return seg.lo, seg.hi
}
