package serve

import (
	"math"

	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
)

// A decoder computes forward passes ("steps") of one model. The order of summation in a row of a
// step depends only on that row. So the logits of a token are the same, bit for bit, alone, in a
// batch and with chunked prefill, and equal to those of llama.Pass. Only one goroutine may use a
// decoder.
type decoder struct {
	config  llama.Config
	embed   *kernel.Packed // embeddings [vocab, hidden]; nil if table has them
	table   kernel.Matrix  // embeddings that are not packed
	layers  []packedLayer
	norm    []float32
	head    *kernel.Packed // output head [vocab, hidden]; the same as embed if the embeddings are tied
	rope    *llama.Rope
	workers int

	x, normed, qkv, attn, gateUp, act kernel.Matrix // activations of the rows of a step
	hidden                            kernel.Matrix // hidden states of the tokens that an embedding pools
	// lastHidden and logits are the hidden states and logits of the rows whose logits are computed.
	lastHidden, logits kernel.Matrix
	starts             []int           // number of the first row of each span
	scores             []kernel.Matrix // attention scores, one matrix for each worker
	addonRuns          []addonRun      // ranges of rows that use the same adapter
	loraScratch        kernel.Matrix   // scratch memory for the updates of adapters
}

// A span has the next tokens of one sequence. A step computes several spans.
type span struct {
	cache  *cache
	tokens []int
	last   bool   // compute the logits after the last token
	all    bool   // compute the logits after every token
	embeds bool   // compute hidden states instead of logits
	pooled int    // number of last tokens whose hidden states are computed
	addon  *addon // adapter; nil stands for the base model
}

// step appends the tokens of the spans to their KV caches. It returns the logits that the spans
// request, in the order of the spans: [rows, vocab]. The result is valid until the next step.
func (d *decoder) step(spans []span) kernel.Matrix {
	rows, outputs, pooled := 0, 0, 0
	d.starts = d.starts[:0]
	for _, s := range spans {
		d.starts = append(d.starts, rows)
		rows += len(s.tokens)
		outputs += s.outputRows()
		pooled += s.pooled
	}
	d.resizeBuffers(rows, outputs)
	resize(&d.hidden, pooled, d.config.HiddenSize)
	d.groupAddons(spans)
	row := 0
	for _, s := range spans {
		for _, token := range s.tokens {
			d.embedding(d.x.Row(row), token)
			row++
		}
	}
	for i := range d.layers {
		d.layer(i, spans)
	}
	for _, s := range spans {
		s.cache.tokens = append(s.cache.tokens, s.tokens...)
	}
	return d.computeLogits(spans)
}

// embedding writes the embedding of a token to row.
func (d *decoder) embedding(row []float32, token int) {
	if d.embed != nil {
		d.embed.RowT(row, token)
		return
	}
	copy(row, d.table.Row(token))
}

// layer computes layer i for all rows of d.x.
func (d *decoder) layer(i int, spans []span) {
	l, eps := &d.layers[i], float32(d.config.NormEps)
	for r := range d.x.Rows {
		kernel.RMSNorm(d.normed.Row(r), d.x.Row(r), l.attnNorm, eps)
	}
	kernel.Gemm(d.qkv, d.normed, &l.qkv, false, d.workers)
	llama.AddBias(d.qkv, l.bias[llama.ToQueryKeyValue])
	d.applyAddons(d.qkv, d.normed, i, llama.ToQueryKeyValue)
	d.writeKV(i, spans)
	d.attend(i, spans)
	kernel.Gemm(d.x, d.attn, &l.o, true, d.workers)
	llama.AddBias(d.x, l.bias[llama.ToOutput])
	d.applyAddons(d.x, d.attn, i, llama.ToOutput)
	for r := range d.x.Rows {
		kernel.RMSNorm(d.normed.Row(r), d.x.Row(r), l.mlpNorm, eps)
	}
	kernel.Gemm(d.gateUp, d.normed, &l.gateUp, false, d.workers)
	llama.AddBias(d.gateUp, l.bias[llama.ToGateUp])
	d.applyAddons(d.gateUp, d.normed, i, llama.ToGateUp)
	n := d.config.IntermediateSize
	for r := range d.act.Rows {
		row := d.gateUp.Row(r)
		kernel.SwiGLU(d.act.Row(r), row[:n], row[n:])
	}
	kernel.Gemm(d.x, d.act, &l.down, true, d.workers)
	llama.AddBias(d.x, l.bias[llama.ToDown])
	d.applyAddons(d.x, d.act, i, llama.ToDown)
}

