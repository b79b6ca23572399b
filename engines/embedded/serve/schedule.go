package serve

import (
	"slices"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/kernel"
)

// A schedule is the goroutine that owns a model's decoder and caches.
type schedule struct {
	model   *model
	decoder *decoder
	pace    pace
	worth   func(rows int, chance float64, most int) int // tokens of a guess that are read: pace.guesses
	slots   int
	chunk   int // tokens of prompts in one step
	pool    pool
	running []*request // in the order of their arrival
	turns   []turn
	spans   []span
}

// A turn is a request's part of a step.
type turn struct {
	request *request
	at      int // position of the span's first token
	span    span
}

// run takes steps while there is something to do, and waits when there is not.
func (s *schedule) run() {
	defer close(s.model.done)
	for {
		s.drop()
		if !s.admit() {
			return
		}
		if len(s.running) == 0 {
			<-s.model.wake
			continue
		}
		s.step()
	}
}

// step takes one step for all that are running. One that breaks down fails
// them: the process has other models to serve.
func (s *schedule) step() {
	defer func() {
		if broke := recover(); broke != nil {
			for _, r := range s.running {
				r.fail(domain.Errorf(domain.Internal, "the engine broke down while answering: ask again, and tell the operator if it happens again (%v)", broke))
			}
		}
	}()
	s.plan()
	began, rows, row := time.Now(), 0, 0
	for _, one := range s.spans {
		rows += len(one.tokens)
	}
	logits := s.decoder.step(s.spans)
	s.pace.observe(rows, time.Since(began))
	for _, t := range s.turns {
		n := t.span.asked()
		s.advance(t, logits.RowRange(row, row+n))
		s.pool.keep(t.request)
		row += n
	}
}

// drop forgets requests that ended or that nobody waits for.
func (s *schedule) drop() {
	s.running = slices.DeleteFunc(s.running, func(r *request) bool {
		if !r.ended && !r.gone() {
			return false
		}
		s.pool.release(r.cache)
		return true
	})
}

// admit gives slots to waiting requests in their order, and tells whether the
// model is still open.
func (s *schedule) admit() bool {
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
	for len(m.waiting) > 0 && len(s.running) < s.slots {
		r := m.waiting[0]
		if r.gone() {
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

// scoredLogits bounds the logits of a prompt that are in memory at once.
const scoredLogits = 4 << 20

// plan makes the spans of the next step: up to chunk tokens of prompts, and for
// every request that generates its last token, with what it may go on with.
func (s *schedule) plan() {
	s.turns, s.spans = s.turns[:0], s.spans[:0]
	var reading, writing []*request
	for _, r := range s.running {
		if r.read < len(r.prompt) {
			reading = append(reading, r)
		} else {
			writing = append(writing, r)
		}
	}
	s.read(reading)
	s.write(writing)
	together(s.turns)
	for _, t := range s.turns {
		s.pool.extend(t.span.cache, len(t.span.tokens))
		s.spans = append(s.spans, t.span)
	}
}

// write gives every request that generates its place in a step, and as many
// guesses as pay beside all else that the step reads.
func (s *schedule) write(writing []*request) {
	rows := len(writing)
	for _, t := range s.turns {
		rows += len(t.span.tokens)
	}
	for _, r := range writing {
		tokens := []int{r.last}
		if g := r.guesser; g != nil {
			guess := g.guess(r.limit - r.generated - 1)
			guess = guess[:s.worth(rows, g.chance, len(guess))]
			g.read(len(guess))
			tokens = append(tokens, guess...)
			rows += len(guess)
		}
		one := span{cache: r.cache, tokens: tokens, wanted: true, all: len(tokens) > 1, addon: r.addon}
		s.turns = append(s.turns, turn{r, r.cache.length(), one})
	}
}

// read deals out a step's tokens of prompts. Half of them are the oldest
// prompt's, so that it is read; the others go to those that need least, so that
// they need not wait for it. What another prompt has in common with one that is
// being read is left to that one.
func (s *schedule) read(reading []*request) {
	if len(reading) == 0 {
		return
	}
	begun := map[origin]bool{}
	reading = slices.DeleteFunc(reading, func(r *request) bool {
		s.pool.match(r)
		next := r.next()
		wait := begun[next] && r.read%blockTokens == 0 && r.read < r.reusable()
		begun[next] = true
		return wait
	})
	oldest, others := reading[0], reading[1:]
	first := min(len(oldest.prompt)-oldest.read, max(s.chunk/2, 1))
	room := s.chunk - first
	slices.SortStableFunc(others, func(a, b *request) int { return len(a.prompt) - a.read - (len(b.prompt) - b.read) })
	for _, r := range others {
		room -= s.piece(r, room)
	}
	s.piece(oldest, max(first+room, 1))
}

// piece adds a turn that reads some n tokens of a prompt, and answers how many.
// Unless it is the last it ends with a block, if it reaches that far.
func (s *schedule) piece(r *request, n int) int {
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
	s.turns = append(s.turns, turn{r, at, span{cache: r.cache, tokens: r.prompt[at:r.read], wanted: r.read == len(r.prompt), all: r.scored(), addon: r.addon}})
	return n
}

// advance takes in the logits that a turn asked for: those of a prompt are
// told, from the last the next token is drawn.
func (s *schedule) advance(t turn, logits kernel.Matrix) {
	r := t.request
	if t.at >= len(r.prompt) {
		s.accept(t, logits)
		return
	}
	if t.span.all {
		r.score(t.at, logits)
	}
	if !t.span.wanted {
		return
	}
	r.begin()
	if r.limit == 0 {
		r.put(engines.Chunk{Finish: engines.FinishLength})
		return
	}
	s.draw(r, logits.Row(logits.Rows-1))
}

// accept draws a token after each one that a turn read, as long as those that
// were guessed are the ones that are drawn; the rest was read in vain.
func (s *schedule) accept(t turn, logits kernel.Matrix) {
	r, drawn := t.request, 0
	for drawn == 0 || drawn < logits.Rows && !r.ended && t.span.tokens[drawn] == r.last {
		s.draw(r, logits.Row(drawn))
		drawn++
	}
	r.cache.forget(t.at + drawn)
}

// draw draws a request's next token and hands over what it completes.
func (s *schedule) draw(r *request, logits []float32) {
	token, p, err := r.sampler.next(logits)
	if err != nil {
		r.fail(err)
		return
	}
	r.generated++
	r.last = token
	if r.guesser != nil {
		r.guesser.learn(token)
	}
	if r.told.logprobs {
		r.text.tell(r.told.logprob(token, logits, p))
	}
	piece, stopped := r.text.add(token)
	switch {
	case stopped:
		piece.Finish = engines.FinishStop
	case !r.ignoreEnd && slices.Contains(s.model.ends, token):
		piece = s.finish(r, piece, engines.FinishStop)
	case r.sampler.constraint.complete():
		piece = s.finish(r, piece, engines.FinishStop)
	case r.generated >= r.limit:
		piece = s.finish(r, piece, engines.FinishLength)
	}
	r.put(piece)
}

// finish adds what was held back to the last piece.
func (s *schedule) finish(r *request, piece engines.Chunk, why string) engines.Chunk {
	rest, stopped := r.text.end()
	piece.Text += rest.Text
	piece.Raw += rest.Raw
	piece.Tokens = append(piece.Tokens, rest.Tokens...)
	piece.Logprobs = append(piece.Logprobs, rest.Logprobs...)
	piece.Finish = why
	if stopped {
		piece.Finish = engines.FinishStop
	}
	return piece
}
