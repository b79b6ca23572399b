package llama

import (
	"sync"

	"anneal/engines/embedded/kernel"
)

// A segment is a range of the sequences of a batch that are computed with the same adapter.
type segment struct {
	adapter  *TrainedAdapter
	lo, hi   int       // range of the tokens
	from     int       // index of the first row with a target, see Pass.rows
	last     int       // index after the last row with a target
	gradient *Gradient // nil if no gradient is computed
	order    *Order    // order in which segments are added to gradient; nil if there is only one at a time
	turn     int       // number of the segment in that order
}

// An Order makes several passes add to one gradient in a fixed order, while they compute everything
// else concurrently. Each pass waits for its turn at each input of each layer.
type Order struct {
	mu    sync.Mutex
	cond  *sync.Cond
	turns []int // number of segments that have been added, by layer and input
}

// NewOrder returns an order for a model with configuration c. The first turn is 0.
func NewOrder(c *Config) *Order {
	o := &Order{turns: make([]int, c.Layers*len(inputs))}
	o.cond = sync.NewCond(&o.mu)
	return o
}

func (o *Order) wait(layer, input, turn int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.turns[layer*len(inputs)+input] != turn {
		o.cond.Wait()
	}
}

func (o *Order) done(layer, input int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.turns[layer*len(inputs)+input]++
	o.cond.Broadcast()
}

// A SegmentBatch has sequences that are computed with different adapters of one base model. All
// tokens have targets.
type SegmentBatch struct {
	batch    Batch
	targets  []int32 // targets of all tokens
	ends     []int32 // index in targets after the last target of each token
	segments []segment
}

// Reset removes all sequences, and keeps the memory.
func (b *SegmentBatch) Reset() {
	b.batch.Reset()
	b.targets, b.ends, b.segments = b.targets[:0], b.ends[:0], b.segments[:0]
}

// Begin starts the segment of the sequences that are added next. The backward pass adds its gradient
// to g as number turn of order; if g is nil, there must be no backward pass.
func (b *SegmentBatch) Begin(a *TrainedAdapter, g *Gradient, order *Order, turn int) {
	at := len(b.batch.Tokens)
	b.segments = append(b.segments,
		segment{adapter: a, lo: at, hi: at, from: at, last: at, gradient: g, order: order, turn: turn})
}

// Add appends a sequence of input tokens to the current segment. Each token has the same number of
// targets: its first target is the token that follows, or the targets are alternatives to it.
func (b *SegmentBatch) Add(tokens, targets []int32) {
	b.batch.Starts = append(b.batch.Starts, int32(len(b.batch.Tokens)))
	b.batch.Tokens = append(b.batch.Tokens, tokens...)
	each := len(targets) / len(tokens)
	for i := range tokens {
		b.batch.Targets = append(b.batch.Targets, targets[i*each])
		b.ends = append(b.ends, int32(len(b.targets)+(i+1)*each))
	}
	b.targets = append(b.targets, targets...)
	seg := &b.segments[len(b.segments)-1]
	seg.hi = len(b.batch.Tokens)
	seg.last = seg.hi
}

// Tokens returns the number of input tokens.
func (b *SegmentBatch) Tokens() int { return len(b.batch.Tokens) }

// targetsOf returns the range of the targets of a token.
func (b *SegmentBatch) targetsOf(token int) (lo, hi int) {
	if token > 0 {
		lo = int(b.ends[token-1])
	}
	return lo, int(b.ends[token])
}

// ForwardSegments returns the log-probability of each target of each token, in order. The
// result is batch-invariant: a sequence gives bit-identical values in every batch, and in package
// serve. The net must have no adapter.
func (p *Pass) ForwardSegments(b *SegmentBatch) []float32 {
	p.segments = append(p.segments[:0], b.segments...)
	p.layersForward(&b.batch, 0, 0)
	p.logits()
	p.logp = p.arena.vector(len(b.targets))
	for i := range p.probs.Rows {
		row := p.probs.Row(i)
		lo, hi := b.targetsOf(i)
		for k := lo; k < hi; k++ {
			p.logp[k] = row[b.targets[k]]
		}
		norm := kernel.SoftmaxLog(row)
		for k := lo; k < hi; k++ {
			p.logp[k] = float32(float64(p.logp[k]) - norm)
		}
	}
	return p.logp
}

// BackwardSegments adds the gradients of the segments of the last ForwardSegments. grads are the
// derivatives of the objective with respect to the log-probabilities. A token whose derivatives are
// all 0 adds nothing.
func (p *Pass) BackwardSegments(b *SegmentBatch, grads []float32) {
	if b.logitGrads(p, grads); len(p.rows) == 0 {
		skipTurns(p.segments, len(p.layers))
		return
	}
	none := &Gradient{}
	p.layersBackward(p.logitsBack(none), none)
}

// logitGrads replaces the probabilities of p by the gradient of the logits, and removes the rows
// where it is 0.
func (b *SegmentBatch) logitGrads(p *Pass, grads []float32) {
	kept := p.rows[:0]
	for i := range p.probs.Rows {
		row := p.probs.Row(i)
		lo, hi := b.targetsOf(i)
		sum, zero := float32(0), true
		for _, grad := range grads[lo:hi] {
			sum, zero = sum+grad, zero && grad == 0
		}
		if zero {
			continue
		}
		kernel.Scale(-sum, row)
		for k := lo; k < hi; k++ {
			row[b.targets[k]] += grads[k]
		}
		kept = append(kept, int32(i))
	}
	n := p.probs.Rows
	if p.rows = kept; len(kept) < n {
		p.narrow()
	}
}

// narrow removes the rows that are not in p.rows from the activations after the attention of the
// last layer, which the backward pass reads.
func (p *Pass) narrow() {
	move := func(m *kernel.Matrix) {
		for to, from := range p.rows {
			copy(m.Row(to), m.Row(int(from)))
		}
		m.Rows = len(p.rows)
	}
	s := &p.layers[len(p.layers)-1]
	for _, m := range []*kernel.Matrix{&p.probs, &p.final, &p.last, &s.attn, &s.mid, &s.norm2, &s.gu, &s.act} {
		move(m)
	}
	for to, from := range p.rows {
		p.inverse[to], s.inverse2[to] = p.inverse[from], s.inverse2[from]
	}
	at := 0
	for i := range p.segments {
		seg, first := &p.segments[i], at
		for at < len(p.rows) && int(p.rows[at]) < seg.last {
			at++
		}
		for j, x := range []kernel.Matrix{s.attn, s.norm2, s.act} {
			low := &s.low[int(ToOutput)+j][i]
			if low.z.Rows == 0 {
				continue
			}
			for to, from := range p.rows[first:at] {
				copy(low.z.Row(to), low.z.Row(int(from)-seg.from))
			}
			low.z.Rows, low.in = at-first, x.RowRange(first, at)
		}
		seg.from, seg.last = first, at
	}
}

// skipTurns takes the turns of all segments without adding anything.
func skipTurns(segments []segment, layers int) {
	for layer := layers - 1; layer >= 0; layer-- {
		for input := len(inputs) - 1; input >= 0; input-- {
			for i := range segments {
				if seg := &segments[i]; seg.order != nil && len(seg.adapter.layers[layer][input].low) > 0 {
					seg.order.wait(layer, input, seg.turn)
					seg.order.done(layer, input)
				}
			}
		}
	}
}
