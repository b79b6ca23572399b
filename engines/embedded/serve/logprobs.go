package serve

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"anneal/engines"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/tokenizer"
)

// outputOptions select what a request returns besides the generated text.
type outputOptions struct {
	tokenizer *tokenizer.Tokenizer
	logprobs  bool
	top       int  // number of most likely tokens to return for each token
	prompt    bool // return the tokens of the prompt and, if raw is true, its text
	raw       bool
	grammar   string // grammar of the completion, returned if raw is true
	echo      int    // index of the first prompt token to return; the prompt's length if none is
	scratch   []float32
}

func newOutputOptions(t *tokenizer.Tokenizer, req *engines.CompletionRequest, prompt []int) outputOptions {
	one := outputOptions{tokenizer: t, logprobs: req.Logprobs || req.TopLogprobs > 0, top: req.TopLogprobs,
		prompt: req.ReturnTokenIDs || req.RawOutput, raw: req.RawOutput, echo: len(prompt)}
	if req.EchoLast > 0 {
		one.echo = max(len(prompt)-req.EchoLast, 0)
	}
	if req.Echo {
		one.echo = 0
	}
	return one
}

// logprob returns the log-probabilities of a token that was sampled from logits. p is its
// probability among the candidates that passed the filters. They are bit-identical to those that
// training computes.
func (t *outputOptions) logprob(token int, logits []float32, p float64) engines.Logprob {
	t.scratch = slices.Grow(t.scratch[:0], len(logits))[:len(logits)]
	norm := kernel.LogSumExp64(t.scratch, logits)
	one := t.describe(token, float64(logits[token])-norm)
	one.Sampling = logarithm(p)
	for _, other := range topTokens(logits, t.top) {
		one.Top = append(one.Top, t.describe(other, float64(logits[other])-norm))
	}
	return one
}

func (t *outputOptions) describe(token int, logprob float64) engines.Logprob {
	if math.IsNaN(logprob) { // damaged weights give NaN, which JSON cannot represent
		logprob = engines.MinLogprob
	}
	rendered := t.tokenizer.Bytes(token)
	return engines.Logprob{
		Token: token, Text: strings.ToValidUTF8(string(rendered), "\uFFFD"), Bytes: rendered,
		Logprob: max(logprob, engines.MinLogprob),
	}
}

func logarithm(p float64) float64 {
	if p <= 0 {
		return engines.MinLogprob
	}
	return math.Log(p)
}

// topTokens returns the n tokens with the largest logits, in descending order. Tokens with equal
// logits are sorted by ID.
func topTokens(logits []float32, n int) []int {
	var best []int
	for token, v := range logits {
		if len(best) == n && (n == 0 || v <= logits[best[n-1]]) {
			continue
		}
		at, _ := slices.BinarySearchFunc(best, v, func(other int, v float32) int {
			return cmp.Or(cmp.Compare(v, logits[other]), -1) // insert after equal logits
		})
		best = slices.Insert(best, at, token)
		best = best[:min(len(best), n)]
	}
	return best
}

// parsed returns a function that separates reasoning and tool calls from the text of a chunk, and
// then passes the chunk to emit.
func (r *request) parsed(emit func(engines.Chunk) error) func(engines.Chunk) error {
	return func(c engines.Chunk) error { return emit(r.reader.Take(c)) }
}

// scored reports whether the request needs log-probabilities of prompt tokens.
func (r *request) scored() bool { return r.output.logprobs && r.output.echo < len(r.prompt) }

// score records the log-probabilities of the echoed prompt tokens after position. logits[i] are the
// logits after position+i.
func (r *request) score(position int, logits kernel.Matrix) {
	if r.sample != nil {
		r.sample.score(position, logits)
		return
	}
	for i := range logits.Rows {
		next := position + i + 1
		if next < max(r.output.echo, 1) || next >= len(r.prompt) {
			continue
		}
		row := logits.Row(i)
		one := r.output.logprob(r.prompt[next], row, 1)
		one.Sampling = one.Logprob // prompt tokens are not sampled
		r.echoed = append(r.echoed, one)
	}
}

// prelude returns the chunks before the generated text: the parts of the prompt that the request
// wants to have returned.
func (r *request) prelude() []engines.Chunk {
	var chunks []engines.Chunk
	if r.output.prompt {
		decoder := r.output.tokenizer.NewRawDecoder()
		for tokens := range slices.Chunk(r.prompt, engines.MaxChunk) {
			part := &engines.RenderedPrompt{Tokens: tokens}
			if r.output.raw {
				part.Text = decodeRaw(decoder, tokens)
			}
			chunks = append(chunks, engines.Chunk{Prompt: part})
		}
		if r.output.raw {
			last := chunks[len(chunks)-1].Prompt
			last.Text, last.Grammar = last.Text+decoder.Rest(), r.output.grammar
		}
	}
	if r.output.echo == 0 && r.output.logprobs {
		first := r.output.describe(r.prompt[0], 0)
		first.Unknown = true
		r.echoed = slices.Insert(r.echoed, 0, first)
	}
	decoder := r.output.tokenizer.NewDecoder()
	for tokens := range slices.Chunk(r.prompt[r.output.echo:], engines.MaxChunk) {
		chunk := engines.Chunk{Tokens: tokens, Echoed: true}
		for i, token := range tokens {
			if r.output.logprobs {
				r.echoed[i].Offset = r.text.decoded
			}
			text := decoder.Next(token)
			chunk.Text += text
			r.text.decoded += utf8.RuneCountInString(text)
		}
		if r.output.logprobs {
			chunk.Logprobs, r.echoed = r.echoed[:len(tokens)], r.echoed[len(tokens):]
		}
		chunks = append(chunks, chunk)
	}
	if rest := decoder.Rest(); rest != "" {
		chunks[len(chunks)-1].Text += rest
		r.text.decoded += utf8.RuneCountInString(rest)
	}
	r.text.sent = r.text.decoded
	return chunks
}

func decodeRaw(d *tokenizer.Decoder, tokens []int) string {
	var text strings.Builder
	for _, token := range tokens {
		text.WriteString(d.Next(token))
	}
	return text.String()
}
