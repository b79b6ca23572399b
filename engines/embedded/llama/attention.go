package llama

import (
	"math"

	"anneal/engines/embedded/kernel"
)

// attendRows is the size of a block of queries and of a block of keys. The scores of two blocks
// stay in the L1 cache. Blocks whose keys all follow the queries are skipped.
const attendRows = 64

// A tile has the packed keys and values of one KV head for up to attendRows tokens.
type tile struct {
	lo, hi          int
	keysT, keys     kernel.Packed // keys, packed for q·Kᵀ and for ds·K
	values, valuesT kernel.Packed // values, packed for p·V and for do·Vᵀ
}

// attend computes causal attention of all sequences of the batch. It reads s.qkv and writes s.attn.
func (p *Pass) attend(s *layerState) {
	p.heads(s, func(q, k, v, head int, lo, hi int) {
		p.packTiles(s, k, v, lo, hi, false)
		d := p.net.Weights.Config.HeadDim
		for at := lo; at < hi; at += attendRows {
			to := min(at+attendRows, hi)
			probs := p.probabilities(s, q, at, to, lo)
			out := s.attn.RowRange(at, to).ColRange(head*d, (head+1)*d)
			for j := range p.tiles {
				if t := &p.tiles[j]; t.lo < to {
					kernel.Gemm(out, probs.ColRange(t.lo-lo, min(t.hi, to)-lo), &t.values, j > 0, 1)
				}
			}
		}
	})
}

// attendBack computes dqkv, the gradient with respect to s.qkv, from dattn, the gradient with
// respect to s.attn. It computes the probabilities again instead of storing them.
func (p *Pass) attendBack(s *layerState, dattn, dqkv kernel.Matrix) {
	clear(dqkv.Data)
	d := p.net.Weights.Config.HeadDim
	scale := float32(1 / math.Sqrt(float64(d)))
	p.heads(s, func(q, k, v, head int, lo, hi int) {
		p.packTiles(s, k, v, lo, hi, true)
		for at := lo; at < hi; at += attendRows {
			to := min(at+attendRows, hi)
			probs := p.probabilities(s, q, at, to, lo)
			dout := dattn.RowRange(at, to).ColRange(head*d, (head+1)*d)
			dscores := blockOf(&p.dscores, to-at, to-lo)
			for j := range p.tiles {
				if t := &p.tiles[j]; t.lo < to {
					part := dscores.ColRange(t.lo-lo, min(t.hi, to)-lo)
					kernel.Gemm(part, dout, &t.valuesT, false, 1)
				}
			}
			for i := range dscores.Rows {
				seen := at - lo + i + 1
				row := dscores.Row(i)
				kernel.SoftmaxGrad(row[:seen], probs.Row(i)[:seen])
				kernel.Scale(scale, row[:seen])
				clear(row[seen:])
			}
			queries := s.qkv.RowRange(at, to).ColRange(q, q+d)
			dqueries := dqkv.RowRange(at, to).ColRange(q, q+d)
			for j := range p.tiles {
				if t := &p.tiles[j]; t.lo < to {
					part := dscores.ColRange(t.lo-lo, min(t.hi, to)-lo)
					kernel.Gemm(dqueries, part, &t.keys, j > 0, 1)
				}
			}
			kernel.GemmTN(dqkv.RowRange(lo, to).ColRange(k, k+d), dscores, queries, 1)
			kernel.GemmTN(dqkv.RowRange(lo, to).ColRange(v, v+d), probs, dout, 1)
		}
	})
}

// heads calls do for every sequence and query head. q, k and v are the first columns of the head's
// query, key and value in s.qkv; the sequence has the rows from lo to hi-1.
func (p *Pass) heads(s *layerState, do func(q, k, v, head, lo, hi int)) {
	c := &p.net.Weights.Config
	for i := range p.batch.Starts {
		lo, hi := p.batch.span(i)
		for head := range c.Heads {
			kv := head / (c.Heads / c.KVHeads)
			do(head*c.HeadDim, (c.Heads+kv)*c.HeadDim, (c.Heads+c.KVHeads+kv)*c.HeadDim, head, lo, hi)
		}
	}
}

// packTiles packs the keys and values of rows lo to hi-1. If back is true, it also packs them for
// the backward pass.
func (p *Pass) packTiles(s *layerState, k, v, lo, hi int, back bool) {
	d, n := p.net.Weights.Config.HeadDim, 0
	for at := lo; at < hi; at += attendRows {
		if n == cap(p.tiles) {
			p.tiles = append(p.tiles[:n], tile{})
		}
		p.tiles = p.tiles[:n+1]
		t := &p.tiles[n]
		t.lo, t.hi = at, min(at+attendRows, hi)
		keys := s.qkv.RowRange(t.lo, t.hi).ColRange(k, k+d)
		values := s.qkv.RowRange(t.lo, t.hi).ColRange(v, v+d)
		t.keysT.PackT(keys)
		if back {
			t.keys.Pack(keys)
			t.valuesT.PackT(values)
		} else {
			t.values.Pack(values)
		}
		n++
	}
}

// probabilities returns the causal attention weights of the queries in the rows from start to
// end-1, over the keys in the rows from lo to end-1, as a matrix [end-start, end-lo]. The weights
// of keys after the query are zero. q is the first column of the queries in s.qkv.
func (p *Pass) probabilities(s *layerState, q, start, end, lo int) kernel.Matrix {
	d := p.net.Weights.Config.HeadDim
	scale := float32(1 / math.Sqrt(float64(d)))
	queries := s.qkv.RowRange(start, end).ColRange(q, q+d)
	out := blockOf(&p.scores, end-start, end-lo)
	for j := range p.tiles {
		if t := &p.tiles[j]; t.lo < end {
			kernel.Gemm(out.ColRange(t.lo-lo, min(t.hi, end)-lo), queries, &t.keysT, false, 1)
		}
	}
	for i := range out.Rows {
		row := out.Row(i)
		seen := start - lo + i + 1
		kernel.Scale(scale, row[:seen])
		kernel.Softmax(row[:seen])
		clear(row[seen:])
	}
	return out
}

// blockOf returns a matrix of rows × cols scores in the memory of m, which it grows if necessary.
func blockOf(m *kernel.Matrix, rows, cols int) kernel.Matrix {
	if len(m.Data) < rows*cols {
		*m = kernel.NewMatrix(attendRows, (cols+attendRows-1)/attendRows*attendRows)
	}
	return view(m.Data, rows, cols)
}