// writeKV normalizes the heads of queries and keys, if the model has head norms, applies the rotary
// embedding, and writes keys and values to the KV caches.
func (d *decoder) writeKV(layer int, spans []span) {
	q, kv := d.config.Heads*d.config.HeadDim, d.config.KVHeads*d.config.HeadDim
	row := 0
	for _, s := range spans {
		for i := range s.tokens {
			values := d.qkv.Row(row)
			position := s.cache.length() + i
			d.config.NormalizeHeads(values[:q+kv], d.layers[layer].qNorm, d.layers[layer].kNorm, nil)
			d.rope.Turn(values[:q+kv], position)
			s.cache.put(layer, position, values[q:q+kv], values[q+kv:])
			row++
		}
	}
}

// outputRows returns the number of last tokens of the span whose logits are requested.
func (s *span) outputRows() int {
	switch {
	case s.embeds:
		return 0
	case s.all:
		return len(s.tokens)
	case s.last:
		return 1
	}
	return 0
}

func (d *decoder) computeLogits(spans []span) kernel.Matrix {
	row, n, pooled := 0, 0, 0
	for _, s := range spans {
		row += len(s.tokens)
		for back := s.pooled; back > 0; back-- {
			kernel.RMSNorm(d.hidden.Row(pooled), d.x.Row(row-back), d.norm, float32(d.config.NormEps))
			pooled++
		}
		for back := s.outputRows(); back > 0; back-- {
			kernel.RMSNorm(d.lastHidden.Row(n), d.x.Row(row-back), d.norm, float32(d.config.NormEps))
			n++
		}
	}
	logits := d.logits.RowRange(0, n)
	kernel.Gemm(logits, d.lastHidden.RowRange(0, n), d.head, false, d.workers)
	return logits
}

// resizeBuffers resizes the buffers for a step with a number of rows. outputs is the number of rows
// that need logits.
func (d *decoder) resizeBuffers(rows, outputs int) {
	c := &d.config
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	resize(&d.x, rows, c.HiddenSize)
	resize(&d.normed, rows, c.HiddenSize)
	resize(&d.qkv, rows, q+2*kv)
	resize(&d.attn, rows, q)
	resize(&d.gateUp, rows, 2*c.IntermediateSize)
	resize(&d.act, rows, c.IntermediateSize)
	resize(&d.lastHidden, outputs, c.HiddenSize)
	resize(&d.logits, outputs, c.VocabSize)
}

func resize(m *kernel.Matrix, rows, cols int) {
	if cap(m.Data) < rows*cols {
		m.Data = make([]float32, rows*cols)
	}
	*m = kernel.Matrix{Data: m.Data[:rows*cols], Rows: rows, Cols: cols, Stride: cols}
}

const (
	// blockRows is the number of rows of queries whose scores are in memory at a time.
	blockRows = 64
	// parallelThreshold is the number of multiplications below which attention runs on one
	// goroutine.
	parallelThreshold = 1 << 20
)

