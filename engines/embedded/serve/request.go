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

// maxStop is the maximum length of a stop sequence, in bytes.
const maxStop = 1024

// A request is a completion or an embedding in progress. After enqueue, only the scheduler's
// goroutine may use the fields up to sample. mu guards the fields after mu.
type request struct {
	ctx          context.Context
	prompt       []int
	read         int // number of prompt tokens in the KV cache
	cachedTokens int // number of prompt tokens that came from the prefix cache
	last         int // after the prefill: latest token, which is the input of the next step
	limit        int // maximum number of tokens to generate
	generated    int
	ignoreEOS    bool
	sampler      *sampler
	text         detokenizer
	output       outputOptions
	echoed       []engines.Logprob // log-probabilities of the echoed prompt tokens
	reader       *chat.Reader      // parser of a chat completion; nil for a text completion
	drafter      *ngramDrafter     // drafts the next tokens; nil without speculative decoding
	cache        *cache
	scope        string // cache scope: only requests of the same scope share prefixes
	enqueued     time.Time
	admitted     time.Time
	addon        *addon  // adapter; nil stands for the base model
	pooler       *pooler // computes the embedding; nil for a completion
	sample       *sample // receives the tokens instead of chunks; nil for other requests

	ready chan struct{} // receives a value when chunks are pending or the request has ended

	mu        sync.Mutex
	chunks    []engines.Chunk
	usage     engines.Usage
	ended     bool
	abandoned bool
	err       error
}

// newRequest validates and tokenizes a request.
func (m *model) newRequest(ctx context.Context, req engines.CompletionRequest) (*request, error) {
	addon, err := m.addon(req.Addon)
	if err != nil {
		return nil, err
	}
	format := m.chatFormatOf(addon)
	if err := m.check(&req, format.template); err != nil {
		return nil, err
	}
	began := time.Now()
	prompt, rendered, err := m.prompt(&req, format)
	if err != nil {
		return nil, err
	}
	r := &request{
		ctx: ctx, addon: addon, scope: req.CacheScope, drafter: m.newDrafter(&req, prompt), prompt: prompt,
		limit: min(req.MaxTokens, m.info.ContextLength-len(prompt)), ignoreEOS: req.IgnoreEOS,
		sampler: newSampler(&req, prompt), text: detokenizer{decoder: m.tokenizer.NewDecoder(), stops: req.Stop},
		output: newOutputOptions(m.tokenizer, &req, prompt), ready: make(chan struct{}, 1),
		usage: engines.Usage{
			PromptTokens: len(prompt), ContextLength: m.info.ContextLength,
			Timings: engines.Timings{Tokenize: time.Since(began)},
		},
	}
	if r.sampler.constraint, err = m.newConstraint(&req, format.template, rendered); err != nil {
		return nil, err
	}
	if r.output.raw {
		r.output.grammar = r.sampler.constraint.text()
		r.text.raw = m.tokenizer.NewRawDecoder()
	}
	if req.Chat != nil {
		r.reader = format.template.NewReader(req.Chat, rendered)
	}
	return r, nil
}

// prompt tokenizes the prompt or the conversation of a request. rendered is the text of the
// conversation; "" for a prompt.
func (m *model) prompt(req *engines.CompletionRequest, format chatFormat) (prompt []int, rendered string, err error) {
	if req.Chat == nil {
		prompt, err = m.plain(req)
		return prompt, "", err
	}
	if format.parseErr != nil {
		return nil, "", domain.Errorf(domain.InvalidArgument, "messages: %v: send a prompt to /inference/v1/completions",
			format.parseErr)
	}
	if format.template == nil {
		return nil, "", domain.Errorf(domain.InvalidArgument,
			"messages: this model has no chat template: send a prompt to /inference/v1/completions")
	}
	prompt, rendered, err = format.template.Prompt(req.Chat, req.Reasoning)
	if err == nil && len(prompt) == 0 {
		err = domain.Errorf(domain.InvalidArgument,
			"messages: this model's chat template renders an empty prompt: add a message with content")
	}
	if window := m.info.ContextLength; err == nil && len(prompt) >= window {
		err = domain.Errorf(domain.InvalidArgument,
			"messages: have %d tokens, which fill the context length of %d: shorten them", len(prompt), window)
	}
	return prompt, rendered, err
}

// plain tokenizes a prompt that is not a conversation.
func (m *model) plain(req *engines.CompletionRequest) ([]int, error) {
	length, window := len(req.PromptTokens), m.info.ContextLength
	if req.PromptTokens == nil {
		length = m.tokenizer.Count(req.Prompt)
	}
	if length >= window {
		return nil, domain.Errorf(domain.InvalidArgument,
			"prompt: has %d tokens, which fill the context length of %d: shorten it", length, window)
	}
	prompt := slices.Clone(req.PromptTokens)
	switch {
	case req.PromptTokens == nil:
		prompt = m.tokenizer.Prompt(req.Prompt)
	case length == 0:
		prompt = m.tokenizer.Prompt("")
	}
	if len(prompt) == 0 {
		return nil, domain.Errorf(domain.InvalidArgument,
			"prompt: is empty, and this model has no BOS token: give at least one token")
	}
	return prompt, nil
}

