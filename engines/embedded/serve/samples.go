package serve

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/fair"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/tokenizer"
)

// Samples generates samples for training (engines.TrainSampler) from the model of a llama.Net,
// whose weights it shares. Any number of calls can wait: the request of a sample is created when
// the scheduler has a free slot, so waiting calls need little memory.
type Samples struct {
	model     *model
	tokenizer *tokenizer.Tokenizer // nil if the model has none

	mu    sync.Mutex
	queue fair.Queue
	calls []*sampleCall // calls with samples that have not started, in order of arrival
	ids   int           // ID of the newest adapter

	// scratch memory that only the scheduler's goroutine uses
	probs, exps []float32
	candidates  []candidate
}

// SampleWeights is an adapter that was loaded with Samples.Load.
type SampleWeights struct{ addon *addon }

// Bytes returns the memory of the adapter in bytes.
func (w *SampleWeights) Bytes() int64 { return w.addon.adapter.Bytes() }

// NewSamples starts a scheduler for samples. hash is that of the base model in net. If tokens is
// nil, because the model has no tokenizer, requests cannot have stop texts.
func NewSamples(
	net *llama.Net, hash string, tokens *tokenizer.Tokenizer, stopTokens []int, options Options,
) *Samples {
	options = New(options).(completer).options
	c := net.Weights.Config
	m, blocks := modelOf(c, tokens, stopTokens, options)
	m.hash = hash
	s := &Samples{model: m, tokenizer: tokens}
	m.samples = s
	go newScheduler(m, netDecoder(net, m.info.ContextLength, options.Parallelism), options.chunk(&c), blocks).run()
	return s
}

// SampleBytes returns the memory of the KV cache of one sequence of tokens in bytes.
func SampleBytes(c *llama.Config, tokens int) int64 {
	keys, values := blockSize(c)
	return int64(4*(keys+values)) * int64(blocksFor(tokens))
}

// Load loads the adapter in a PEFT directory. It returns FailedPrecondition like llama.LoadAdapter.
func (s *Samples) Load(dir string) (*SampleWeights, error) {
	adapter, err := llama.LoadAdapter(dir, s.model.hash, s.model.config)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids++ // items of a step are sorted by ID
	return &SampleWeights{&addon{id: strconv.Itoa(s.ids), adapter: adapter.Pack(&s.model.config)}}, nil
}

// Close stops the scheduler. Calls in progress fail with Unavailable.
func (s *Samples) Close() error { return s.model.Close() }

// A sampleCall is a call of Sample in progress. Samples.mu guards the fields from account on,
// except that only the scheduler's goroutine writes the values of the prompt.
type sampleCall struct {
	ctx     context.Context
	request *engines.TrainSampleRequest
	weights *SampleWeights
	limit   int // maximum number of tokens of a sample

	account *fair.Account
	prompt  []int
	next    int // number of samples that have started
	pending int // number of samples that have not ended
	result  engines.TrainSamples
	err     error
	done    chan struct{} // closed when all samples have ended
}

// Sample generates samples with the base model, or with an adapter unless w is nil.
func (s *Samples) Sample(
	ctx context.Context, w *SampleWeights, req engines.TrainSampleRequest,
) (engines.TrainSamples, error) {
	if err := s.check(&req); err != nil {
		return engines.TrainSamples{}, err
	}
	if req.TopK >= s.model.vocab {
		req.TopK = 0
	}
	c := &sampleCall{request: &req, weights: w, limit: s.limit(&req), pending: req.N, done: make(chan struct{})}
	if c.limit == 0 && !c.scored() {
		return engines.TrainSamples{Sequences: make([]engines.TrainSequence, req.N)}, nil
	}
	var cancel context.CancelFunc
	c.ctx, cancel = context.WithCancel(ctx)
	defer cancel() // after an error, cancels the other samples of the call
	s.add(c)
	defer s.remove(c)
	select {
	case <-c.done:
	case <-ctx.Done():
		return engines.TrainSamples{}, ctx.Err()
	case <-s.model.done:
		select {
		case <-c.done:
		default:
			return engines.TrainSamples{}, s.closedError()
		}
	}
	switch {
	case domain.CodeOf(c.err) == domain.Unavailable:
		return engines.TrainSamples{}, s.closedError()
	case c.err != nil:
		return engines.TrainSamples{}, c.err
	}
	return c.result, nil
}

