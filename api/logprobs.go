package api

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"anneal/engines"
)

// CompletionLogprobs tell how likely each token of a completion was; the lists
// are as long as there are tokens.
type CompletionLogprobs struct {
	Tokens        []string             `json:"tokens"`
	TokenLogprobs []*float64           `json:"token_logprobs"` // null for a text's first token, which nothing comes before
	TopLogprobs   []map[string]float64 `json:"top_logprobs"`   // token → logprob
	TextOffset    []int                `json:"text_offset"`    // characters of the choice's text before the token
	TokenIDs      []int                `json:"token_ids"`
}

// ContentLogprobs tell how likely each token of an answer was.
type ContentLogprobs struct {
	Content []TokenLogprob `json:"content"`
}

// TokenLogprob tells how likely one token was.
type TokenLogprob struct {
	Token           string        `json:"token"`
	Logprob         *float64      `json:"logprob"`          // in the model's own distribution; null where nothing came before
	SamplingLogprob *float64      `json:"sampling_logprob"` // in the one that it was drawn from
	Bytes           []int         `json:"bytes"`
	TokenID         int           `json:"token_id"`
	TextOffset      int           `json:"text_offset"`
	TopLogprobs     []TokenChoice `json:"top_logprobs"`
}

// TokenChoice is a token that was likely at some place.
type TokenChoice struct {
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	TokenID int     `json:"token_id"`
	Bytes   []int   `json:"bytes"`
}

// spelling is a token as a key among others: one that is no text by itself is
// told by its bytes.
func spelling(one engines.Logprob) string {
	if utf8.Valid(one.Bytes) {
		return one.Text
	}
	var b strings.Builder
	b.WriteString("bytes:")
	for _, c := range one.Bytes {
		fmt.Fprintf(&b, `\x%02x`, c)
	}
	return b.String()
}

// completionLogprobs are nil when there are none. sampled has the token itself
// among the alternatives, as the older form has it.
func completionLogprobs(all []engines.Logprob, sampled bool) *CompletionLogprobs {
	if len(all) == 0 {
		return nil
	}
	l := &CompletionLogprobs{}
	for _, one := range all {
		l.Tokens, l.TokenIDs, l.TextOffset = append(l.Tokens, spelling(one)), append(l.TokenIDs, one.Token), append(l.TextOffset, one.Offset)
		if one.Unknown {
			l.TokenLogprobs, l.TopLogprobs = append(l.TokenLogprobs, nil), append(l.TopLogprobs, nil)
			continue
		}
		top := map[string]float64{}
		for _, other := range one.Top {
			top[spelling(other)] = other.Logprob
		}
		if sampled {
			top[spelling(one)] = one.Logprob
		}
		l.TokenLogprobs, l.TopLogprobs = append(l.TokenLogprobs, &one.Logprob), append(l.TopLogprobs, top)
	}
	return l
}

// contentLogprobs are nil when there are none.
func contentLogprobs(all []engines.Logprob) *ContentLogprobs {
	if len(all) == 0 {
		return nil
	}
	l := &ContentLogprobs{}
	for _, one := range all {
		shown := TokenLogprob{Token: one.Text, Bytes: numbers(one.Bytes), TokenID: one.Token, TextOffset: one.Offset, TopLogprobs: []TokenChoice{}}
		if !one.Unknown {
			shown.Logprob, shown.SamplingLogprob = &one.Logprob, &one.Sampling
		}
		for _, other := range one.Top {
			shown.TopLogprobs = append(shown.TopLogprobs, TokenChoice{other.Text, other.Logprob, other.Token, numbers(other.Bytes)})
		}
		l.Content = append(l.Content, shown)
	}
	return l
}

// numbers are bytes as JSON shows them: encoding/json would write base64.
func numbers(bytes []byte) []int {
	all := make([]int, len(bytes))
	for i, b := range bytes {
		all[i] = int(b)
	}
	return all
}

// RawOutput is what the model was given and what it wrote, special tokens
// spelt.
type RawOutput struct {
	PromptFragments    []string         `json:"prompt_fragments"`
	PromptTokenIDs     []int            `json:"prompt_token_ids"`
	Completion         string           `json:"completion"`
	CompletionTokenIDs []int            `json:"completion_token_ids"`
	CompletionLogprobs *ContentLogprobs `json:"completion_logprobs"` // null unless logprobs were asked for
	Images             []string         `json:"images"`              // always empty: no model here takes any
	Grammar            *string          `json:"grammar"`             // that the answer was held to; null for none
}

// raw is nil unless it was asked for.
func (h *heard) raw(q *inferenceRequest) *RawOutput {
	if !q.settings.RawOutput {
		return nil
	}
	own := h.Logprobs[max(len(h.Logprobs)-len(h.Tokens), 0):] // without the echo's
	out := &RawOutput{PromptFragments: []string{h.prompt.Text}, PromptTokenIDs: listed(h.prompt.Tokens), Completion: h.Raw,
		CompletionTokenIDs: listed(h.Tokens), CompletionLogprobs: contentLogprobs(own), Images: []string{}}
	if f := q.settings.Format; f != nil && f.Grammar != "" {
		out.Grammar = &f.Grammar
	}
	return out
}

func listed(tokens []int) []int {
	if tokens == nil {
		return []int{}
	}
	return tokens
}
