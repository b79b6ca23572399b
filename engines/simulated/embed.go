package simulated

import (
	"context"

	"anneal/domain"
	"anneal/engines"
)

var _ engines.Embedder = (*model)(nil)

// embeddingSize is the number of dimensions of an embedding.
const embeddingSize = 32

// Embed implements engines.Embedder. The embedding counts the bytes, or the tokens, of the input by
// their remainders modulo embeddingSize, and is normalized. So texts with the same bytes have the
// same embedding.
func (m *model) Embed(ctx context.Context, req engines.EmbeddingRequest) (engines.Embedding, engines.Usage, error) {
	tokens := req.Tokens
	if tokens == nil {
		tokens = []int{0}
		for _, b := range []byte(req.Input) {
			tokens = append(tokens, int(b))
		}
	}
	usage := engines.Usage{PromptTokens: len(tokens), ContextLength: m.options.ContextLength}
	var v domain.Violations
	v.Require(len(tokens) > 0, "input", "has no tokens: give a text")
	v.Require(len(tokens) <= m.options.ContextLength, "input",
		"has %d tokens, more than the context length of %d: shorten it, or divide it into several inputs", len(tokens),
		m.options.ContextLength)
	v.Require(req.Dimensions <= embeddingSize, "dimensions",
		"must be 1 to %d, the size of the model's embeddings, not %d", embeddingSize, req.Dimensions)
	if err := v.Err(); err != nil {
		return engines.Embedding{}, engines.Usage{}, err
	}
	release, err := m.enter(ctx)
	if err != nil {
		return engines.Embedding{}, usage, err
	}
	defer release()
	vector := make([]float32, embeddingSize)
	for _, token := range tokens {
		vector[token%embeddingSize]++
	}
	factor := engines.UnitFactor(vector)
	for i := range vector {
		vector[i] = float32(float64(vector[i]) * factor)
	}
	return engines.NewEmbedding(engines.Shorten(vector, req.Dimensions)), usage, nil
}
