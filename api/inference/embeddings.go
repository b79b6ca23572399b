package inference

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"anneal/api/request"
	"anneal/api/routing"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/engines"
	"anneal/eventlog/metering"
)

// Limits of an embedding request.
const (
	maxInputs     = 2048
	maxDimensions = 1 << 16
)

// EmbeddingBody is the body of an embedding request. Field names are in snake_case; the server
// accepts lowerCamelCase too.
type EmbeddingBody struct {
	Model string `json:"model"`
	// a text, a list of texts, a list of token IDs, or a list of lists of token IDs
	Input          any    `json:"input"`
	Dimensions     int    `json:"dimensions,omitempty"`
	EncodingFormat string `json:"encoding_format,omitempty"`
	User           string `json:"user,omitempty"`
	CacheIsolation string `json:"prompt_cache_isolation_key,omitempty"`
}

// EmbeddingList is the response to an embedding request: one embedding for each input.
type EmbeddingList struct {
	Object string         `json:"object"`
	Data   []Embedding    `json:"data"`
	Model  string         `json:"model"`
	Usage  EmbeddingUsage `json:"usage"`
}

// Embedding is the embedding of one input.
type Embedding struct {
	Object    string `json:"object"`
	Index     int    `json:"index"`
	Embedding any    `json:"embedding"` // a list of numbers, or their Base64 encoding as text
}

// EmbeddingUsage counts the tokens of all inputs.
type EmbeddingUsage struct {
	PromptTokens int `json:"prompt_tokens"`
	TotalTokens  int `json:"total_tokens"`
}

var embeddingFields = set("model", "input", "dimensions", "encoding_format", "user", "prompt_cache_isolation_key")

// embeddingHeaders lists the response headers of embeddings.
var embeddingHeaders = slices.DeleteFunc(slices.Clone(performanceHeaders), func(p request.Parameter) bool {
	return !slices.Contains([]string{"anneal-warning", "anneal-prompt-tokens", "anneal-cached-prompt-tokens",
		"anneal-server-processing-time", "anneal-deployment", "anneal-backend-host"}, p.Name)
})

// readEmbedding validates an embedding request, and returns an error with all violations. value is
// the parsed JSON of the body. If strict is true, unknown fields are violations. format is the
// encoding_format of the response.
func readEmbedding(value any, strict bool) (q *generationRequest, format string, err error) {
	var v domain.Violations
	f, q := readFields(&v, value, embeddingFields)
	q.prompts = readInputs(f)
	q.dimensions = int(f.integer("dimensions", 1, maxDimensions, 0))
	format = f.enum("encoding_format", "float", "base64")
	q.user, q.isolation = f.text("user", maxUserSize), f.text("prompt_cache_isolation_key", maxIsolationKey)
	return q, format, q.checked(v, strict, "embeddings")
}

// readInputs returns the prompts in the field input, which must not be empty.
func readInputs(f *fieldReader) []prompt {
	all := f.prompts("input", maxInputs)
	list, isList := f.values["input"].([]any)
	f.require(!isList || len(list) > 0, "input", "must not be an empty list: send at least one text")
	for _, one := range all {
		f.require(one.text != "" || one.tokens != nil && (len(one.tokens) > 0 || isList && len(list) == 0), one.at,
			"must not be empty: send a text, or remove this input from the list")
	}
	return all
}

// An embedding is the state of one embedding request in progress.
type embedding struct {
	*call
	q       *generationRequest
	target  routing.Target
	session string
	start   time.Time

	mu        sync.Mutex // guards the fields below
	vectors   []engines.Embedding
	usage     engines.Usage
	placement routing.Placement
}

// createEmbedding handles POST /inference/v1/embeddings.
func createEmbedding(c *call) (any, error) {
	value, _, err := c.readBody()
	if err != nil {
		return nil, err
	}
	q, format, err := readEmbedding(value, c.Strict)
	c.Conn.ReleaseBody()
	if err != nil {
		return nil, err
	}
	target, leave, err := c.enter(q)
	if err != nil {
		return nil, err
	}
	defer leave()
	e := &embedding{call: c, q: q, target: target, session: c.sessionOf(q, target.State), start: time.Now(),
		vectors: make([]engines.Embedding, len(q.prompts))}
	if err := e.run(); err != nil {
		return nil, err
	}
	return e.response(format)
}

// run computes the embeddings of all inputs, at most maxConcurrentChoices of them at a time. The
// first error cancels the others.
func (e *embedding) run() error {
	err := forEach(e.Ctx, len(e.q.prompts), e.compute)
	if err == nil || e.usage.PromptTokens > 0 {
		e.Router.RecordUsage(e.Call, e.target.Name, e.q.model, metering.Record{Kind: metering.Embedding,
			Complete: err == nil, User: e.q.user, PromptTokens: e.usage.PromptTokens, CachedPromptTokens: e.usage.CachedTokens})
	}
	if err == nil {
		e.Router.LastServed.Record(e.target, e.target.Name, e.Now())
		e.tokens.WithLabelValues("prompt").Add(float64(e.usage.PromptTokens))
	}
	return err
}

// compute computes the embedding of the input with the index i.
func (e *embedding) compute(ctx context.Context, i int) error {
	p := e.q.prompts[i]
	vector, usage, at, err := e.Router.Embed(ctx, e.Call, e.target, e.session, engines.EmbeddingRequest{
		Addon: e.q.settings.Addon, Input: p.text, Tokens: p.tokens, Dimensions: e.q.dimensions,
		CacheScope: e.q.settings.CacheScope})
	if err != nil {
		return e.q.translateError(p, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.vectors[i], e.placement = vector, at
	e.usage.PromptTokens += usage.PromptTokens
	e.usage.CachedTokens += usage.CachedTokens
	return nil
}

// response returns the response in the encoding_format format, and sets the response headers.
func (e *embedding) response(format string) (any, error) {
	list := EmbeddingList{Object: "list", Data: []Embedding{}, Model: e.q.model,
		Usage: EmbeddingUsage{e.usage.PromptTokens, e.usage.PromptTokens}}
	for i, one := range e.vectors {
		entry, vector := Embedding{Object: "embedding", Index: i, Embedding: one.Data}, one.Vector()
		if slices.ContainsFunc(vector, func(x float32) bool { return math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) }) {
			return nil, domain.Errorf(domain.Internal,
				"the embedding of input %d contains NaN or infinity: the weights of %s may be damaged", i, e.q.model)
		}
		if format != "base64" { // encoding/json encodes []byte as Base64
			entry.Embedding = vector
		}
		list.Data = append(list.Data, entry)
	}
	headers := map[string]any{"prompt-tokens": e.usage.PromptTokens, "cached-prompt-tokens": e.usage.CachedTokens,
		"server-processing-time": wire.Seconds(time.Since(e.start)), "deployment": e.target.Name,
		"backend-host": e.placement.Node}
	for name, value := range headers {
		e.Writer.Header().Set("anneal-"+name, fmt.Sprint(value))
	}
	return list, nil
}
