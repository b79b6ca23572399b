package serve

import (
	"math"
	"sync"
	"sync/atomic"

	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
)

// A decoder computes steps of one model. Every row of a step is reduced in an
// order that depends on the row alone, so a token's logits have the same bits
// alone, in a batch, and after a prompt that was read in pieces; they are also
// those of llama.Pass. It is used by one goroutine.
type decoder struct {
	config  llama.Config
	embed   *kernel.Packed // of [vocab, hidden]
	layers  []packedLayer
	norm    []float32
	head    *kernel.Packed // embed when tied
	rope    *llama.Rope
	workers int

	x, normed, qkv, attn, gateUp, act kernel.Matrix   // room for the rows of a step
	last, logits                      kernel.Matrix   // room for the rows that are asked for
	starts                            []int           // the first row of each span
	scores                            []kernel.Matrix // of each worker
	stretches                         []stretch       // the rows of a step that addons change
	low                               kernel.Matrix   // room for an addon
}

// A span is the next tokens of one sequence; a step takes several spans.
type span struct {
	cache  *cache
	tokens []int
	wanted bool   // the logits after the last token are asked for
	all    bool   // … after every token
	addon  *addon // that reads them; nil is the model itself
}

// step reads the spans' tokens into their caches and answers the logits after
// the tokens that are asked for, in order: [asked, vocab]. They stay
// valid until the next step.
func (d *decoder) step(spans []span) kernel.Matrix {
	rows, asked := 0, 0
	d.starts = d.starts[:0]
	for _, s := range spans {
		d.starts = append(d.starts, rows)
		rows += len(s.tokens)
		asked += s.asked()
	}
	d.reserve(rows, asked)
	d.stretch(spans)
	row := 0
	for _, s := range spans {
		for _, token := range s.tokens {
			d.embed.RowT(d.x.Row(row), token)
			row++
		}
	}
	for i := range d.layers {
		d.layer(i, spans)
	}
	for _, s := range spans {
		s.cache.text = append(s.cache.text, s.tokens...)
	}
	return d.score(spans)
}

// layer takes all rows of d.x through layer i.
func (d *decoder) layer(i int, spans []span) {
	l, eps := &d.layers[i], float32(d.config.NormEps)
	for r := range d.x.Rows {
		kernel.RMSNorm(d.normed.Row(r), d.x.Row(r), l.attnNorm, eps)
	}
	kernel.Gemm(d.qkv, d.normed, &l.qkv, false, d.workers)
	llama.AddBias(d.qkv, l.bias[llama.ToQueryKeyValue])
	d.adapt(d.qkv, d.normed, i, llama.ToQueryKeyValue)
	d.remember(i, spans)
	d.attend(i, spans)
	kernel.Gemm(d.x, d.attn, &l.o, true, d.workers)
	llama.AddBias(d.x, l.bias[llama.ToOutput])
	d.adapt(d.x, d.attn, i, llama.ToOutput)
	for r := range d.x.Rows {
		kernel.RMSNorm(d.normed.Row(r), d.x.Row(r), l.mlpNorm, eps)
	}
	kernel.Gemm(d.gateUp, d.normed, &l.gateUp, false, d.workers)
	llama.AddBias(d.gateUp, l.bias[llama.ToGateUp])
	d.adapt(d.gateUp, d.normed, i, llama.ToGateUp)
	n := d.config.IntermediateSize
	for r := range d.act.Rows {
		row := d.gateUp.Row(r)
		kernel.SwiGLU(d.act.Row(r), row[:n], row[n:])
	}
	kernel.Gemm(d.x, d.act, &l.down, true, d.workers)
	llama.AddBias(d.x, l.bias[llama.ToDown])
	d.adapt(d.x, d.act, i, llama.ToDown)
}

