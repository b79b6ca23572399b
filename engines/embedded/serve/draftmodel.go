package serve

import (
	"bytes"
	"time"

	"anneal/domain"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/tokenizer"
)

// probeInterval is the number of steps without a draft after which one token is drafted, but not
// verified, to estimate the acceptance rate again.
const probeInterval = 16

// A draftModel is a smaller model with the same tokens, which drafts the next tokens of completions
// (Leviathan et al. 2023). The model verifies its drafts like those from n-grams, so they never
// change a completion.
type draftModel struct {
	decoder *decoder
	pool    pool
	window  int // context length of the draft model
	chunk   int // maximum number of prompt tokens in one step
	vocab   int // number of tokens that both models have
	spans   []span
	took    time.Duration // moving average of the duration of a step that drafts one token
}

// A draftState is the state of a draft model for one request.
type draftState struct {
	shadow   *request // request with the KV cache of the draft model; nil until the pool has space
	verified int      // number of leading tokens in the cache that match the context
	skipped  int      // number of steps without a draft for this request: see probeInterval
}

// loadDraftModel loads the draft model in the directory dir. tokens is the tokenizer of the model
// that verifies the drafts, and vocab the size of its vocabulary. memory is the host memory in
// bytes that the draft model may use; 0 sets no limit.
func (c completer) loadDraftModel(dir string, memory int64, tokens *tokenizer.Tokenizer, vocab int) (*draftModel,
	error) {
	own, err := tokenizer.Load(dir)
	if err != nil {
		return nil, err
	}
	if !sameTokens(own, tokens) {
		return nil, domain.Errorf(domain.FailedPrecondition,
			"draftModel: has another tokenizer than the model: use a smaller model of the same family")
	}
	weights, err := llama.Open(dir)
	if err != nil {
		return nil, err
	}
	defer weights.Close()
	options, err := c.options.within(weights, memory)
	if err != nil {
		return nil, err
	}
	config := weights.Config
	keys, values := blockSize(&config)
	blocks := int(max(options.CacheBytes/int64(4*(keys+values)), 1))
	d := &draftModel{window: min(config.MaxPositions, blocks*blockTokens), chunk: draftChunk,
		vocab: min(vocab, config.VocabSize)}
	if d.decoder, err = newDecoder(weights, config, d.window, options.Parallelism); err != nil {
		return nil, err
	}
	d.pool = pool{config: &d.decoder.config, maxBlocks: blocks}
	return d, nil
}

// draftChunk is the maximum number of prompt tokens that a draft model computes in one step.
const draftChunk = 256

// shortContext is the maximum number of context tokens that a step may compute for each request, if
// the duration of the step is to be recorded as the time to draft one token.
const shortContext = 4

// sameTokens reports whether two tokenizers have the same tokens.
func sameTokens(a, b *tokenizer.Tokenizer) bool {
	if a.VocabSize() != b.VocabSize() {
		return false
	}
	for id := range a.VocabSize() {
		if !bytes.Equal(a.Bytes(id), b.Bytes(id)) {
			return false
		}
	}
	return true
}

// open reserves the KV cache of a request's drafts. It returns false if the pool has no space for
// it.
func (d *draftModel) open(r *request) bool {
	state := r.drafter.state
	if state.shadow != nil {
		return true
	}
	limit := min(r.limit, d.window-len(r.prompt))
	if limit <= 0 {
		return false
	}
	shadow := &request{prompt: r.prompt, limit: limit, scope: r.scope}
	if d.pool.admit(shadow) == nil {
		return false
	}
	state.shadow, state.verified = shadow, shadow.cache.length()
	return true
}

// release frees the KV cache of a request's drafts.
func (d *draftModel) release(r *request) {
	if r.drafter != nil && r.drafter.state != nil && r.drafter.state.shadow != nil {
		d.pool.release(r.drafter.state.shadow.cache)
		r.drafter.state = nil
	}
}

