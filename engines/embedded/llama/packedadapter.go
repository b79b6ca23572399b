package llama

import "anneal/engines/embedded/kernel"

// An Input is one of the four activations of a layer that are the input of projections.
type Input int

// The inputs of a layer, in the order in which they are computed.
const (
	ToQueryKeyValue Input = iota
	ToOutput
	ToGateUp
	ToDown
)

// A PackedAdapter applies an adapter to the outputs of an unchanged base model. It is immutable and
// safe for concurrent use.
type PackedAdapter struct {
	scale  float32
	rank   int
	layers [][len(inputs)]packedLow
}

// A packedLow has the adapter's pairs of matrices A and B for the projections of one input.
type packedLow struct {
	a     kernel.Packed // matrices A of all pairs, stacked: [pairs·rank, in]
	pairs []packedPair
}

// A packedPair has the matrix B for one projection. The outputs of the projection are the columns
// lo to hi-1 of the stacked outputs of all projections with the same input.
type packedPair struct {
	lo, hi int
	b      kernel.Packed // matrix B [out, rank]
}

// Pack packs the adapter for a base model with configuration c. The result does not share memory
// with a.
func (a *Adapter) Pack(c *Config) *PackedAdapter {
	p := &PackedAdapter{scale: a.Scale(), rank: a.Rank, layers: make([][len(inputs)]packedLow, len(a.Layers))}
	for i := range p.layers {
		for input := range p.layers[i] {
			p.layers[i][input] = a.packLow(c, i, Input(input))
		}
	}
	return p
}

// Bytes returns the memory of the adapter in bytes.
func (p *PackedAdapter) Bytes() (sum int64) {
	for i := range p.layers {
		for input := range p.layers[i] {
			low := &p.layers[i][input]
			sum += low.a.Bytes()
			for j := range low.pairs {
				sum += low.pairs[j].b.Bytes()
			}
		}
	}
	return sum
}

func (a *Adapter) packLow(c *Config, layer int, input Input) (to packedLow) {
	var stacked []lowRank
	at := 0
	for _, m := range inputs[input] {
		out, _ := m.Shape(c)
		if a.Has(m) {
			stacked = append(stacked, lowRank{module: m, lo: at, hi: at + out})
			pair := packedPair{lo: at, hi: at + out}
			pair.b.PackT(a.Layers[layer][m].B)
			to.pairs = append(to.pairs, pair)
		}
		at += out
	}
	if len(stacked) > 0 {
		to.a.PackT(a.stackedA(layer, stacked))
	}
	return to
}

// Add adds the adapter's update to y, the base model's output for the input x: y += scale·(x·Aᵀ)·Bᵀ
// (LoRA, Hu et al. 2021). x is [rows, in], and y [rows, stacked outputs of the input's
// projections]. The result is bit-identical to that of a Pass. scratch is reused between calls.
func (p *PackedAdapter) Add(y, x kernel.Matrix, layer int, input Input, scratch *kernel.Matrix, workers int) {
	low := &p.layers[layer][input]
	if len(low.pairs) == 0 {
		return
	}
	cols := len(low.pairs) * p.rank
	if cap(scratch.Data) < x.Rows*cols {
		scratch.Data = make([]float32, x.Rows*cols)
	}
	*scratch = kernel.Matrix{Data: scratch.Data[:x.Rows*cols], Rows: x.Rows, Cols: cols, Stride: cols}
	kernel.Gemm(*scratch, x, &low.a, false, workers)
	kernel.Scale(p.scale, scratch.Data)
	for i := range low.pairs {
		pair := &low.pairs[i]
		kernel.Gemm(y.ColRange(pair.lo, pair.hi), scratch.ColRange(i*p.rank, (i+1)*p.rank), &pair.b, true, workers)
	}
}
