package pool

import (
	"anneal/engines"
	"anneal/engines/embedded/llama"
)

// A worker is a goroutine that computes passes.
type worker struct {
	pool  *Pool
	pass  *llama.Pass
	batch llama.SegmentBatch
}

// run computes passes until the pool is closed.
func (w *worker) run() {
	defer func() {
		if cause := recover(); cause != nil {
			w.pool.abort(engines.ErrPanicked(cause))
		}
	}()
	var chunks []chunk
	for {
		if chunks = w.pool.take(chunks[:0]); len(chunks) == 0 {
			return
		}
		w.process(chunks)
		clear(chunks)
	}
}

// process computes a pass. If that panics, it computes each chunk again alone, so that only the
// call at fault fails. The results are bit-identical, and gradients get what the first pass has not
// added.
func (w *worker) process(chunks []chunk) {
	tokens := 0
	for _, one := range chunks {
		for _, d := range one.call.pass.Data[one.lo:one.hi] {
			tokens += len(d.Tokens)
		}
	}
	defer w.pool.finish(chunks, tokens)
	joint := w.try(chunks)
	if joint == nil {
		return
	}
	for i, one := range chunks {
		err := joint
		damaged := one.call.backward && one.call.run.order.Partial(one.turn)
		if len(chunks) > 1 && !damaged {
			err = w.try(chunks[i : i+1])
		}
		if err != nil {
			w.pool.fail(one.call, err)
		}
	}
}

// try computes a pass, and returns an error if that panics.
func (w *worker) try(chunks []chunk) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = engines.ErrPanicked(cause)
			w.pass, w.batch = llama.NewPass(w.pool.net), llama.SegmentBatch{}
		}
	}()
	w.compute(chunks)
	tokens, targets := w.batch.Len()
	c := &w.pool.net.Weights.Config
	if c.SegmentBytes(max(tokens, targets/8), engines.MaxTrainRank) > keptBytes(c) {
		w.pass, w.batch = llama.NewPass(w.pool.net), llama.SegmentBatch{}
	}
	return nil
}

func (w *worker) compute(chunks []chunk) {
	w.batch.Reset()
	for _, one := range chunks {
		c, r := one.call, one.call.run
		if c.backward {
			w.batch.Begin(r.adapter, r.gradient, r.order, one.turn)
		} else {
			w.batch.Begin(r.adapter, nil, nil, 0)
		}
		for i := one.lo; i < one.hi; i++ {
			d := &c.pass.Data[i]
			w.batch.Add(d.Tokens, d.Targets)
			c.losses[i] = 0
			c.outputs[i].Logprobs = make([]float32, len(d.Targets))
			if c.pass.Loss == engines.LossCrossEntropy {
				c.outputs[i].Losses = make([]float32, len(d.Targets))
			}
		}
	}
	backward, at := chunks[0].call.backward, cursor{chunks: chunks, datum: chunks[0].lo}
	w.pass.ForwardSegments(&w.batch, backward, at.losses)
	if backward {
		w.pass.BackwardSegments()
	}
}

// A cursor is a position in the targets of chunks.
type cursor struct {
	chunks []chunk // the current chunk, and those that follow
	datum  int     // index of the current datum
	target int     // index of the next target
}

// losses implements llama.TargetLoss. It writes the losses and log-probabilities of the next
// targets to their calls.
func (at *cursor) losses(logp, grads []float32) {
	for len(logp) > 0 {
		c := at.chunks[0].call
		d, out := &c.pass.Data[at.datum], &c.outputs[at.datum]
		lo := at.target
		n := copy(out.Logprobs[lo:], logp)
		var values []float32
		if out.Losses != nil {
			values = out.Losses[lo : lo+n]
		}
		c.losses[at.datum] = c.loss.apply(c.losses[at.datum], d, lo, logp[:n], grads[:n], values)
		logp, grads, at.target = logp[n:], grads[n:], lo+n
		if at.target < len(d.Targets) {
			return
		}
		if at.datum, at.target = at.datum+1, 0; at.datum == at.chunks[0].hi {
			if at.chunks = at.chunks[1:]; len(at.chunks) > 0 {
				at.datum = at.chunks[0].lo
			}
		}
	}
}
