package llama

import "anneal/engines/embedded/kernel"

// A TrainedAdapter is an adapter that is packed for forward and backward passes. Passes may read it
// concurrently, but not while Pack runs.
type TrainedAdapter struct {
	*Adapter

	layers [][len(inputs)]trainedInput
}

// A trainedInput has the adapter's pairs for the projections of one input.
type trainedInput struct {
	a, aBack kernel.Packed // matrices A of the pairs, stacked: [pairs·rank, in]
	low      []lowRank
}

// A lowRank is the adapter's pair for one projection. The outputs of the projection are the outputs
// lo to hi-1 of the stacked projections with the same input.
type lowRank struct {
	module  Module
	lo, hi  int
	b, back kernel.Packed // B [out, rank], packed for z·Bᵀ and for dy·B
}

// NewTrainedAdapter packs the adapter a of a base model with configuration c. The result shares the
// parameters of a.
func NewTrainedAdapter(c *Config, a *Adapter) *TrainedAdapter {
	t := &TrainedAdapter{Adapter: a, layers: make([][len(inputs)]trainedInput, len(a.Layers))}
	for i := range t.layers {
		for input, modules := range inputs {
			in, at := &t.layers[i][input], 0
			for _, m := range modules {
				out, _ := m.Shape(c)
				if a.Has(m) {
					in.low = append(in.low, lowRank{module: m, lo: at, hi: at + out})
				}
				at += out
			}
		}
	}
	t.Pack()
	return t
}

// Pack packs the adapter again after its parameters have changed.
func (t *TrainedAdapter) Pack() {
	for i := range t.layers {
		for input := range t.layers[i] {
			in := &t.layers[i][input]
			if len(in.low) == 0 {
				continue
			}
			a := t.stackedA(i, in.low)
			in.a.PackT(a)
			in.aBack.Pack(a)
			for j := range in.low {
				b := t.Layers[i][in.low[j].module].B
				in.low[j].b.PackT(b)
				in.low[j].back.Pack(b)
			}
		}
	}
}

// NewGradient returns a gradient of zeros of the adapter's parameters. c is the configuration of
// the base model.
func (t *TrainedAdapter) NewGradient(c *Config) *Gradient {
	g := &Gradient{Flat: make([]float32, len(t.flat)), adapter: &Adapter{Rank: t.Rank, Alpha: t.Alpha}}
	g.adapter.layOut(*c, t.Modules(), g.Flat)
	return g
}