// closedError returns the error of calls after the scheduler has ended.
func (s *Samples) closedError() error {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.model.panicked; err != nil {
		return domain.Errorf(domain.Unavailable, "the training pool cannot sample any more, so open it again: %v", err)
	}
	return domain.Errorf(domain.Unavailable, "the training pool is closed")
}

// limit returns the maximum number of tokens of a sample.
func (s *Samples) limit(req *engines.TrainSampleRequest) int {
	left := s.model.info.ContextLength - len(req.Prompt)
	if req.MaxTokens == 0 {
		return left
	}
	return min(req.MaxTokens, left)
}

// scored reports whether the request needs log-probabilities of the prompt.
func (c *sampleCall) scored() bool {
	return c.request.PromptLogprobs || c.request.TopKPromptLogprobs > 0
}

// begin allocates the result before the first sample. Values of the prompt are NaN until they are
// computed.
func (c *sampleCall) begin() {
	for _, token := range c.request.Prompt {
		c.prompt = append(c.prompt, int(token))
	}
	n, k := len(c.prompt), c.request.TopKPromptLogprobs
	nan := func(n int) []float32 { return slices.Repeat([]float32{float32(math.NaN())}, n) }
	c.result.Sequences = make([]engines.TrainSequence, c.request.N)
	if c.request.PromptLogprobs {
		c.result.PromptLogprobs = nan(n)
	}
	if k > 0 {
		c.result.TopKTokens, c.result.TopKLogprobs = make([]int32, n*k), nan(n*k)
	}
}

func (s *Samples) add(c *sampleCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.account = s.queue.Join(c.request.Share.Account, c.request.Share.Weight)
	s.calls = append(s.calls, c)
	s.model.signal()
}

// remove removes a call that has returned. Its samples in progress end at the next step, because
// its context is done or the model is closed.
func (s *Samples) remove(c *sampleCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.Leave(c.account)
	s.calls = slices.DeleteFunc(s.calls, func(other *sampleCall) bool { return other == c })
}

// enqueue adds the request of the next sample to the waiting requests of the model, whose mutex is
// locked. It returns false if there is none. s may be nil. The calls of an account are served one
// after another, so that few calls at a time are in progress and need memory for their samples.
func (s *Samples) enqueue(m *model) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.calls) == 0 {
		return false
	}
	at := 0
	for i, c := range s.calls {
		if c.account.Before(s.calls[at].account) {
			at = i
		}
	}
	c := s.calls[at]
	if c.next == 0 {
		c.begin()
	}
	m.waiting = append(m.waiting, s.newRequest(c, c.next))
	c.account.Charge(1)
	if c.next++; c.next == c.request.N {
		s.calls = slices.Delete(s.calls, at, at+1)
	}
	return true
}

// newRequest returns the request of sample i of a call.
func (s *Samples) newRequest(c *sampleCall, i int) *request {
	one := &sample{samples: s, call: c, index: i, scored: i == 0 && c.scored()}
	if len(c.request.StopTexts) > 0 {
		one.text = &stopTexts{decoder: s.tokenizer.NewRawDecoder(), stops: c.request.StopTexts}
	}
	r := &request{
		ctx: c.ctx, prompt: c.prompt, limit: c.limit, scope: c.request.Share.Account, sample: one,
		sampler: newSampler(&engines.CompletionRequest{
			Temperature: c.request.Temperature, TopK: c.request.TopK, TopP: c.request.TopP, Seed: &c.request.Seed,
		}, nil),
		output: outputOptions{logprobs: true, echo: len(c.prompt)},
	}
	r.sampler.source = rand.New(rand.NewPCG(c.request.Seed, seedStream^mix(uint64(i))))
	if one.scored {
		r.output.echo = 0
	}
	if c.weights != nil {
		r.addon = c.weights.addon
	}
	return r
}

