package serve

import (
	"context"
	"slices"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/kernel"
)

var _ engines.Embedder = (*model)(nil)

// Embed implements engines.Embedder. The scheduler computes the request in the same steps as
// completions; the request also uses the prefix cache.
func (m *model) Embed(ctx context.Context, req engines.EmbeddingRequest) (engines.Embedding, engines.Usage, error) {
	if other, leave := m.acquire(req.Addon); other != nil {
		defer leave()
		req.Addon = ""
		return other.Embed(ctx, req)
	}
	r, err := m.newEmbedding(ctx, &req)
	if err != nil {
		return engines.Embedding{}, engines.Usage{}, err
	}
	usage, err := m.process(ctx, r, func(engines.Chunk) error { return nil })
	if err != nil {
		return engines.Embedding{}, usage, err
	}
	return engines.NewEmbedding(engines.Shorten(r.pooler.vector(), req.Dimensions)), usage, nil
}

// newEmbedding validates and tokenizes a request for an embedding.
func (m *model) newEmbedding(ctx context.Context, req *engines.EmbeddingRequest) (*request, error) {
	addon, err := m.addon(req.Addon)
	if err != nil {
		return nil, err
	}
	if why := m.pooling.unsupported; why != "" {
		return nil, engines.EmbeddingsError(why)
	}
	var v domain.Violations
	v.Require(req.Dimensions >= 0 && req.Dimensions <= m.config.HiddenSize, "dimensions",
		"must be 1 to %d, the size of the model's embeddings, not %d", m.config.HiddenSize, req.Dimensions)
	for _, token := range req.Tokens {
		if token < 0 || token >= m.vocab {
			v.Add("input", "has the token %d, but the model's tokens are 0 to %d", token, m.vocab-1)
			break
		}
	}
	began := time.Now()
	tokens := slices.Clone(req.Tokens)
	if req.Tokens == nil {
		tokens = m.tokenizer.EncodeWithSpecial(req.Input)
	}
	v.Require(len(tokens) > 0, "input", "has no tokens: give a text")
	v.Require(len(tokens) <= m.info.ContextLength, "input",
		"has %d tokens, more than the context length of %d: shorten it, or divide it into several inputs", len(tokens),
		m.info.ContextLength)
	if err := v.Err(); err != nil {
		return nil, err
	}
	return &request{
		ctx: ctx, addon: addon, scope: req.CacheScope, prompt: tokens, pooler: &pooler{pooling: m.pooling},
		output: outputOptions{echo: len(tokens)}, ready: make(chan struct{}, 1),
		usage: engines.Usage{
			PromptTokens: len(tokens), ContextLength: m.info.ContextLength,
			Timings: engines.Timings{Tokenize: time.Since(began)},
		},
	}, nil
}

// poolRows returns how many of the next tokens of a prompt contribute their hidden states to the
// embedding. These are the last ones among the next tokens. last reports whether the prompt ends
// with them.
func (r *request) poolRows(tokens int, last bool) int {
	switch {
	case r.pooler == nil:
		return 0
	case r.pooler.mean:
		return tokens
	case last:
		return 1
	}
	return 0
}

// embed adds the hidden states of an item to the embedding. After the last token, it ends the
// request.
func (s *scheduler) embed(t batchItem, hidden kernel.Matrix) {
	r := t.request
	for i := range hidden.Rows {
		r.pooler.add(hidden.Row(i))
	}
	if !t.span.last {
		return
	}
	r.mu.Lock()
	r.usage.Timings.Prefill, r.usage.CachedTokens = time.Since(r.admitted), r.cachedTokens
	r.mu.Unlock()
	r.put(engines.Chunk{Finish: engines.FinishStop})
}
