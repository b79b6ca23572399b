package serve

import (
	"slices"
	"time"

	"anneal/engines"
	"anneal/engines/embedded/kernel"
)

// A scheduler owns a model's decoder and KV caches. It runs in one goroutine.
type scheduler struct {
	model   *model
	decoder *decoder
	cost    costModel
	// draftLen returns the number of draft tokens to verify. It is costModel.draftTokens, except in
	// tests.
	draftLen func(rows int, chance float64, limit int) int
	// modelDraftLen returns the number of tokens to draft with the draft model. It is
	// costModel.draftTokensAt, except in tests.
	modelDraftLen func(rows int, chance float64, limit int, each time.Duration) int
	slots         int
	chunk         int // maximum number of prompt tokens in a step
	pool          pool
	running       []*request // running requests, in order of arrival
	batch         []batchItem
	spans         []span
}

// A batchItem is the part of a step that belongs to one request.
type batchItem struct {
	request *request
	first   int // position of the span's first token in the sequence
	span    span
}

// newScheduler returns the scheduler of model m. chunk is the maximum number of prompt tokens in a
// step, and blocks the maximum number of blocks of the KV caches.
func newScheduler(m *model, d *decoder, chunk, blocks int) *scheduler {
	s := &scheduler{
		model: m, decoder: d, slots: m.info.Slots, chunk: chunk, pool: pool{config: &d.config, maxBlocks: blocks},
	}
	s.draftLen, s.modelDraftLen = s.cost.draftTokens, s.cost.draftTokensAt
	return s
}

// run executes steps while there are running requests, and otherwise waits for a request.
func (s *scheduler) run() {
	defer close(s.model.done)
	defer s.stop()
	for {
		s.removeEnded()
		if !s.admit() {
			return
		}
		s.reportLoad()
		if len(s.running) == 0 {
			<-s.model.wake
			continue
		}
		s.step()
	}
}

// step executes one step of the running requests. A panic fails only the request that causes it if
// that is known, otherwise all running requests, because the process also serves other models.
func (s *scheduler) step() {
	defer func() {
		if cause := recover(); cause != nil {
			for _, r := range s.running {
				r.fail(engines.ErrPanicked(cause))
			}
		}
	}()
	s.plan()
	began, rows, row, pooled := time.Now(), 0, 0, 0
	for _, one := range s.spans {
		rows += len(one.tokens)
	}
	logits, err := s.compute(s.spans)
	if err != nil {
		s.stepAlone()
		return
	}
	s.cost.observe(rows, time.Since(began))
	for _, t := range s.batch {
		n := t.span.outputRows()
		s.finish(t, logits.RowRange(row, row+n), s.decoder.hidden.RowRange(pooled, pooled+t.span.pooled))
		row, pooled = row+n, pooled+t.span.pooled
	}
}

// compute is decoder.step. It returns an error if the decoder panics.
func (s *scheduler) compute(spans []span) (logits kernel.Matrix, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = engines.ErrPanicked(cause)
		}
	}()
	return s.decoder.step(spans), nil
}

// stepAlone repeats a step that has panicked for one item at a time, and fails the requests whose
// items panic again.
func (s *scheduler) stepAlone() {
	for _, t := range s.batch {
		t.span.cache.truncate(t.first)
	}
	for _, t := range s.batch {
		logits, err := s.compute([]span{t.span})
		if err != nil {
			t.span.cache.truncate(t.first)
			t.request.fail(err)
			continue
		}
		s.finish(t, logits, s.decoder.hidden)
	}
}

// finish processes the results of an item. If that panics, it fails the request.
func (s *scheduler) finish(t batchItem, logits, hidden kernel.Matrix) {
	defer func() {
		if cause := recover(); cause != nil {
			t.request.fail(engines.ErrPanicked(cause))
		}
	}()
	if t.span.embeds {
		s.embed(t, hidden)
	} else {
		s.advance(t, logits)
	}
	s.pool.keep(t.request)
}