// mix mixes the bits of x, because a generator with similar seeds gives similar first numbers. It
// is the finalizer of MurmurHash3, and mix(0) is 0.
func mix(x uint64) uint64 {
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// A sample receives the tokens of one request of a call.
type sample struct {
	samples *Samples
	call    *sampleCall
	index   int
	scored  bool // whether it computes the log-probabilities of the prompt
	ended   bool
	text    *stopTexts // nil if no text can stop the sample

	sequence engines.TrainSequence
}

// begin records the end of the prefill of the request r.
func (t *sample) begin(r *request) {
	t.samples.mu.Lock()
	defer t.samples.mu.Unlock()
	t.call.account.Charge(len(r.prompt) - r.cachedTokens)
	if t.index == 0 {
		t.call.result.CachedTokens = r.cachedTokens
	}
}

// score records the log-probabilities of the tokens of the prompt after position. logits[i] are the
// logits after position+i.
func (t *sample) score(position int, logits kernel.Matrix) {
	c := t.call
	k := c.request.TopKPromptLogprobs
	for i := range logits.Rows {
		next := position + i + 1
		if next >= len(c.prompt) {
			break
		}
		row := logits.Row(i)
		norm := t.samples.logSumExp(row)
		if c.request.PromptLogprobs {
			c.result.PromptLogprobs[next] = float32(float64(row[c.prompt[next]]) - norm)
		}
		for j, token := range topTokens(row, k) {
			c.result.TopKTokens[next*k+j] = int32(token)
			c.result.TopKLogprobs[next*k+j] = float32(float64(row[token]) - norm)
		}
	}
}

// end records that the sample has ended, or failed with an error.
func (t *sample) end(stopped bool, err error) {
	s, c := t.samples, t.call
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.ended {
		return
	}
	t.ended = true
	t.sequence.Stopped = stopped
	c.result.Sequences[t.index] = t.sequence
	if err != nil && c.err == nil {
		c.err = err
		c.pending = 1 // the call returns, and does not wait for its other samples
	}
	if c.pending--; c.pending == 0 {
		close(c.done)
	}
}

// logSumExp returns the logarithm of the sum of the exponentials of logits, as training computes
// it.
func (s *Samples) logSumExp(logits []float32) float64 {
	s.exps = slices.Grow(s.exps[:0], len(logits))[:len(logits)]
	return kernel.LogSumExp64(s.exps, logits)
}

// drawSample samples the next token of a request that has a sample.
func (s *scheduler) drawSample(r *request, logits []float32) {
	t, all := r.sample, r.sample.samples
	r.sampler.probs, r.sampler.candidates = all.probs, all.candidates // only one request uses them at a time
	token, p, err := r.sampler.next(logits)
	all.probs, all.candidates = r.sampler.probs, r.sampler.candidates
	r.sampler.probs, r.sampler.candidates = nil, nil
	if err != nil {
		r.fail(err)
		return
	}
	r.generated++
	r.last = token
	logprob := logarithm(p)
	if r.sampler.unfiltered() { // the same value as in training, without the rounding error of p
		logprob = float64(logits[token]) - all.logSumExp(logits)
	}
	t.sequence.Tokens = append(t.sequence.Tokens, int32(token))
	t.sequence.Logprobs = append(t.sequence.Logprobs, float32(logprob))
	all.mu.Lock()
	t.call.account.Charge(1)
	all.mu.Unlock()
	switch {
	case t.stops(token) || slices.Contains(s.model.stopTokens, token):
		r.put(engines.Chunk{Finish: engines.FinishStop})
	case r.generated >= r.limit:
		r.put(engines.Chunk{Finish: engines.FinishLength})
	}
}

// stops reports whether the request asked to stop after the token.
func (t *sample) stops(token int) bool {
	stopped := t.text != nil && t.text.completedBy(token)
	return stopped || slices.Contains(t.call.request.StopTokens, int32(token))
}
