package llama

import "anneal/engines/embedded/kernel"

// A Pass computes forward and backward passes of a Net, one batch at a time. It keeps the
// activations of the forward pass for the backward pass. It uses only the caller's goroutine, so
// each core needs its own Pass.
type Pass struct {
	// Temperature divides the logits before the softmax; 0 stands for 1.
	Temperature float64

	net      *Net
	batch    *Batch
	segments []segment // ranges of the batch by adapter; empty without an adapter
	arena    arena
	dropout  float64 // dropout rate of the adapter's inputs for the current batch, in [0, 1)
	seed     uint64  // seed of the dropout of the current batch

	layers  []layerState
	rows    []int32       // indices of the tokens whose next token is a target
	last    kernel.Matrix // output of the last layer at rows: [targets, hidden]
	inverse []float32
	final   kernel.Matrix // result of the final norm on last
	dfinal  kernel.Matrix // gradient of final at the tokens in rows, of ForwardSegments
	probs   kernel.Matrix // probabilities of all tokens at rows: [targets, vocab]
	logp    []float32

	headRows int // replaces the constant of this name in tests

	scores, dscores kernel.Matrix // scores of one block of attention: [attendRows, keys]
	tiles           []tile
}

// layerState has the activations of a layer. Rows are tokens. In the last layer, attn and the
// activations that are computed from it have only the rows with a target.
type layerState struct {
	x, norm1, qkv, attn kernel.Matrix
	mid, norm2, gu, act kernel.Matrix
	inverse1, inverse2  []float32
	raw                 kernel.Matrix // queries and keys before the head norms
	inverseHeads        []float32
	low                 [4][]lowState // activations of the adapter of each segment, for each input
}

// lowState has the activations of an adapter for one linear.
type lowState struct {
	in kernel.Matrix // input after dropout
	z  kernel.Matrix // scale·in·Aᵀ: [tokens, pairs·rank]
}

// An arena allocates float32 slices, which reset frees together.
type arena struct {
	data []float32
	used int
	want int
}

// reset frees all slices. It adapts the memory of the arena to what was allocated since the last
// reset.
func (a *arena) reset() {
	if a.want > len(a.data) || a.want < len(a.data)/4 {
		a.data = make([]float32, a.want+a.want/8)
	}
	a.used, a.want = 0, 0
}

// vector allocates n values, which it does not set to zero.
func (a *arena) vector(n int) []float32 {
	a.want += n
	if a.used+n > len(a.data) {
		return make([]float32, n)
	}
	v := a.data[a.used : a.used+n : a.used+n]
	a.used += n
	return v
}

func (a *arena) matrix(rows, cols int) kernel.Matrix {
	return kernel.Matrix{Data: a.vector(rows * cols), Rows: rows, Cols: cols, Stride: cols}
}

// NewPass returns a pass over net.
func NewPass(net *Net) *Pass {
	return &Pass{net: net, layers: make([]layerState, len(net.layers))}
}

// Forward returns the log-probability of each target of a batch, in order. No sequence may exceed
// the model's context length. The caller must not change the result or the batch before Backward.
func (p *Pass) Forward(batch *Batch) []float32 { return p.ForwardDropout(batch, 0, 0) }

// ForwardDropout is like Forward, with dropout of the adapter's inputs. seed determines the dropped
// elements.
func (p *Pass) ForwardDropout(batch *Batch, dropout float64, seed uint64) []float32 {
	p.segments = p.segments[:0]
	if p.net.trained != nil {
		p.segments = append(p.segments, segment{adapter: p.net.trained, hi: len(batch.Tokens), last: batch.Scored()})
	}
	p.layersForward(batch, dropout, seed)
	return p.score()
}

// layersForward computes all layers, up to p.last.
func (p *Pass) layersForward(batch *Batch, dropout float64, seed uint64) {
	p.arena.reset()
	p.batch, p.dropout, p.seed = batch, dropout, seed
	p.rows = p.rows[:0]
	for i, t := range batch.Targets {
		if t >= 0 {
			p.rows = append(p.rows, int32(i))
		}
	}
	w := p.net.Weights
	n, h := len(batch.Tokens), w.Config.HiddenSize
	x := p.arena.matrix(n, h)
	for i, t := range batch.Tokens {
		copy(x.Row(i), w.Embed.Row(int(t)))
	}
	for i := range p.layers {
		x = p.forwardLayer(i, x)
	}
	p.last = x
}

func (p *Pass) forwardLayer(i int, x kernel.Matrix) kernel.Matrix {
	c, l, s, n := &p.net.Weights.Config, &p.net.Weights.Layers[i], &p.layers[i], x.Rows
	net := &p.net.layers[i]
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	s.x = x
	s.inverse1, s.norm1 = p.arena.vector(n), p.arena.matrix(n, c.HiddenSize)
	normalize(s.norm1, x, s.inverse1, l.AttnNorm, c.NormEps)
	s.qkv = p.arena.matrix(n, q+2*kv)
	p.project(s.qkv, s.norm1, &net.qkv, i, 0, false)
	p.normalizeHeads(s, l)
	p.turn(s.qkv.ColRange(0, q+kv), p.net.rope.Turn)
	s.attn = p.arena.matrix(n, q)
	p.attend(s)
	// After the attention of the last layer, only rows with a target are needed.
	if i == len(p.layers)-1 {
		x, s.attn = p.gather(x), p.gather(s.attn)
		n = x.Rows
	}
	s.mid = p.arena.matrix(n, c.HiddenSize)
	copyRows(s.mid, x)
	p.project(s.mid, s.attn, &net.o, i, 1, true)
	s.inverse2, s.norm2 = p.arena.vector(n), p.arena.matrix(n, c.HiddenSize)
	normalize(s.norm2, s.mid, s.inverse2, l.MLPNorm, c.NormEps)
	s.gu, s.act = p.arena.matrix(n, 2*c.IntermediateSize), p.arena.matrix(n, c.IntermediateSize)
	p.project(s.gu, s.norm2, &net.gateUp, i, 2, false)
	gate(s.act, s.gu)
	out := p.arena.matrix(n, c.HiddenSize)
	copyRows(out, s.mid)
	p.project(out, s.act, &net.down, i, 3, true)
	return out
}

