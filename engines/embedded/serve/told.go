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

// What is told of a request beside the text of its answer.
type told struct {
	tokenizer *tokenizer.Tokenizer
	logprobs  bool
	top       int  // likeliest tokens beside each
	prompt    bool // its tokens, and its text when raw
	raw       bool
	echo      int // where in the prompt the echo begins; its length when there is none
}

func newTold(t *tokenizer.Tokenizer, req *engines.CompletionRequest, prompt []int) told {
	one := told{tokenizer: t, logprobs: req.Logprobs || req.TopLogprobs > 0, top: req.TopLogprobs,
		prompt: req.ReturnTokenIDs || req.RawOutput, raw: req.RawOutput, echo: len(prompt)}
	if req.EchoLast > 0 {
		one.echo = max(len(prompt)-req.EchoLast, 0)
	}
	if req.Echo {
		one.echo = 0
	}
	return one
}

// logprob tells of a token that followed the logits, drawn with probability p
// among what the filters left.
func (t *told) logprob(token int, logits []float32, p float64) engines.Logprob {
	norm := logSum(logits)
	one := t.name(token, float64(logits[token])-norm)
	one.Sampling = logarithm(p)
	for _, other := range largest(logits, t.top) {
		one.Top = append(one.Top, t.name(other, float64(logits[other])-norm))
	}
	return one
}

func (t *told) name(token int, logprob float64) engines.Logprob {
	if math.IsNaN(logprob) { // of a prompt, that a damaged model scored; JSON has no such number
		logprob = engines.LeastLogprob
	}
	spelt := t.tokenizer.Bytes(token)
	return engines.Logprob{Token: token, Text: strings.ToValidUTF8(string(spelt), "\uFFFD"), Bytes: spelt, Logprob: max(logprob, engines.LeastLogprob)}
}

func logarithm(p float64) float64 {
	if p <= 0 {
		return engines.LeastLogprob
	}
	return math.Log(p)
}

// logSum is the logarithm of the sum of e^v over v in logits: what a logit
// exceeds its logarithm of probability by.
func logSum(logits []float32) float64 {
	best, sum := float64(logits[likeliest(logits)]), 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v) - best)
	}
	return best + math.Log(sum)
}

// largest are the n likeliest tokens, the likeliest first; equals go by their
// number.
func largest(logits []float32, n int) []int {
	var best []int
	for token, v := range logits {
		if len(best) == n && (n == 0 || v <= logits[best[n-1]]) {
			continue
		}
		at, _ := slices.BinarySearchFunc(best, v, func(other int, v float32) int {
			return cmp.Or(cmp.Compare(v, logits[other]), -1) // after its equals
		})
		best = slices.Insert(best, at, token)
		best = best[:min(len(best), n)]
	}
	return best
}

// apart has emit hear tool calls and reasoning apart from the text.
func (r *request) apart(emit func(engines.Chunk) error) func(engines.Chunk) error {
	return func(c engines.Chunk) error { return emit(r.reader.Take(c)) }
}

// scored tells whether the logits after the prompt's tokens are asked for.
func (r *request) scored() bool { return r.told.logprobs && r.told.echo < len(r.prompt) }

// score takes in the logits after the prompt's tokens from position at on.
func (r *request) score(at int, logits kernel.Matrix) {
	for i := range logits.Rows {
		next := at + i + 1
		if next < max(r.told.echo, 1) || next >= len(r.prompt) {
			continue
		}
		row := logits.Row(i)
		one := r.told.logprob(r.prompt[next], row, 1)
		one.Sampling = one.Logprob // nothing was drawn
		r.echoed = append(r.echoed, one)
	}
}

// prelude is what comes before the generated text: the prompt's tokens and the
// echo, as far as they are asked for.
func (r *request) prelude() []engines.Chunk {
	var chunks []engines.Chunk
	if r.told.prompt {
		speller := r.told.tokenizer.NewSpeller()
		for tokens := range slices.Chunk(r.prompt, engines.MaxChunk) {
			part := &engines.Prompt{Tokens: tokens}
			if r.told.raw {
				part.Text = spell(speller, tokens)
			}
			chunks = append(chunks, engines.Chunk{Prompt: part})
		}
		if r.told.raw {
			chunks[len(chunks)-1].Prompt.Text += speller.Rest()
		}
	}
	if r.told.echo == 0 && r.told.logprobs {
		first := r.told.name(r.prompt[0], 0)
		first.Unknown = true
		r.echoed = slices.Insert(r.echoed, 0, first)
	}
	decoder := r.told.tokenizer.NewDecoder()
	for tokens := range slices.Chunk(r.prompt[r.told.echo:], engines.MaxChunk) {
		chunk := engines.Chunk{Tokens: tokens, Echoed: true}
		for i, token := range tokens {
			if r.told.logprobs {
				r.echoed[i].Offset = r.text.decoded
			}
			text := decoder.Next(token)
			chunk.Text += text
			r.text.decoded += utf8.RuneCountInString(text)
		}
		if r.told.logprobs {
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

func spell(d *tokenizer.Decoder, tokens []int) string {
	var text strings.Builder
	for _, token := range tokens {
		text.WriteString(d.Next(token))
	}
	return text.String()
}
