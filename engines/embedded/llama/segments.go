package llama

import (
	"cmp"
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
// else concurrently. Each pass waits for its turn at each input of each layer. A pass that has
// panicked may be computed again: it adds what it has not added yet.
type Order struct {
	mu      sync.Mutex
	cond    *sync.Cond
	turns   []int  // number of segments that have been added, by layer and input
	partial []bool // the segment of the turn is being added
	failed  bool
}

// NewOrder returns an order for a model with configuration c. The first turn is 0.
func NewOrder(c *Config) *Order {
	n := c.Layers * len(inputs)
	o := &Order{turns: make([]int, n), partial: make([]bool, n)}
	o.cond = sync.NewCond(&o.mu)
	return o
}

// begin waits for a turn. It returns false if there is nothing to add: the segment was added
// before, or the gradient has failed. Otherwise the caller must call done.
func (o *Order) begin(layer, input, turn int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := layer*len(inputs) + input
	for o.turns[at] < turn && !o.failed {
		o.cond.Wait()
	}
	if o.failed || o.turns[at] > turn {
		return false
	}
	o.partial[at] = true
	return true
}

func (o *Order) done(layer, input int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := layer*len(inputs) + input
	o.turns[at]++
	o.partial[at] = false
	o.cond.Broadcast()
}

// Fail abandons the gradient: passes no longer add to it, and no longer wait for their turns.
func (o *Order) Fail() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failed = true
	o.cond.Broadcast()
}

// Partial reports whether the pass of a turn panicked while it was adding to the gradient. The
// gradient is then damaged.
func (o *Order) Partial(turn int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for at, partial := range o.partial {
		if partial && o.turns[at] == turn {
			return true
		}
	}
	return false
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

// Begin starts the segment of the sequences that are added next. The backward pass adds its
// gradient to g as number turn of order; if g is nil, there must be no backward pass.
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

// Len returns the numbers of input tokens and of targets.
func (b *SegmentBatch) Len() (tokens, targets int) { return len(b.batch.Tokens), len(b.targets) }

// targetsOf returns the range of the targets of a token.
func (b *SegmentBatch) targetsOf(token int) (lo, hi int) {
	if token > 0 {
		lo = int(b.ends[token-1])
	}
	return lo, int(b.ends[token])
}

// headRows is the number of rows whose logits ForwardSegments computes at a time. It bounds the
// memory for logits, and does not change results.
const headRows = 128

// A TargetLoss receives the log-probabilities of the next targets of a SegmentBatch. It writes the
// derivatives of the objective with respect to them to grads.
type TargetLoss func(logp, grads []float32)

// ForwardSegments computes the log-probability of each target of each token, and passes all of them
// to loss, in order, in one or several calls. They are batch-invariant: a sequence has
// bit-identical log-probabilities in every batch, and in package serve. If backward is true,
// BackwardSegments must follow. The net must have no adapter, and the pass the temperature 1.
func (p *Pass) ForwardSegments(b *SegmentBatch, backward bool, loss TargetLoss) {
	p.segments = append(p.segments[:0], b.segments...)
	p.layersForward(&b.batch, 0, 0)
	p.normalizeLast()
	n := len(p.rows)
	block := cmp.Or(p.headRows, headRows)
	logits := p.arena.matrix(min(n, block), p.net.Weights.Config.VocabSize)
	if backward {
		p.dfinal = p.arena.matrix(n, p.final.Cols)
	}
	kept := p.rows[:0]
	for lo := 0; lo < n; lo += block {
		hi := min(lo+block, n)
		rows, first := logits.RowRange(0, hi-lo), len(kept)
		kernel.Gemm(rows, p.final.RowRange(lo, hi), &p.net.head, false, 1)
		logp := b.logProbabilities(p, rows, lo)
		grads := p.arena.vector(len(logp))
		loss(logp, grads)
		if !backward {
			continue
		}
		if kept = b.logitGrads(kept, rows, grads, lo); len(kept) > first {
			kernel.Gemm(p.dfinal.RowRange(first, len(kept)), rows.RowRange(0, len(kept)-first), &p.net.headBack, false, 1)
		}
	}
	if backward {
		p.rows = kept
	}
}

// logProbabilities returns the log-probabilities of the targets of the tokens from lo on, and
// replaces their logits by probabilities.
func (b *SegmentBatch) logProbabilities(p *Pass, logits kernel.Matrix, lo int) []float32 {
	from, _ := b.targetsOf(lo)
	_, to := b.targetsOf(lo + logits.Rows - 1)
	logp := p.arena.vector(to - from)
	for i := range logits.Rows {
		row := logits.Row(i)
		start, end := b.targetsOf(lo + i)
		for k := start; k < end; k++ {
			logp[k-from] = row[b.targets[k]]
		}
		norm := kernel.SoftmaxLog(row)
		for k := start; k < end; k++ {
			logp[k-from] = float32(float64(logp[k-from]) - norm)
		}
	}
	return logp
}

// logitGrads replaces the probabilities of the tokens from lo on by the gradient of the logits. It
// moves the rows where that is not 0 to the beginning, and appends their tokens to kept.
func (b *SegmentBatch) logitGrads(kept []int32, probs kernel.Matrix, grads []float32, lo int) []int32 {
	from, _ := b.targetsOf(lo)
	n := 0
	for i := range probs.Rows {
		start, end := b.targetsOf(lo + i)
		sum, zero := float32(0), true
		for _, grad := range grads[start-from : end-from] {
			sum, zero = sum+grad, zero && grad == 0
		}
		if zero {
			continue
		}
		row := probs.Row(n)
		copy(row, probs.Row(i))
		kernel.Scale(-sum, row)
		for k := start; k < end; k++ {
			row[b.targets[k]] += grads[k-from]
		}
		kept, n = append(kept, int32(lo+i)), n+1
	}
	return kept
}

// BackwardSegments adds the gradients of the segments of the last ForwardSegments. A token whose
// targets have derivatives of 0 adds nothing.
func (p *Pass) BackwardSegments() {
	if len(p.rows) == 0 {
		skipTurns(p.segments, len(p.layers))
		return
	}
	if len(p.rows) < p.last.Rows {
		p.narrow()
	}
	p.layersBackward(p.lastBack(p.dfinal, nil), &Gradient{})
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
	p.dfinal.Rows = len(p.rows)
	s := &p.layers[len(p.layers)-1]
	for _, m := range []*kernel.Matrix{&p.last, &s.attn, &s.mid, &s.norm2, &s.gu, &s.act} {
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
					if seg.order.begin(layer, input, seg.turn) {
						seg.order.done(layer, input)
					}
				}
			}
		}
	}
}