// A draftItem is the part of a draft step that belongs to one request.
type draftItem struct {
	request *request
	wanted  int // number of tokens to draft
}

// proposeWithModel drafts tokens with the draft model for the requests whose drafters have no
// draft. rows is the number of rows of the step that will verify the drafts.
func (s *scheduler) proposeWithModel(decoding []*request, rows int) {
	d := s.model.drafts
	var items []draftItem
	for _, r := range decoding {
		if r.drafter == nil || r.drafter.state == nil || len(r.drafter.draft) > 0 || !d.open(r) {
			continue
		}
		limit := min(r.limit-r.generated-1, r.drafter.maxDraft, d.window-len(r.drafter.context))
		wanted := s.modelDraftLen(rows, r.drafter.acceptance, limit, d.took)
		if wanted == 0 {
			if r.drafter.state.skipped++; r.drafter.state.skipped%probeInterval != 1 || limit < 1 {
				continue
			}
			wanted = 1
		}
		rows += wanted
		items = append(items, draftItem{r, wanted})
	}
	items = d.catchUp(items)
	for len(items) > 0 {
		items = d.draftToken(items)
	}
}

// catchUp computes the tokens of the contexts that the draft model has not computed yet, and drafts
// the first token. It returns the requests that need more draft tokens. A context with more than
// chunk tokens to compute takes several steps.
func (d *draftModel) catchUp(items []draftItem) (ready []draftItem) {
	d.spans = d.spans[:0]
	for _, one := range items {
		drafter := one.request.drafter
		state, cache := drafter.state, drafter.state.shadow.cache
		context := drafter.context
		for state.verified < min(cache.length(), len(context)) &&
			cache.tokens[state.verified] == context[state.verified] {
			state.verified++
		}
		cache.truncate(min(state.verified, len(context)-1))
		pending := context[cache.length():]
		last := len(pending) <= d.chunk
		pending = pending[:min(len(pending), d.chunk)]
		d.pool.extend(cache, len(pending))
		d.spans = append(d.spans, span{cache: cache, tokens: pending, last: last})
		if last {
			ready = append(ready, one)
		}
	}
	if len(d.spans) == 0 {
		return nil
	}
	began, short := time.Now(), true
	logits := d.decoder.step(d.spans)
	for i, one := range items {
		state := one.request.drafter.state
		short = short && len(d.spans[i].tokens) <= shortContext
		state.verified = d.spans[i].cache.length()
		d.pool.keep(state.shadow)
	}
	if short {
		d.observe(time.Since(began))
	}
	return d.choose(ready, logits)
}

// observe records the duration of a step that drafted one token for each request.
func (d *draftModel) observe(took time.Duration) {
	if d.took == 0 {
		d.took = took
	}
	d.took += (took - d.took) / 5
}

// draftToken drafts the next token for each request, and returns the requests that need more.
func (d *draftModel) draftToken(items []draftItem) []draftItem {
	d.spans = d.spans[:0]
	for _, one := range items {
		drafter := one.request.drafter
		cache := drafter.state.shadow.cache
		d.pool.extend(cache, 1)
		d.spans = append(d.spans, span{cache: cache, tokens: drafter.draft[len(drafter.draft)-1:], last: true})
	}
	began := time.Now()
	logits := d.decoder.step(d.spans)
	d.observe(time.Since(began))
	return d.choose(items, logits)
}

// choose appends the most likely token to the draft of each request, and returns the requests that
// need more.
func (d *draftModel) choose(items []draftItem, logits kernel.Matrix) (more []draftItem) {
	for i, one := range items {
		row, best := logits.Row(i)[:d.vocab], 0
		for token, x := range row {
			if x > row[best] {
				best = token
			}
		}
		drafter := one.request.drafter
		drafter.draft, drafter.fromContext = append(drafter.draft, best), true
		if len(drafter.draft) < one.wanted {
			more = append(more, one)
		}
	}
	return more
}
