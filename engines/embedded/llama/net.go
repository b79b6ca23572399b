package llama

import "anneal/engines/embedded/kernel"

// A Net is a model, with or without an adapter, packed for training. Passes may read it
// concurrently, but not while Pack runs.
type Net struct {
	Weights *Weights
	Adapter *Adapter // adapter that is trained; nil trains all parameters of Weights

	trained        *TrainedAdapter // Adapter, packed; nil without one
	rope           *Rope
	layers         []netLayer
	head, headBack kernel.Packed
}

type netLayer struct{ qkv, o, gateUp, down linear }

// A linear is a projection, or several stacked projections with the same input: W [out, in], packed
// for x·Wᵀ and for dy·W.
type linear struct{ fwd, back kernel.Packed }

// NewNet packs the weights w on workers goroutines. If a is nil, all parameters of w are trained,
// otherwise only the adapter a.
func NewNet(w *Weights, a *Adapter, workers int) *Net {
	n := &Net{
		Weights: w, Adapter: a, rope: NewRope(&w.Config, w.Config.MaxPositions), layers: make([]netLayer, w.Config.Layers),
	}
	n.packBase(workers)
	if a != nil {
		n.trained = NewTrainedAdapter(&w.Config, a)
	}
	return n
}

// linears returns the linears of a layer, in the order of inputs.
func (l *netLayer) linears() [4]*linear { return [4]*linear{&l.qkv, &l.o, &l.gateUp, &l.down} }

// Projections returns the packed projections of a layer by Input, and Head the packed output head. They
// share the memory of the net, so they are valid until Pack is called.
func (n *Net) Projections(layer int) (packed [len(inputs)]*kernel.Packed) {
	for i, lin := range n.layers[layer].linears() {
		packed[i] = &lin.fwd
	}
	return packed
}

// Head returns the packed output head: see Projections.
func (n *Net) Head() *kernel.Packed { return &n.head }

// Trained returns the trained parameters as one vector, which shares the memory of the model or of
// the adapter.
func (n *Net) Trained() []float32 {
	if n.Adapter != nil {
		return n.Adapter.flat
	}
	return n.Weights.flat
}

// Pack packs the net again after the parameters in Trained have changed.
func (n *Net) Pack(workers int) {
	if n.Adapter != nil {
		n.trained.Pack()
		return
	}
	n.packBase(workers)
}

func (n *Net) packBase(workers int) {
	Each(len(n.layers)+1, workers, func(i int) {
		if i == len(n.layers) {
			n.head.PackT(n.Weights.Head)
			n.headBack.Pack(n.Weights.Head)
			return
		}
		for g, w := range n.Weights.stacks(i) {
			lin := n.layers[i].linears()[g]
			lin.fwd.PackT(w)
			lin.back.Pack(w)
		}
	})
}

// stacks returns the projections of a layer by Input. Those with the same input are stacked in one
// matrix.
func (w *Weights) stacks(layer int) [4]kernel.Matrix {
	return [4]kernel.Matrix{w.qkv[layer], w.Layers[layer].O, w.gateUp[layer], w.Layers[layer].Down}
}

// stackedA returns the matrices A of several pairs as one matrix. The pairs in low have the same
// input.
func (a *Adapter) stackedA(layer int, low []lowRank) kernel.Matrix {
	first := a.Layers[layer][low[0].module].A
	rows := len(low) * a.Rank
	return kernel.Matrix{
		Data: first.Data[: rows*first.Cols : rows*first.Cols], Rows: rows, Cols: first.Cols, Stride: first.Cols,
	}
}

// A Gradient is the gradient of an objective with respect to the parameters in Trained.
type Gradient struct {
	Flat    []float32
	weights *Weights // parts of Flat, in the layout of the weights; nil if an adapter is trained
	adapter *Adapter
}

// NewGradient returns a gradient of zeros.
func (n *Net) NewGradient() *Gradient {
	if n.trained != nil {
		return n.trained.NewGradient(&n.Weights.Config)
	}
	g := &Gradient{Flat: make([]float32, len(n.Trained()))}
	g.weights = layOut(n.Weights.Config, g.Flat)
	return g
}

// A Part is a range of the vector Trained.
type Part struct {
	Len    int
	Matrix bool // the range is a matrix, not a norm or a bias
}

// Parts returns the ranges of the vector Trained, in order.
func (n *Net) Parts() []Part {
	if n.Adapter != nil {
		return []Part{{len(n.Adapter.flat), true}}
	}
	var out []Part
	w := n.Weights
	out = append(out, Part{len(w.Embed.Data), true})
	for i := range w.Layers {
		l := &w.Layers[i]
		attention, mlp := 0, 0
		for m := range Modules {
			if m < Gate {
				attention += len(l.Matrix(m).Data)
			} else {
				mlp += len(l.Matrix(m).Data)
			}
		}
		heads := len(l.Bias[ToQueryKeyValue]) + len(l.Bias[ToOutput]) + len(l.QNorm) + len(l.KNorm)
		out = append(
			out, Part{len(l.AttnNorm), false}, Part{attention, true}, Part{heads + len(l.MLPNorm), false}, Part{mlp, true},
			Part{len(l.Bias[ToGateUp]) + len(l.Bias[ToDown]), false})
	}
	out = append(out, Part{len(w.Norm), false})
	if !w.Config.TieWordEmbeddings {
		out = append(out, Part{len(w.Head.Data), true})
	}
	return out
}
