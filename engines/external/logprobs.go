package external

import (
	"maps"
	"slices"
	"unicode/utf8"

	"anneal/engines"
)

// unknownToken stands for a token whose number a server does not tell.
const unknownToken = -1

// logprobs are those of a piece, in one of two shapes: that of OpenAI's chats,
// to which llama.cpp's server adds each token's id, and that of its completions.
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

// list are the probabilities of a piece that begins where a stands. ids are its
// tokens, where the server tells them apart.
func (l *logprobs) list(a *answer, ids []int) []engines.Logprob {
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
	all, offset := make([]engines.Logprob, len(content)), a.offset
	for i, one := range content {
		told := one.named()
		if told.Token == unknownToken && i < len(ids) {
			told.Token = ids[i]
		}
		told.Offset = offset
		// Servers tell the model's own distribution only. Of a greedy answer the
		// one that it was drawn from is known all the same.
		if told.Sampling = told.Logprob; a.req.Temperature == 0 {
			told.Sampling = 0
		}
		for _, top := range one.Top[:min(len(one.Top), a.req.TopLogprobs)] {
			told.Top = append(told.Top, top.named())
		}
		offset += utf8.RuneCountInString(one.Token)
		all[i] = told
	}
	return all
}

func (t tokenLogprob) named() engines.Logprob {
	one := engines.Logprob{Token: unknownToken, Text: t.Token, Bytes: []byte(t.Token), Logprob: max(t.Logprob, engines.MinLogprob)}
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

// tokensOf are the tokens of a piece, nil when one is not known.
func tokensOf(told []engines.Logprob) []int {
	var tokens []int
	for _, one := range told {
		if one.Token == unknownToken {
			return nil
		}
		tokens = append(tokens, one.Token)
	}
	return tokens
}