// remember normalises queries and keys where the model does, turns them to
// their positions and puts keys and values into the caches.
func (d *decoder) remember(layer int, spans []span) {
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

// asked is how many of the span's last tokens have their logits asked for.
func (s *span) asked() int {
	switch {
	case s.all:
		return len(s.tokens)
	case s.wanted:
		return 1
	}
	return 0
}

// score computes the logits of the rows that are asked for.
func (d *decoder) score(spans []span) kernel.Matrix {
	row, n := 0, 0
	for _, s := range spans {
		row += len(s.tokens)
		for back := s.asked(); back > 0; back-- {
			kernel.RMSNorm(d.last.Row(n), d.x.Row(row-back), d.norm, float32(d.config.NormEps))
			n++
		}
	}
	logits := d.logits.RowRange(0, n)
	kernel.Gemm(logits, d.last.RowRange(0, n), d.head, false, d.workers)
	return logits
}

// reserve makes the matrices of a step as high as it needs.
func (d *decoder) reserve(rows, asked int) {
	c := &d.config
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	resize(&d.x, rows, c.HiddenSize)
	resize(&d.normed, rows, c.HiddenSize)
	resize(&d.qkv, rows, q+2*kv)
	resize(&d.attn, rows, q)
	resize(&d.gateUp, rows, 2*c.IntermediateSize)
	resize(&d.act, rows, c.IntermediateSize)
	resize(&d.last, asked, c.HiddenSize)
	resize(&d.logits, asked, c.VocabSize)
}

func resize(m *kernel.Matrix, rows, cols int) {
	if cap(m.Data) < rows*cols {
		m.Data = make([]float32, rows*cols)
	}
	*m = kernel.Matrix{Data: m.Data[:rows*cols], Rows: rows, Cols: cols, Stride: cols}
}

const (
	// blockRows bounds the rows whose scores are in memory at once.
	blockRows = 64
	// alone is the number of multiplications below which attention is not
	// worth a second goroutine.
	alone = 1 << 20
)

// attend computes causal attention of d.qkv's queries over the caches into
// d.attn. An item of work is one span and one head of keys and values, or some.
func (d *decoder) attend(layer int, spans []span) {
	c, workers, work := &d.config, d.workers, 0
	for _, s := range spans {
		work += 2 * len(s.tokens) * (s.cache.length() + len(s.tokens)) * c.Heads * c.HeadDim
	}
	if work < alone {
		workers = 1
	}
	at := 1
	if c.Heads == c.KVHeads && c.Heads%kernel.PanelsAtOnce == 0 {
		at = kernel.PanelsAtOnce
	}
	items := c.KVHeads / at
	each(len(spans)*items, workers, func(worker, i int) {
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

// attendHeads takes the query of one position by some heads at once, each of
// which has keys and values of its own.
func (d *decoder) attendHeads(layer, head int, s span, row int, scores *kernel.Matrix) {
	c := &d.config
	lo, hi := head*c.HeadDim, (head+kernel.PanelsAtOnce)*c.HeadDim
	heads := func(of kernel.Matrix) kernel.Matrix {
		return kernel.Matrix{Data: of.Row(row)[lo:hi], Rows: kernel.PanelsAtOnce, Cols: c.HeadDim, Stride: c.HeadDim}
	}
	resize(scores, kernel.PanelsAtOnce, s.cache.length()+1)
	s.cache.compareHeads(layer, head, heads(d.qkv), *scores)
	for i := range scores.Rows {
		d.probabilities(scores.Row(i))
	}
	s.cache.sumHeads(layer, head, *scores, heads(d.attn))
}

// attendSpan takes the queries of one span, which begins at a row, that read one
// head of keys and values. Those of one position lie together.
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

// attendRows takes queries of which the first sees so many positions, and each
// after it some more. What one does not see has weight 0, which leaves its sums
// as they were.
func (d *decoder) attendRows(layer, head int, from *cache, queries, out kernel.Matrix, seen, more int, scores *kernel.Matrix) {
	resize(scores, queries.Rows, seen+more*(queries.Rows-1))
	from.compare(layer, head, queries, *scores)
	for i := range queries.Rows {
		row := scores.Row(i)
		d.probabilities(row[:seen+more*i])
		clear(row[seen+more*i:])
	}
	from.sum(layer, head, *scores, out)
}

// probabilities turns products of a query with keys into softmax(scores/√d).
func (d *decoder) probabilities(scores []float32) {
	kernel.Scale(float32(1/math.Sqrt(float64(d.config.HeadDim))), scores)
	kernel.Softmax(scores)
}

// each runs do(worker, i) for 0 to n-1 on at most workers goroutines, the
// caller's among them, and waits for them.
func each(n, workers int, do func(worker, i int)) {
	var next atomic.Int64
	run := func(worker int) {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			do(worker, i)
		}
	}
	var others sync.WaitGroup
	for worker := 1; worker < min(workers, n); worker++ {
		others.Go(func() { run(worker) })
	}
	run(0)
	others.Wait()
}
