package engines

import (
	"context"
	"encoding/binary"
	"math"

	"anneal/domain"
)

// An Embedder is a Model that computes embeddings of texts.
type Embedder interface {
	Model
	// Embed computes the embedding of one text. It returns InvalidArgument with the field's JSON
	// name for an invalid request, and an error with the reason NoEmbeddings if the model cannot
	// compute embeddings.
	Embed(ctx context.Context, req EmbeddingRequest) (Embedding, Usage, error)
}

// NoEmbeddings is the reason of the error for a request for an embedding to a model or an engine
// that cannot compute embeddings.
const NoEmbeddings = "NO_EMBEDDINGS"

// EmbeddingsError returns an error with the reason NoEmbeddings. why completes its message.
func EmbeddingsError(why string) error {
	err := domain.Errorf(domain.FailedPrecondition, "the model computes no embeddings: %s", why)
	err.Reason = NoEmbeddings
	return err
}

// An EmbeddingRequest requests the embedding of one text.
type EmbeddingRequest struct {
	Addon string `json:"addon,omitempty"` // ID of a loaded adapter; "" selects the base model
	Input string `json:"input,omitempty"` // text to embed
	// Tokens of the text, with all special tokens; replaces Input when not nil.
	Tokens []int `json:"tokens,omitempty"`
	// Dimensions is the number of elements of the embedding; 0 stands for the model's number. A
	// smaller number truncates the model's embedding, which is then normalized.
	Dimensions int    `json:"dimensions,omitempty"`
	CacheScope string `json:"cacheScope,omitempty"` // only requests of the same scope share cached prefixes
}

// An Embedding is the vector that represents a text.
type Embedding struct {
	// Data has the elements of the vector as little-endian 32-bit floats.
	Data []byte `json:"data"`
}

// UnitFactor returns the factor that scales v to length 1.
func UnitFactor[F float32 | float64](v []F) float64 {
	squares := 0.0
	for _, x := range v {
		squares += float64(x) * float64(x)
	}
	return 1 / max(math.Sqrt(squares), 1e-12)
}

// Shorten returns the first n elements of v, scaled to length 1. It returns v unchanged if n is 0,
// or if v has at most n elements.
func Shorten(v []float32, n int) []float32 {
	if n == 0 || n >= len(v) {
		return v
	}
	factor, out := UnitFactor(v[:n]), make([]float32, n)
	for i := range out {
		out[i] = float32(float64(v[i]) * factor)
	}
	return out
}

// NewEmbedding returns the embedding with the elements of v.
func NewEmbedding(v []float32) Embedding {
	data := make([]byte, 0, 4*len(v))
	for _, x := range v {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(x))
	}
	return Embedding{data}
}

// Vector returns the elements of the embedding.
func (e Embedding) Vector() []float32 {
	v := make([]float32, len(e.Data)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(e.Data[4*i:]))
	}
	return v
}