// stop closes the model if the scheduler itself has panicked, so that calls do not wait for it. It
// recovers only from panics of a scheduler for samples, because its process has the state of
// training runs. A process that serves deployments crashes and is restarted.
func (s *scheduler) stop() {
	m := s.model
	if m.samples == nil {
		return
	}
	cause := recover()
	if cause == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	failure := engines.ErrPanicked(cause)
	m.closed, m.panicked = true, failure
	for _, r := range s.running {
		r.fail(failure)
	}
	for _, r := range m.waiting {
		r.fail(errClosed())
	}
	m.waiting = nil
}

// removeEnded removes requests that have ended, or whose client has disconnected.
func (s *scheduler) removeEnded() {
	s.running = slices.DeleteFunc(s.running, func(r *request) bool {
		if !r.ended && !r.canceled() {
			return false
		}
		s.pool.release(r.cache)
		if s.model.drafts != nil {
			s.model.drafts.release(r)
		}
		return true
	})
}

// admit starts waiting requests in order of arrival. It returns false when the model is closed.
func (s *scheduler) admit() bool {
	m := s.model
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		for _, r := range append(s.running, m.waiting...) {
			r.fail(errClosed())
		}
		m.waiting = nil
		return false
	}
	for len(s.running) < s.slots {
		if len(m.waiting) == 0 && !m.samples.enqueue(m) {
			break
		}
		r := m.waiting[0]
		if r.canceled() {
			m.waiting = slices.Delete(m.waiting, 0, 1)
			continue
		}
		if s.pool.admit(r) == nil {
			break
		}
		m.waiting = slices.Delete(m.waiting, 0, 1)
		s.running = append(s.running, r)
		r.admit()
	}
	return true
}

// scoredLogits is the maximum number of logits of prompt tokens in memory at a time.
const scoredLogits = 4 << 20

// plan builds the batch of the next step: up to chunk prompt tokens (chunked prefill), and the last
// token and draft tokens of each request in decode.
func (s *scheduler) plan() {
	s.batch, s.spans = s.batch[:0], s.spans[:0]
	var prefilling, decoding []*request
	for _, r := range s.running {
		if r.read < len(r.prompt) {
			prefilling = append(prefilling, r)
		} else {
			decoding = append(decoding, r)
		}
	}
	s.schedulePrefill(prefilling)
	s.scheduleDecode(decoding)
	sortByAddon(s.batch)
	for _, t := range s.batch {
		s.pool.extend(t.span.cache, len(t.span.tokens))
		s.spans = append(s.spans, t.span)
	}
}

// scheduleDecode adds the last token of each request in decode to the batch, and as many draft
// tokens as the cost model allows for a batch of this size.
func (s *scheduler) scheduleDecode(decoding []*request) {
	rows := len(decoding)
	for _, t := range s.batch {
		rows += len(t.span.tokens)
	}
	for _, r := range decoding {
		if r.drafter != nil {
			r.drafter.propose(r.limit - r.generated - 1)
		}
	}
	if s.model.drafts != nil {
		s.proposeWithModel(decoding, rows)
	}
	for _, r := range decoding {
		tokens := []int{r.last}
		if d := r.drafter; d != nil {
			draft := d.draft[:s.draftLen(rows, d.acceptance, len(d.draft))]
			d.submit(len(draft))
			tokens = append(tokens, draft...)
			rows += len(draft)
		}
		next := span{cache: r.cache, tokens: tokens, last: true, all: len(tokens) > 1, addon: r.addon}
		s.batch = append(s.batch, batchItem{r, r.cache.length(), next})
	}
}

// schedulePrefill distributes the prompt tokens of a step. The oldest prompt gets half of them, so
// that it always progresses. The prompts with the fewest remaining tokens get the other half, so
// that they wait less. A request does not take part if another one is computing the block that both
// need next.
func (s *scheduler) schedulePrefill(prefilling []*request) {
	if len(prefilling) == 0 {
		return
	}
	computing := map[blockKey]bool{}
	prefilling = slices.DeleteFunc(prefilling, func(r *request) bool {
		s.pool.match(r)
		next := r.nextKey()
		wait := computing[next] && r.read%blockTokens == 0 && r.read < r.reusable()
		computing[next] = true
		return wait
	})
	oldest, others := prefilling[0], prefilling[1:]
	first := min(len(oldest.prompt)-oldest.read, max(s.chunk/2, 1))
	left := s.chunk - first
	slices.SortStableFunc(others, func(a, b *request) int { return len(a.prompt) - a.read - (len(b.prompt) - b.read) })
	for _, r := range others {
		left -= s.prefillChunk(r, left)
	}
	s.prefillChunk(oldest, max(first+left, 1))
}