// check returns an InvalidArgument error with all violations of a request. template renders the
// conversation of the request.
func (m *model) check(req *engines.CompletionRequest, template *chat.Template) error {
	var v domain.Violations
	v.Require(req.MaxTokens >= 0, "maxTokens", "must be 0 or more, is %d", req.MaxTokens)
	v.Require(req.Temperature >= 0 && req.Temperature <= 2, "temperature", "must be 0 to 2, is %g", req.Temperature)
	v.Require(req.TopK >= 0, "topK", "must not be negative, is %d; 0 means no limit", req.TopK)
	v.Require(req.TopP >= 0 && req.TopP <= 1, "topP", "must be 0 to 1, is %g", req.TopP)
	v.Require(req.MinP >= 0 && req.MinP <= 1, "minP", "must be 0 to 1, is %g", req.MinP)
	v.Require(req.TypicalP >= 0 && req.TypicalP <= 1, "typicalP", "must be 0 to 1, is %g", req.TypicalP)
	v.Require(math.Abs(req.FrequencyPenalty) <= 2, "frequencyPenalty", "must be -2 to 2, is %g", req.FrequencyPenalty)
	v.Require(math.Abs(req.PresencePenalty) <= 2, "presencePenalty", "must be -2 to 2, is %g", req.PresencePenalty)
	v.Require(req.RepetitionPenalty == 0 || req.RepetitionPenalty >= 0.001 && req.RepetitionPenalty <= 2,
		"repetitionPenalty", "must be 0.001 to 2, is %g", req.RepetitionPenalty)
	v.Require(req.MirostatTarget == 0 || req.MirostatTarget >= 1 && req.MirostatTarget <= 1e6, "mirostatTarget",
		"must be a perplexity of 1 to 1000000, is %g", req.MirostatTarget)
	v.Require(req.MirostatRate >= 0 && req.MirostatRate <= 1, "mirostatRate", "must be 0 to 1, is %g", req.MirostatRate)
	for _, token := range slices.Sorted(maps.Keys(req.LogitBias)) {
		if bias := req.LogitBias[token]; token < 0 || token >= m.vocab || !(math.Abs(bias) <= 100) {
			v.Add("logitBias", "must map tokens from 0 to %d to numbers from -100 to 100: correct the entry of token %d",
				m.vocab-1, token)
			break
		}
	}
	v.Require(req.TopLogprobs >= 0 && req.TopLogprobs <= 20, "topLogprobs", "must be 0 to 20, is %d", req.TopLogprobs)
	v.Require(req.EchoLast >= 0, "echoLast", "must be 0 or more, is %d", req.EchoLast)
	v.Require(req.Format == nil || req.Chat == nil || req.Chat.ToolChoice == nil, "format",
		"cannot be combined with a required tool call: omit one of them")
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
	if req.Reasoning.Acts() {
		return checkReasoning(req, template, v)
	}
	return v.Err()
}

// checkReasoning returns an error with the violations in v and those of the request's reasoning
// effort or token budget.
func checkReasoning(req *engines.CompletionRequest, template *chat.Template, v domain.Violations) error {
	switch {
	case req.Chat == nil:
		return engines.ReasoningError(v, "has no effect on a prompt, which is completed without a chat template: omit it, "+
			"or send messages to /inference/v1/chat/completions")
	case template == nil || !template.Reasons():
		return engines.ReasoningError(v, "has no effect, because this model does not reason: omit it")
	}
	v.Require(req.Reasoning.Budget == 0 || template.Thinks(), "reasoning",
		"cannot limit the reasoning tokens of this model, whose chat template does not delimit reasoning by <think>: "+
			"omit the number of tokens")
	return v.Err()
}

// canceled reports whether the client has disconnected.
func (r *request) canceled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.abandoned || r.ctx.Err() != nil
}

// abandon cancels the request, and returns its usage so far.
func (r *request) abandon() engines.Usage {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.abandoned = true
	return r.usage
}

// admit records that the scheduler has started the request.
func (r *request) admit() {
	r.admitted = time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.usage.Timings.PrefillQueue = r.admitted.Sub(r.enqueued)
	// Direct is set, because tokens are processed in this process, and a running request is part of
	// every step.
	r.usage.Timings.Direct = true
}

// begin records the end of the prefill, and emits the chunks of prelude.
func (r *request) begin() {
	prelude := r.prelude()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.usage.Timings.Prefill, r.usage.CachedTokens = time.Since(r.admitted), r.cachedTokens
	if len(prelude) > 0 {
		r.chunks = append(r.chunks, prelude...)
		r.announce()
	}
}

// take returns the chunks since the last call, the usage so far, and whether the request has ended.
// err is the error of a failed request.
func (r *request) take() (chunks []engines.Chunk, usage engines.Usage, ended bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	chunks, r.chunks = r.chunks, nil
	return chunks, r.usage, r.ended, r.err
}

// put emits a chunk and updates the usage. It drops a chunk that has neither text nor a finish
// reason.
func (r *request) put(chunk engines.Chunk) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.usage.CompletionTokens = r.generated
	r.ended = chunk.Finish != ""
	if r.sample != nil {
		r.sample.end(chunk.Finish == engines.FinishStop, nil)
		return
	}
	if r.ended && r.drafter != nil {
		r.usage.Speculation = &r.drafter.counts
	}
	if chunk.Text == "" && !r.ended {
		return
	}
	r.chunks = append(r.chunks, chunk)
	r.announce()
}

// fail ends the request with an error.
func (r *request) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended, r.err = true, err
	if r.sample != nil {
		r.sample.end(false, err)
	}
	r.announce()
}

func (r *request) announce() {
	select {
	case r.ready <- struct{}{}:
	default:
	}
}