// attend computes causal attention of the queries in d.qkv over the KV caches, and writes the
// result to d.attn. Goroutines take one span and one KV head (or PanelsAtOnce KV heads) at a time.
func (d *decoder) attend(layer int, spans []span) {
	c, workers, work := &d.config, d.workers, 0
	for _, s := range spans {
		work += 2 * len(s.tokens) * (s.cache.length() + len(s.tokens)) * c.Heads * c.HeadDim
	}
	if work < parallelThreshold {
		workers = 1
	}
	at := 1
	if c.Heads == c.KVHeads && c.Heads%kernel.PanelsAtOnce == 0 {
		at = kernel.PanelsAtOnce
	}
	items := c.KVHeads / at
	kernel.Each(len(spans)*items, workers, func(worker, i int) {
		s, row, head := spans[i/items], d.starts[i/items], i%items*at
		if at > 1 && len(s.tokens) == 1 {
			d.attendHeads(layer, head, s, row, &d.scores[worker])
			return
		}
		for end := head + at; head < end; head++ {
			d.attendSpan(layer, head, s, row, &d.scores[worker])
		}
	})
}

// attendHeads computes attention of a span of one token for PanelsAtOnce query heads, each of which
// has its own KV head.
func (d *decoder) attendHeads(layer, head int, s span, row int, scores *kernel.Matrix) {
	c := &d.config
	lo, hi := head*c.HeadDim, (head+kernel.PanelsAtOnce)*c.HeadDim
	heads := func(of kernel.Matrix) kernel.Matrix {
		return kernel.Matrix{Data: of.Row(row)[lo:hi], Rows: kernel.PanelsAtOnce, Cols: c.HeadDim, Stride: c.HeadDim}
	}
	resize(scores, kernel.PanelsAtOnce, s.cache.length()+1)
	s.cache.scoreHeads(layer, head, heads(d.qkv), *scores)
	for i := range scores.Rows {
		d.probabilities(scores.Row(i))
	}
	s.cache.sumHeads(layer, head, *scores, heads(d.attn))
}

// attendSpan computes attention of a span for one KV head. row is the first row of the span. The
// queries that share the KV head are adjacent in a row.
func (d *decoder) attendSpan(layer, head int, s span, row int, scores *kernel.Matrix) {
	c, group := &d.config, d.config.Heads/d.config.KVHeads
	lo, hi := head*group*c.HeadDim, (head+1)*group*c.HeadDim
	if len(s.tokens) == 1 {
		queries := kernel.Matrix{Data: d.qkv.Row(row)[lo:hi], Rows: group, Cols: c.HeadDim, Stride: c.HeadDim}
		out := kernel.Matrix{Data: d.attn.Row(row)[lo:hi], Rows: group, Cols: c.HeadDim, Stride: c.HeadDim}
		d.attendRows(layer, head, s.cache, queries, out, s.cache.length()+1, 0, scores)
		return
	}
	for from := 0; from < len(s.tokens); from += blockRows {
		to := min(from+blockRows, len(s.tokens))
		for ; lo < hi; lo += c.HeadDim {
			queries := d.qkv.RowRange(row+from, row+to).ColRange(lo, lo+c.HeadDim)
			out := d.attn.RowRange(row+from, row+to).ColRange(lo, lo+c.HeadDim)
			d.attendRows(layer, head, s.cache, queries, out, s.cache.length()+from+1, 1, scores)
		}
		lo = head * group * c.HeadDim
	}
}

// attendRows computes attention of a block of query rows. The first row attends to visible
// positions, and each further row to step more positions than the row before. Masked positions get
// the weight 0, which does not change the sums.
func (d *decoder) attendRows(
	layer, head int, from *cache, queries, out kernel.Matrix, visible, step int, scores *kernel.Matrix,
) {
	resize(scores, queries.Rows, visible+step*(queries.Rows-1))
	from.scoreKeys(layer, head, queries, *scores)
	for i := range queries.Rows {
		row := scores.Row(i)
		d.probabilities(row[:visible+step*i])
		clear(row[visible+step*i:])
	}
	from.sumValues(layer, head, *scores, out)
}

// probabilities replaces scores by softmax(scores/√d).
func (d *decoder) probabilities(scores []float32) {
	kernel.Scale(float32(1/math.Sqrt(float64(d.config.HeadDim))), scores)
	kernel.Softmax(scores)
}
