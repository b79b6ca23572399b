package serve

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"unicode/utf8"

	"anneal/domain"
	"anneal/engines"
)

// maxStop bounds the bytes of one stop sequence.
const maxStop = 1024

// A request is under way. The fields of the first group belong to the model's
// goroutine once it is enqueued; those under mu are where the two sides meet.
type request struct {
	ctx       context.Context
	prompt    []int
	read      int // tokens of prompt in the cache
	last      int // the token to be read next, once the prompt is read
	limit     int // most tokens to generate
	generated int
	ignoreEnd bool
	sampler   *sampler
	text      textStream
	cache     *cache

	ready chan struct{} // pieces wait, or the request has ended

	mu        sync.Mutex
	pieces    []engines.Chunk
	usage     engines.Usage
	ended     bool
	abandoned bool
	err       error
}

// newRequest checks a request and turns it into tokens.
func (m *model) newRequest(ctx context.Context, req engines.CompletionRequest) (*request, error) {
	if err := m.check(&req); err != nil {
		return nil, err
	}
	length, window := len(req.PromptTokens), m.info.ContextLength
	if req.PromptTokens == nil {
		length = m.tokenizer.Count(req.Prompt)
	}
	if length >= window {
		return nil, domain.Faultf(domain.InvalidArgument,
			"prompt: has %d tokens and fills the model's window of %d; shorten it", length, window)
	}
	prompt := slices.Clone(req.PromptTokens)
	switch {
	case req.PromptTokens == nil:
		prompt = m.tokenizer.Prompt(req.Prompt)
	case length == 0:
		prompt = m.tokenizer.Prompt("")
	}
	if len(prompt) == 0 {
		return nil, domain.Faultf(domain.InvalidArgument, "prompt: is empty, and this model has no token that a text begins with; give at least one token")
	}
	return &request{
		ctx: ctx, prompt: prompt, limit: min(req.MaxTokens, window-len(prompt)), ignoreEnd: req.IgnoreEOS,
		sampler: newSampler(&req), text: textStream{decoder: m.tokenizer.NewDecoder(), stops: req.Stop},
		ready: make(chan struct{}, 1), usage: engines.Usage{PromptTokens: len(prompt)},
	}, nil
}

// check answers InvalidArgument with every rule that the request breaks.
func (m *model) check(req *engines.CompletionRequest) error {
	var v domain.Violations
	v.Require(req.MaxTokens >= 0, "maxTokens", "must be 0 or more, is %d", req.MaxTokens)
	v.Require(req.Temperature >= 0 && req.Temperature <= 2, "temperature", "must be 0 to 2, is %g", req.Temperature)
	v.Require(req.TopK >= 0, "topK", "must be 0 (no limit) or more, is %d", req.TopK)
	v.Require(req.TopP >= 0 && req.TopP <= 1, "topP", "must be 0 to 1, is %g", req.TopP)
	v.Require(len(req.Stop) <= 4, "stop", "must have at most 4 sequences, has %d", len(req.Stop))
	for i, stop := range req.Stop[:min(len(req.Stop), 4)] {
		v.Require(len(stop) > 0 && len(stop) <= maxStop && utf8.ValidString(stop), fmt.Sprintf("stop[%d]", i),
			"must be UTF-8 of 1 to %d bytes", maxStop)
	}
	for i, token := range req.PromptTokens {
		if token < 0 || token >= m.vocab {
			v.Add(fmt.Sprintf("promptTokens[%d]", i), "must be 0 to %d, is %d", m.vocab-1, token)
			break
		}
	}
	return v.Err()
}

// gone tells that nobody waits for the answer any more.
func (r *request) gone() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.abandoned || r.ctx.Err() != nil
}

// abandon gives the request up.
func (r *request) abandon() engines.Usage {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.abandoned = true
	return r.usage
}

// take is what has come since the last call.
func (r *request) take() (pieces []engines.Chunk, usage engines.Usage, ended bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pieces, r.pieces = r.pieces, nil
	return pieces, r.usage, r.ended, r.err
}

// put hands a piece over; one without text and finish waits for the next. It
// counts the tokens generated so far.
func (r *request) put(piece engines.Chunk) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.usage.CompletionTokens = r.generated
	r.ended = piece.Finish != ""
	if piece.Text == "" && !r.ended {
		return
	}
	r.pieces = append(r.pieces, piece)
	r.announce()
}

// fail ends the request with an error.
func (r *request) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended, r.err = true, err
	r.announce()
}

func (r *request) announce() {
	select {
	case r.ready <- struct{}{}:
	default:
	}
}
