package external

import (
	"maps"
	"slices"
	"unicode/utf8"

	"anneal/engines"
)

// unknownToken is the ID of a token that the server does not report.
const unknownToken = -1

// logprobs are the log-probabilities of a choice, in the format of OpenAI's chat completions (with
// the IDs that llama.cpp's server adds) or of OpenAI's text completions.
type logprobs struct {
	Content []tokenLogprob `json:"content"`

	Tokens        []string             `json:"tokens"`
	TokenLogprobs []*float64           `json:"token_logprobs"`
	TopLogprobs   []map[string]float64 `json:"top_logprobs"`
}

type tokenLogprob struct {
	ID      *int           `json:"id"`
	Token   string         `json:"token"`
	Bytes   []int          `json:"bytes"`
	Logprob float64        `json:"logprob"`
	Top     []tokenLogprob `json:"top_logprobs"`
}

// list returns the log-probabilities of a choice at the current offset of the stream. ids are the
// tokens of the choice, if the server reports them separately.
func (l *logprobs) list(s *stream, ids []int) []engines.Logprob {
	content := l.Content
	for i, text := range l.Tokens {
		one := tokenLogprob{Token: text, Logprob: engines.MinLogprob}
		if i < len(l.TokenLogprobs) && l.TokenLogprobs[i] != nil {
			one.Logprob = *l.TokenLogprobs[i]
		}
		if i < len(l.TopLogprobs) {
			one.Top = byLikelihood(l.TopLogprobs[i])
		}
		content = append(content, one)
	}
	all, offset := make([]engines.Logprob, len(content)), s.offset
	for i, one := range content {
		logprob := one.convert()
		if logprob.Token == unknownToken && i < len(ids) {
			logprob.Token = ids[i]
		}
		logprob.Offset = offset
		// Servers report only the model's distribution before the filters, which stands in for the
		// one after them. With greedy decoding, the sampled token has the probability 1.
		if logprob.Sampling = logprob.Logprob; s.req.Temperature == 0 {
			logprob.Sampling = 0
		}
		for _, top := range one.Top[:min(len(one.Top), s.req.TopLogprobs)] {
			logprob.Top = append(logprob.Top, top.convert())
		}
		offset += utf8.RuneCountInString(one.Token)
		all[i] = logprob
	}
	return all
}

func (t tokenLogprob) convert() engines.Logprob {
	one := engines.Logprob{
		Token: unknownToken, Text: t.Token, Bytes: []byte(t.Token), Logprob: max(t.Logprob, engines.MinLogprob),
	}
	if t.ID != nil {
		one.Token = *t.ID
	}
	if t.Bytes != nil {
		one.Bytes = make([]byte, len(t.Bytes))
		for i, b := range t.Bytes {
			one.Bytes[i] = byte(b)
		}
	}
	return one
}

func byLikelihood(tops map[string]float64) []tokenLogprob {
	var all []tokenLogprob
	for _, text := range slices.Sorted(maps.Keys(tops)) {
		all = append(all, tokenLogprob{Token: text, Logprob: tops[text]})
	}
	slices.SortStableFunc(all, func(a, b tokenLogprob) int {
		switch {
		case a.Logprob > b.Logprob:
			return -1
		case a.Logprob < b.Logprob:
			return 1
		}
		return 0
	})
	return all
}

// tokensOf returns the token IDs of log-probabilities; nil if an ID is unknown.
func tokensOf(logprob []engines.Logprob) []int {
	var tokens []int
	for _, one := range logprob {
		if one.Token == unknownToken {
			return nil
		}
		tokens = append(tokens, one.Token)
	}
	return tokens
}
