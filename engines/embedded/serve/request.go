package serve

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/chat"
)

// maxStop bounds the bytes of one stop sequence.
const maxStop = 1024

// A request is under way. The fields of the first group belong to the model's
// goroutine once it is enqueued; those under mu are where the two sides meet.
type request struct {
	ctx       context.Context
	prompt    []int
	read      int // tokens of prompt in the cache
	reused    int // of them, that others had read before
	last      int // the token to be read next, once the prompt is read
	limit     int // most tokens to generate
	generated int
	ignoreEnd bool
	sampler   *sampler
	text      textStream
	told      told
	echoed    []engines.Logprob // of the prompt's tokens that are echoed
	reader    *chat.Reader      // of a conversation's answer; nil for others
	guesser   *guesser          // nil when nothing is guessed
	cache     *cache
	scope     string // of those who share what they read
	enqueued  time.Time
	admitted  time.Time
	addon     *addon // that answers; nil is the model itself

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
	addon, err := m.addon(req.Addon)
	if err != nil {
		return nil, err
	}
	voice := m.voiceOf(addon)
	if err := m.check(&req, voice.template); err != nil {
		return nil, err
	}
	began := time.Now()
	prompt, spelt, err := m.prompt(&req, voice)
	if err != nil {
		return nil, err
	}
	r := &request{
		ctx: ctx, addon: addon, scope: req.CacheScope, guesser: m.newGuesser(&req, prompt), prompt: prompt, limit: min(req.MaxTokens, m.info.ContextLength-len(prompt)), ignoreEnd: req.IgnoreEOS,
		sampler: newSampler(&req, prompt), text: textStream{decoder: m.tokenizer.NewDecoder(), stops: req.Stop},
		told: newTold(m.tokenizer, &req, prompt), ready: make(chan struct{}, 1),
		usage: engines.Usage{PromptTokens: len(prompt), Window: m.info.ContextLength, Times: engines.Times{Tokenize: time.Since(began)}},
	}
	if r.sampler.constraint, err = m.constraint(&req, voice.template, spelt); err != nil {
		return nil, err
	}
	if r.told.raw {
		r.text.raw = m.tokenizer.NewSpeller()
	}
	if req.Chat != nil {
		r.reader = voice.template.NewReader(req.Chat, spelt)
	}
	return r, nil
}

// prompt is the request's as tokens, and a conversation's as text too.
func (m *model) prompt(req *engines.CompletionRequest, voice voice) (prompt []int, spelt string, err error) {
	if req.Chat == nil {
		prompt, err = m.plain(req)
		return prompt, "", err
	}
	if voice.noChat != nil {
		return nil, "", domain.Errorf(domain.InvalidArgument, "messages: %v: ask the model at /inference/v1/completions with a prompt", voice.noChat)
	}
	if voice.template == nil {
		return nil, "", domain.Errorf(domain.InvalidArgument, "messages: this model has no chat template: ask it at /inference/v1/completions with a prompt")
	}
	prompt, spelt, err = voice.template.Prompt(req.Chat, req.Reasoning)
	if err == nil && len(prompt) == 0 {
		err = domain.Errorf(domain.InvalidArgument, "messages: this model's chat template makes nothing of them: add a message with content")
	}
	if window := m.info.ContextLength; err == nil && len(prompt) >= window {
		err = domain.Errorf(domain.InvalidArgument, "messages: have %d tokens and fill the model's window of %d; shorten them", len(prompt), window)
	}
	return prompt, spelt, err
}