// prefillChunk adds at most n tokens of a prompt to the batch, and returns their number. Unless the
// prompt ends, the tokens end at the last block boundary that they reach.
func (s *scheduler) prefillChunk(r *request, n int) int {
	n = min(n, len(r.prompt)-r.read)
	if r.scored() {
		n = min(n, max(scoredLogits/s.model.vocab, 1))
	}
	if over := (r.read + n) % blockTokens; r.read+n < len(r.prompt) && over < n {
		n -= over
	}
	if n <= 0 {
		return 0
	}
	at := r.read
	r.read += n
	last := r.read == len(r.prompt)
	s.batch = append(s.batch, batchItem{
		r, at,
		span{cache: r.cache, tokens: r.prompt[at:r.read], last: last, all: r.scored(), embeds: r.pooler != nil,
			pooled: r.poolRows(n, last), addon: r.addon},
	})
	return n
}

// advance processes the logits of an item: it records the log-probabilities of the prompt, and
// samples a token after the last position.
func (s *scheduler) advance(t batchItem, logits kernel.Matrix) {
	r := t.request
	if t.first >= len(r.prompt) {
		s.verify(t, logits)
		return
	}
	if t.span.all {
		r.score(t.first, logits)
	}
	if !t.span.last {
		return
	}
	if r.sample != nil {
		r.sample.begin(r)
	} else {
		r.begin()
	}
	if r.limit == 0 {
		r.put(engines.Chunk{Finish: engines.FinishLength})
		return
	}
	s.draw(r, logits.Row(logits.Rows-1))
}

// verify samples a token after each position of an item, until a sampled token differs from the
// draft token. It removes the positions after that from the KV cache.
func (s *scheduler) verify(t batchItem, logits kernel.Matrix) {
	r, drawn := t.request, 0
	for drawn == 0 || drawn < logits.Rows && !r.ended && t.span.tokens[drawn] == r.last {
		s.draw(r, logits.Row(drawn))
		drawn++
	}
	r.cache.truncate(t.first + drawn)
}

// draw samples the next token of a request, and emits the text that the token completes.
func (s *scheduler) draw(r *request, logits []float32) {
	if r.sample != nil {
		s.drawSample(r, logits)
		return
	}
	token, p, err := r.sampler.next(logits)
	if err != nil {
		r.fail(err)
		return
	}
	r.generated++
	r.last = token
	if r.drafter != nil {
		r.drafter.observe(token)
	}
	if r.output.logprobs {
		one := r.output.logprob(token, logits, p)
		if r.sampler.unfiltered() {
			one.Sampling = one.Logprob // without the rounding errors of p
		}
		r.text.addLogprob(one)
	}
	chunk, stopped := r.text.add(token)
	switch {
	case stopped:
		chunk.Finish = engines.FinishStop
	case !r.ignoreEOS && slices.Contains(s.model.stopTokens, token):
		chunk = s.last(r, chunk, engines.FinishStop)
	case r.sampler.constraint.complete():
		chunk = s.last(r, chunk, engines.FinishStop)
	case r.generated >= r.limit:
		chunk = s.last(r, chunk, engines.FinishLength)
	}
	r.put(chunk)
}

// last returns chunk, the last one of a completion, with the withheld text and a finish reason:
// FinishStop if the withheld text completes a stop sequence, otherwise why.
func (s *scheduler) last(r *request, chunk engines.Chunk, why string) engines.Chunk {
	rest, stopped := r.text.flush()
	chunk.Text += rest.Text
	chunk.Raw += rest.Raw
	chunk.Tokens = append(chunk.Tokens, rest.Tokens...)
	chunk.Logprobs = append(chunk.Logprobs, rest.Logprobs...)
	chunk.Finish = why
	if stopped {
		chunk.Finish = engines.FinishStop
	}
	return chunk
}
