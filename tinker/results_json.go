package tinker

import (
	"encoding/json"
	"math"
)

// floats is a list whose JSON form has null for NaN.
type floats []float32

func (f floats) MarshalJSON() ([]byte, error) {
	if f == nil {
		return []byte("null"), nil
	}
	return appendFloats(nil, f), nil
}

func (f *floats) UnmarshalJSON(raw []byte) error {
	var values []*float32
	if err := json.Unmarshal(raw, &values); err != nil || values == nil {
		return err
	}
	*f = make(floats, len(values))
	for i, x := range values {
		(*f)[i] = valueOf(x, float32(math.NaN()))
	}
	return nil
}

type sampleJSON struct {
	Sequences            []sequenceJSON `json:"sequences"`
	PromptLogprobs       floats         `json:"prompt_logprobs,omitempty"`
	TopKPromptLogprobs   []topRow       `json:"topk_prompt_logprobs,omitempty"`
	PromptCacheHitTokens int            `json:"prompt_cache_hit_tokens,omitempty"`
	Type                 string         `json:"type"`
}

type sequenceJSON struct {
	StopReason StopReason `json:"stop_reason"`
	Tokens     []int32    `json:"tokens"`
	Logprobs   floats     `json:"logprobs,omitempty"`
}

// A topRow has pairs of a token and its log-probability for one token of the prompt; null for none.
type topRow []topCell

type topCell struct {
	token   int32
	logprob float32
}

func (c topCell) MarshalJSON() ([]byte, error) { return json.Marshal([]any{c.token, c.logprob}) }

func (c *topCell) UnmarshalJSON(raw []byte) error {
	return json.Unmarshal(raw, &[]any{&c.token, &c.logprob})
}

// MarshalJSON returns the JSON encoding, which clients before 0.25 read.
func (r SampleResponse) MarshalJSON() ([]byte, error) {
	form := sampleJSON{Sequences: []sequenceJSON{}, PromptLogprobs: r.PromptLogprobs,
		PromptCacheHitTokens: r.PromptCacheHitTokens, Type: "sample"}
	for _, s := range r.Sequences {
		form.Sequences = append(form.Sequences, sequenceJSON{s.StopReason, append([]int32{}, s.Tokens...), s.Logprobs})
	}
	if k := r.TopKPromptLogprobs; k != nil {
		form.TopKPromptLogprobs = make([]topRow, k.PromptLength)
		for i := range k.TokenIDs {
			row := &form.TopKPromptLogprobs[i/k.K]
			if k.TokenIDs[i] != 0 || k.Logprobs[i] != MaskLogprob {
				*row = append(*row, topCell{k.TokenIDs[i], k.Logprobs[i]})
			}
		}
	}
	return json.Marshal(form)
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *SampleResponse) UnmarshalJSON(raw []byte) error {
	var form sampleJSON
	if err := json.Unmarshal(raw, &form); err != nil {
		return err
	}
	*r = SampleResponse{PromptLogprobs: form.PromptLogprobs, PromptCacheHitTokens: form.PromptCacheHitTokens}
	for _, s := range form.Sequences {
		r.Sequences = append(r.Sequences, SampledSequence{s.StopReason, s.Tokens, s.Logprobs})
	}
	if form.TopKPromptLogprobs == nil {
		return nil
	}
	k := &TopKPromptLogprobs{K: 1, PromptLength: len(form.TopKPromptLogprobs)}
	for _, row := range form.TopKPromptLogprobs {
		k.K = max(k.K, len(row))
	}
	for _, row := range form.TopKPromptLogprobs {
		for j := range k.K {
			cell := topCell{0, MaskLogprob}
			if j < len(row) {
				cell = row[j]
			}
			k.TokenIDs, k.Logprobs = append(k.TokenIDs, cell.token), append(k.Logprobs, cell.logprob)
		}
	}
	r.TopKPromptLogprobs = k
	return nil
}
