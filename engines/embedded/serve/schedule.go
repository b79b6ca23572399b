package serve

import (
	"slices"

	"anneal/engines"
)

// A schedule is the goroutine that owns a model's decoder and caches.
type schedule struct {
	model   *model
	decoder *decoder
	slots   int
	chunk   int // tokens of prompts in one step
	caches  pool
	running []*request // in the order of their arrival
	spans   []span
	active  []*request // that spans belong to
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
		s.plan()
		logits := s.decoder.step(s.spans)
		for i, r := range s.active {
			r.generated++
			s.advance(r, logits.Row(i))
		}
	}
}

// drop forgets requests that ended or that nobody waits for.
func (s *schedule) drop() {
	s.running = slices.DeleteFunc(s.running, func(r *request) bool {
		if !r.ended && !r.gone() {
			return false
		}
		s.caches.give(r.cache)
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
		if r.cache = s.caches.take(len(r.prompt) + r.limit); r.cache == nil {
			break
		}
		m.waiting = slices.Delete(m.waiting, 0, 1)
		s.running = append(s.running, r)
	}
	return true
}

// plan makes the spans of the next step: the last token of every request that
// generates, and up to chunk tokens of the prompts, first come first served.
func (s *schedule) plan() {
	s.spans, s.active = s.spans[:0], s.active[:0]
	room := s.chunk
	for _, r := range s.running {
		tokens := []int{r.last}
		if rest := len(r.prompt) - r.read; rest > 0 {
			n := min(rest, room)
			tokens = r.prompt[r.read : r.read+n]
			r.read, room = r.read+n, room-n
		}
		if len(tokens) == 0 {
			continue
		}
		wanted := r.read == len(r.prompt)
		s.spans = append(s.spans, span{cache: r.cache, tokens: tokens, wanted: wanted})
		if wanted {
			s.active = append(s.active, r)
		}
	}
}

// advance draws a request's next token and hands over what it completes.
func (s *schedule) advance(r *request, logits []float32) {
	token, err := r.sampler.next(logits)
	if err != nil {
		r.fail(err)
		return
	}
	r.last = token
	piece, stopped := r.text.add(token)
	switch {
	case stopped:
		piece.Finish = engines.FinishStop
	case !r.ignoreEnd && slices.Contains(s.model.ends, token):
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
	piece.Tokens = append(piece.Tokens, rest.Tokens...)
	piece.Finish = why
	if stopped {
		piece.Finish = engines.FinishStop
	}
	return piece
}
