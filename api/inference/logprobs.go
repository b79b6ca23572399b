package inference

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"anneal/engines"
)

// CompletionLogprobs has the log-probabilities of a completion. Each list has one element for each
// token.
type CompletionLogprobs struct {
	Tokens        []string   `json:"tokens"`
	TokenLogprobs []*float64 `json:"token_logprobs"` // null for the first token of the prompt
	// log-probability of each alternative, by its text
	TopLogprobs []map[string]float64 `json:"top_logprobs"`
	// number of characters of the choice's text before the token
	TextOffset []int `json:"text_offset"`
	TokenIDs   []int `json:"token_ids"`
}

// ContentLogprobs has the log-probabilities of a chat message.
type ContentLogprobs struct {
	Content []TokenLogprob `json:"content"`
}

// TokenLogprob is a token with the natural logarithm of its probability.
type TokenLogprob struct {
	Token string `json:"token"`
	// Logprob is in the model's distribution before any filter; null for the first token of the
	// prompt.
	Logprob *float64 `json:"logprob"`
	// log-probability in the distribution after penalties, temperature and filters
	SamplingLogprob *float64      `json:"sampling_logprob"`
	Bytes           []int         `json:"bytes"`
	TokenID         int           `json:"token_id"`
	TextOffset      int           `json:"text_offset"`
	TopLogprobs     []TokenChoice `json:"top_logprobs"`
}

// TokenChoice is a token that the model could have generated instead.
type TokenChoice struct {
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	TokenID int     `json:"token_id"`
	Bytes   []int   `json:"bytes"`
}

// tokenKey returns the text of a token. For a token that is not valid UTF-8 by itself, it returns
// bytes:\xHH… with its bytes in hexadecimal digits.
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

// completionLogprobs returns log-probabilities in the format of completions; nil if there are none.
// If sampled is true, the alternatives of each token include the token itself, as in OpenAI's
// completions.
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

// contentLogprobs returns log-probabilities in the format of chat completions; nil if there are
// none.
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

// byteValues returns bytes as integers, because encoding/json would encode []byte as Base64.
func byteValues(bytes []byte) []int {
	all := make([]int, len(bytes))
	for i, b := range bytes {
		all[i] = int(b)
	}
	return all
}

// RawOutput is the prompt as the model received it, and the completion as the model generated it.
// Both contain special tokens as text.
type RawOutput struct {
	PromptFragments    []string         `json:"prompt_fragments"`
	PromptTokenIDs     []int            `json:"prompt_token_ids"`
	Completion         string           `json:"completion"`
	CompletionTokenIDs []int            `json:"completion_token_ids"`
	CompletionLogprobs *ContentLogprobs `json:"completion_logprobs"` // null unless the request has logprobs
	// always empty, because engines that accept images return no RawOutput
	Images []string `json:"images"`
	// grammar that constrained the completion; null if there was none
	Grammar *string `json:"grammar"`
}

// rawOutput returns the RawOutput of the choice; nil unless the request has raw_output.
func (c *choice) rawOutput(q *generationRequest) *RawOutput {
	if !q.settings.RawOutput {
		return nil
	}
	// the log-probabilities of the completion, without those of the echoed prompt
	own := c.Logprobs[max(len(c.Logprobs)-len(c.Tokens), 0):]
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