// plain is a prompt that is no conversation.
func (m *model) plain(req *engines.CompletionRequest) ([]int, error) {
	length, window := len(req.PromptTokens), m.info.ContextLength
	if req.PromptTokens == nil {
		length = m.tokenizer.Count(req.Prompt)
	}
	if length >= window {
		return nil, domain.Errorf(domain.InvalidArgument,
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
		return nil, domain.Errorf(domain.InvalidArgument, "prompt: is empty, and this model has no token that a text begins with; give at least one token")
	}
	return prompt, nil
}

// check answers InvalidArgument with every rule that the request breaks, when
// conversations are rendered by a template.
func (m *model) check(req *engines.CompletionRequest, template *chat.Template) error {
	var v domain.Violations
	v.Require(req.MaxTokens >= 0, "maxTokens", "must be 0 or more, is %d", req.MaxTokens)
	v.Require(req.Temperature >= 0 && req.Temperature <= 2, "temperature", "must be 0 to 2, is %g", req.Temperature)
	v.Require(req.TopK >= 0, "topK", "must be 0 (no limit) or more, is %d", req.TopK)
	v.Require(req.TopP >= 0 && req.TopP <= 1, "topP", "must be 0 to 1, is %g", req.TopP)
	v.Require(req.MinP >= 0 && req.MinP <= 1, "minP", "must be 0 to 1, is %g", req.MinP)
	v.Require(req.TypicalP >= 0 && req.TypicalP <= 1, "typicalP", "must be 0 to 1, is %g", req.TypicalP)
	v.Require(math.Abs(req.FrequencyPenalty) <= 2, "frequencyPenalty", "must be -2 to 2, is %g", req.FrequencyPenalty)
	v.Require(math.Abs(req.PresencePenalty) <= 2, "presencePenalty", "must be -2 to 2, is %g", req.PresencePenalty)
	v.Require(req.RepetitionPenalty == 0 || req.RepetitionPenalty >= 0.001 && req.RepetitionPenalty <= 2, "repetitionPenalty", "must be 0.001 to 2, is %g", req.RepetitionPenalty)
	v.Require(req.MirostatTarget == 0 || req.MirostatTarget >= 1 && req.MirostatTarget <= 1e6, "mirostatTarget", "must be a perplexity of 1 to 1000000, is %g", req.MirostatTarget)
	v.Require(req.MirostatRate >= 0 && req.MirostatRate <= 1, "mirostatRate", "must be 0 to 1, is %g", req.MirostatRate)
	for _, token := range slices.Sorted(maps.Keys(req.LogitBias)) {
		if bias := req.LogitBias[token]; token < 0 || token >= m.vocab || !(math.Abs(bias) <= 100) {
			v.Add("logitBias", "maps tokens, which are 0 to %d here, to numbers from -100 to 100; correct %d", m.vocab-1, token)
			break
		}
	}
	v.Require(req.TopLogprobs >= 0 && req.TopLogprobs <= 20, "topLogprobs", "must be 0 to 20, is %d", req.TopLogprobs)
	v.Require(req.EchoLast >= 0, "echoLast", "must be 0 or more, is %d", req.EchoLast)
	if r := req.Reasoning; r != nil {
		thinks := req.Chat != nil && template != nil && template.Reasons()
		v.Require(thinks || r.Effort == "" || r.Effort == "none", "reasoning", "this model does not reason before it answers: leave it out, or ask for none")
		v.Require(r.Budget == 0 || thinks && template.Thinks(), "reasoning", "this engine cannot cap this model's tokens of reasoning, which its chat template does not mark with <think>: name an effort instead")
	}
	v.Require(req.Format == nil || req.Chat == nil || req.Chat.Calls == nil, "format", "cannot be held together with a call that must be made: leave one of them out")
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

// admit notes that the request has a slot.
func (r *request) admit() {
	r.admitted = time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.usage.Times.PrefillQueue = r.admitted.Sub(r.enqueued)
	r.usage.Times.Direct = true // texts are cut where they are asked, and what has a slot takes part in every step
}

// begin hands over what comes before the generated text, once the prompt is
// read.
func (r *request) begin() {
	prelude := r.prelude()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.usage.Times.Prefill, r.usage.CachedTokens = time.Since(r.admitted), r.reused
	if len(prelude) > 0 {
		r.pieces = append(r.pieces, prelude...)
		r.announce()
	}
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
	if r.ended && r.guesser != nil {
		r.usage.Speculation = &r.guesser.counts
	}
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
