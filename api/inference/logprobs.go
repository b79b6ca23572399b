package inference

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"anneal/engines"
)

// CompletionLogprobs are the log-probabilities of a completion's tokens. Each list has one element
// for each token.
type CompletionLogprobs struct {
	Tokens        []string             `json:"tokens"`
	TokenLogprobs []*float64           `json:"token_logprobs"` // null for the first token of the prompt
	TopLogprobs   []map[string]float64 `json:"top_logprobs"`   // log-probabilities of alternatives, by token
	TextOffset    []int                `json:"text_offset"`    // characters of the choice's text before the token
	TokenIDs      []int                `json:"token_ids"`
}

// ContentLogprobs are the log-probabilities of a message's tokens.
type ContentLogprobs struct {
	Content []TokenLogprob `json:"content"`
}

// TokenLogprob is the log-probability of one token, a natural logarithm.
type TokenLogprob struct {
	Token string `json:"token"`
	// Logprob is from the model's unfiltered distribution; null for the first token of the prompt.
	Logprob         *float64      `json:"logprob"`
	SamplingLogprob *float64      `json:"sampling_logprob"` // after penalties, temperature and filters
	Bytes           []int         `json:"bytes"`
	TokenID         int           `json:"token_id"`
	TextOffset      int           `json:"text_offset"`
	TopLogprobs     []TokenChoice `json:"top_logprobs"`
}

// TokenChoice is an alternative at the position of a token.
type TokenChoice struct {
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	TokenID int     `json:"token_id"`
	Bytes   []int   `json:"bytes"`
}

// tokenKey returns the text of a token, or bytes:\xHH… for a token that is not valid UTF-8 by
// itself.
func tokenKey(one engines.Logprob) string {
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

// completionLogprobs returns the log-probabilities in the format of completions, or nil when there
// are no tokens. With sampled, the alternatives of each token include the token itself, as in
// OpenAI's completions.
func completionLogprobs(all []engines.Logprob, sampled bool) *CompletionLogprobs {
	if len(all) == 0 {
		return nil
	}
	l := &CompletionLogprobs{}
	for _, one := range all {
		l.Tokens, l.TokenIDs, l.TextOffset = append(l.Tokens, tokenKey(one)), append(l.TokenIDs, one.Token),
			append(l.TextOffset, one.Offset)
		if one.Unknown {
			l.TokenLogprobs, l.TopLogprobs = append(l.TokenLogprobs, nil), append(l.TopLogprobs, nil)
			continue
		}
		top := map[string]float64{}
		for _, other := range one.Top {
			top[tokenKey(other)] = other.Logprob
		}
		if sampled {
			top[tokenKey(one)] = one.Logprob
		}
		l.TokenLogprobs, l.TopLogprobs = append(l.TokenLogprobs, &one.Logprob), append(l.TopLogprobs, top)
	}
	return l
}

// contentLogprobs returns the log-probabilities in the format of chat completions, or nil when
// there are no tokens.
func contentLogprobs(all []engines.Logprob) *ContentLogprobs {
	if len(all) == 0 {
		return nil
	}
	l := &ContentLogprobs{}
	for _, one := range all {
		shown := TokenLogprob{Token: one.Text, Bytes: byteValues(one.Bytes), TokenID: one.Token, TextOffset: one.Offset,
			TopLogprobs: []TokenChoice{}}
		if !one.Unknown {
			shown.Logprob, shown.SamplingLogprob = &one.Logprob, &one.Sampling
		}
		for _, other := range one.Top {
			shown.TopLogprobs = append(shown.TopLogprobs,
				TokenChoice{other.Text, other.Logprob, other.Token, byteValues(other.Bytes)})
		}
		l.Content = append(l.Content, shown)
	}
	return l
}

// byteValues returns bytes as integers, since encoding/json encodes []byte as base64.
func byteValues(bytes []byte) []int {
	all := make([]int, len(bytes))
	for i, b := range bytes {
		all[i] = int(b)
	}
	return all
}

// RawOutput is the prompt as the model received it and the completion, with special tokens as text.
type RawOutput struct {
	PromptFragments    []string         `json:"prompt_fragments"`
	PromptTokenIDs     []int            `json:"prompt_token_ids"`
	Completion         string           `json:"completion"`
	CompletionTokenIDs []int            `json:"completion_token_ids"`
	CompletionLogprobs *ContentLogprobs `json:"completion_logprobs"` // null when logprobs were not requested
	Images             []string         `json:"images"`              // always empty: see RawOutput.images in texts.go
	Grammar            *string          `json:"grammar"`             // grammar of response_format; null without one
}

// rawOutput returns the raw output of the choice, or nil when the request does not have raw_output.
func (c *choice) rawOutput(q *generationRequest) *RawOutput {
	if !q.settings.RawOutput {
		return nil
	}
	own := c.Logprobs[max(len(c.Logprobs)-len(c.Tokens), 0):] // without those of the echoed prompt
	out := &RawOutput{PromptFragments: []string{c.prompt.Text}, PromptTokenIDs: nonNil(c.prompt.Tokens), Completion: c.Raw,
		CompletionTokenIDs: nonNil(c.Tokens), CompletionLogprobs: contentLogprobs(own), Images: []string{}}
	if f := q.settings.Format; f != nil && f.Grammar != "" {
		out.Grammar = &f.Grammar
	} else if c.prompt.Grammar != "" {
		out.Grammar = &c.prompt.Grammar
	}
	return out
}

func nonNil(tokens []int) []int {
	if tokens == nil {
		return []int{}
	}
	return tokens
}