// normalizeHeads normalizes each head of the queries and keys, if the model has head norms. It
// keeps the values before the norms in s.raw.
func (p *Pass) normalizeHeads(s *layerState, l *Layer) {
	if l.QNorm == nil {
		return
	}
	c := &p.net.Weights.Config
	heads := c.Heads + c.KVHeads
	s.raw, s.inverseHeads = p.arena.matrix(s.qkv.Rows, heads*c.HeadDim), p.arena.vector(s.qkv.Rows*heads)
	for i := range s.qkv.Rows {
		row := s.qkv.Row(i)[:s.raw.Cols]
		copy(s.raw.Row(i), row)
		c.NormalizeHeads(row, l.QNorm, l.KNorm, s.inverseHeads[i*heads:(i+1)*heads])
	}
}

// gather returns the rows of m with a target, m itself if all rows have one.
func (p *Pass) gather(m kernel.Matrix) kernel.Matrix {
	if len(p.rows) == m.Rows {
		return m
	}
	out := p.arena.matrix(len(p.rows), m.Cols)
	for i, row := range p.rows {
		copy(out.Row(i), m.Row(int(row)))
	}
	return out
}

// scatter is the inverse of gather: it returns a matrix with the rows of m at the rows with a
// target, and zeros elsewhere.
func (p *Pass) scatter(m kernel.Matrix) kernel.Matrix {
	if m.Rows == len(p.batch.Tokens) {
		return m
	}
	out := p.arena.matrix(len(p.batch.Tokens), m.Cols)
	clear(out.Data)
	for i, row := range p.rows {
		copy(out.Row(int(row)), m.Row(i))
	}
	return out
}

// turn applies the function turn, Rope.Turn or Rope.TurnBack, to the heads of every row at the
// row's position in its sequence.
func (p *Pass) turn(heads kernel.Matrix, turn func([]float32, int)) {
	for i := range p.batch.Starts {
		lo, hi := p.batch.span(i)
		for row := lo; row < hi; row++ {
			turn(heads.Row(row), row-lo)
		}
	}
}

// project computes y = x·Wᵀ, or y += x·Wᵀ if add is true, and adds the updates of the adapters to
// y.
func (p *Pass) project(y, x kernel.Matrix, lin *linear, layer, input int, add bool) {
	kernel.Gemm(y, x, &lin.fwd, add, 1)
	AddBias(y, p.net.Weights.Layers[layer].Bias[input])
	lowRanks{p, layer, input}.project(y, x)
}

// normalizeLast computes the final norm of the output of the last layer.
func (p *Pass) normalizeLast() {
	w := p.net.Weights
	p.final, p.inverse = p.arena.matrix(len(p.rows), w.Config.HiddenSize), p.arena.vector(len(p.rows))
	normalize(p.final, p.last, p.inverse, w.Norm, w.Config.NormEps)
}

// score returns the log-probabilities of the targets. It computes the probabilities of all tokens
// at the rows with a target, from the logits divided by the temperature, as p.probs.
func (p *Pass) score() []float32 {
	p.normalizeLast()
	p.probs = p.arena.matrix(len(p.rows), p.net.Weights.Config.VocabSize)
	kernel.Gemm(p.probs, p.final, &p.net.head, false, 1)
	if scale := p.inverseTemperature(); scale != 1 {
		kernel.Scale(scale, p.probs.Data[:p.probs.Rows*p.probs.Cols])
	}
	p.logp = p.arena.vector(len(p.rows))
	scratch := p.arena.vector(p.net.Weights.Config.VocabSize)
	for i, row := range p.rows {
		logits := p.probs.Row(i)
		p.logp[i] = logits[p.batch.Targets[row]] - kernel.LogSumExp(scratch, logits)
		kernel.Softmax(logits)
	}
	return p.logp
}

// inverseTemperature returns the factor by which logits are multiplied.
func (p *Pass) inverseTemperature() float32 {
	if p.Temperature == 0 {
		return 1
	}
	return float32(1 / p.Temperature)
}

// Hits returns for how many targets of the last Forward the target was the most probable token.
func (p *Pass) Hits() int {
	n := 0
	for i := range p.rows {
		if Hit(p, i) {
			n++
		}
	}
	return n
}

// Hit reports whether target i of the last Forward of a pass was the most probable token.
func Hit(p *Pass, i int) bool {
	probs := p.probs.Row(i)
	return probs[p.batch.Targets[p.rows[i]]] >= kernel.Max(probs)
}

// Probabilities returns the probabilities of all tokens at each target of the last Forward:
// [targets, vocab]. Backward overwrites them.
func (p *Pass) Probabilities() kernel.Matrix { return p.probs }
