package tinker

import (
	"encoding/json"
	"math"
	"slices"

	"anneal/domain"
	"anneal/engines"
)

// A SampleRequest requests samples from a sampling session, a base model or a checkpoint.
type SampleRequest struct {
	SamplingSessionID  string         `json:"sampling_session_id,omitempty"`
	SeqID              *int64         `json:"seq_id,omitempty"` // number of the request in its sampling session
	BaseModel          string         `json:"base_model,omitempty"`
	ModelPath          string         `json:"model_path,omitempty"`
	Prompt             ModelInput     `json:"prompt"`
	NumSamples         *int           `json:"num_samples,omitempty"` // default 1
	SamplingParams     SamplingParams `json:"sampling_params"`
	PromptLogprobs     bool           `json:"prompt_logprobs,omitempty"`
	TopKPromptLogprobs int            `json:"topk_prompt_logprobs,omitempty"`
}

// SamplingParams are the parameters of sampling.
type SamplingParams struct {
	MaxTokens   *int     `json:"max_tokens,omitempty"` // nil stands for what the context allows
	Seed        *Seed    `json:"seed,omitempty"`
	Stop        Stop     `json:"stop,omitzero"`
	Temperature *float64 `json:"temperature,omitempty"` // default 1; 0 is greedy
	TopK        *int     `json:"top_k,omitempty"`       // default −1, no limit
	TopP        *float64 `json:"top_p,omitempty"`       // default 1
}

// A Seed is the seed of samples. Its JSON form can be negative.
type Seed uint64

// UnmarshalJSON implements json.Unmarshaler.
func (s *Seed) UnmarshalJSON(raw []byte) error {
	var signed int64
	if json.Unmarshal(raw, &signed) == nil {
		*s = Seed(signed)
		return nil
	}
	return json.Unmarshal(raw, (*uint64)(s))
}

// Stop has the texts or the tokens that end a sample. In JSON it is a string, or a list of strings
// or tokens.
type Stop struct {
	Texts  []string
	Tokens []int32
}

// MarshalJSON implements json.Marshaler.
func (s Stop) MarshalJSON() ([]byte, error) {
	if s.Tokens != nil {
		return json.Marshal(s.Tokens)
	}
	return json.Marshal(s.Texts)
}

func (s *Stop) decodeValue(v *domain.Violations, raw json.RawMessage, path string) {
	*s = Stop{}
	var text string
	switch {
	case json.Unmarshal(raw, &text) == nil:
		s.Texts = []string{text}
	case json.Unmarshal(raw, &s.Texts) == nil:
	default:
		s.Texts = nil
		if json.Unmarshal(raw, &s.Tokens) != nil {
			s.Tokens = nil
			v.Add(path, "must be a string, a list of strings or a list of tokens, is %s", jsonValue(raw))
		}
	}
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Stop) UnmarshalJSON(raw []byte) error {
	var v domain.Violations
	s.decodeValue(&v, raw, "stop")
	return v.Err()
}

func (s *Stop) check(v *domain.Violations, path string) {
	n := len(s.Texts) + len(s.Tokens)
	v.Require(n <= engines.MaxTrainStops, path, "must have at most %d entries, has %d", engines.MaxTrainStops, n)
	for i, text := range s.Texts {
		v.Require(text != "" && len(text) <= engines.MaxTrainStopTextSize, index(path, i),
			"must have 1 to %d bytes, has %d", engines.MaxTrainStopTextSize, len(text))
	}
	checkTokens(v, path, s.Tokens)
}

func (p *SamplingParams) check(v *domain.Violations, path string) {
	v.Require(p.MaxTokens == nil || *p.MaxTokens >= 1 && *p.MaxTokens <= MaxTokens, path+".max_tokens",
		"must be 1 to %d, is %d", MaxTokens, valueOf(p.MaxTokens, 0))
	temperature, topP, topK := valueOf(p.Temperature, 1), valueOf(p.TopP, 1), valueOf(p.TopK, -1)
	v.Require(temperature >= 0 && temperature <= math.MaxFloat32, path+".temperature",
		"must be a finite number of at least 0, is %g; 0 chooses the most likely token", temperature)
	v.Require(topP > 0 && topP <= 1, path+".top_p", "must be above 0 and at most 1, is %g; 1 stands for no limit", topP)
	v.Require(topK >= -1 && topK <= math.MaxInt32, path+".top_k", "must be at least −1, is %d; −1 stands for no limit",
		topK)
	p.Stop.check(v, path+".stop")
}

func (r *SampleRequest) check(v *domain.Violations) {
	switch {
	case r.SamplingSessionID != "":
		checkText(v, "sampling_session_id", r.SamplingSessionID, MaxPathBytes, true)
		checkSeq(v, "seq_id", r.SeqID, 0)
		v.Require(r.BaseModel == "" && r.ModelPath == "", "sampling_session_id",
			"names the model: leave base_model and model_path out")
	case (r.BaseModel == "") == (r.ModelPath == ""):
		v.Add("model_path", "set one of sampling_session_id, base_model and model_path")
	}
	checkSource(v, r.BaseModel, r.ModelPath)
	r.Prompt.tokens(v, "prompt")
	n := valueOf(r.NumSamples, 1)
	v.Require(n >= 1 && n <= engines.MaxTrainSamples, "num_samples", "must be 1 to %d, is %d", engines.MaxTrainSamples, n)
	r.SamplingParams.check(v, "sampling_params")
	if tokens := valueOf(r.SamplingParams.MaxTokens, 1); n <= engines.MaxTrainSamples && tokens <= MaxTokens {
		v.Require(n*tokens <= MaxSampledTokens, "num_samples", "times max_tokens must be at most %d, is %d: send several "+
			"requests", MaxSampledTokens, n*tokens)
	}
	v.Require(r.TopKPromptLogprobs >= 0 && r.TopKPromptLogprobs <= engines.MaxTrainTopLogprobs, "topk_prompt_logprobs",
		"must be 0 to %d, is %d", engines.MaxTrainTopLogprobs, r.TopKPromptLogprobs)
}

func checkSource(v *domain.Violations, baseModel, modelPath string) {
	checkText(v, "base_model", baseModel, MaxNameBytes, false)
	if modelPath != "" {
		if _, err := ParsePath(modelPath); err != nil {
			v.Add("model_path", "%v", err)
		}
	}
}

// A CreateSamplingSessionRequest creates a sampling session for a base model or a checkpoint.
type CreateSamplingSessionRequest struct {
	SessionID            string `json:"session_id"`
	SamplingSessionSeqID *int64 `json:"sampling_session_seq_id"` // number of the sampling session in its session, from 0
	BaseModel            string `json:"base_model,omitempty"`
	ModelPath            string `json:"model_path,omitempty"`
}

func (r *CreateSamplingSessionRequest) check(v *domain.Violations) {
	checkText(v, "session_id", r.SessionID, MaxNameBytes, true)
	checkSeq(v, "sampling_session_seq_id", r.SamplingSessionSeqID, 0)
	v.Require(r.BaseModel != "" || r.ModelPath != "", "model_path", "or base_model is required")
	checkSource(v, r.BaseModel, r.ModelPath)
}

// A CreateSamplingSessionResponse has the ID of a sampling session.
type CreateSamplingSessionResponse struct {
	SamplingSessionID string `json:"sampling_session_id"`
	Type              string `json:"type"` // "create_sampling_session"
}

// A Sampler describes a sampling session.
type Sampler struct {
	SamplerID string `json:"sampler_id"`
	BaseModel string `json:"base_model"`
	ModelPath string `json:"model_path,omitempty"`
}

// Sample validates the request and converts it to that of an engine. weights are the weights that
// the caller has resolved, and seed is the seed of the samples if the request has none.
func (r *SampleRequest) Sample(weights string, seed uint64) (engines.TrainSampleRequest, error) {
	var v domain.Violations
	p := &r.SamplingParams
	request := engines.TrainSampleRequest{
		Weights: weights, Prompt: r.Prompt.tokens(&v, "prompt"), N: valueOf(r.NumSamples, 1),
		MaxTokens: valueOf(p.MaxTokens, 0), Temperature: valueOf(p.Temperature, 1), TopK: valueOf(p.TopK, -1),
		TopP: valueOf(p.TopP, 1), Seed: uint64(valueOf(p.Seed, Seed(seed))),
		StopTokens: p.Stop.Tokens, StopTexts: p.Stop.Texts,
		PromptLogprobs: r.PromptLogprobs, TopKPromptLogprobs: r.TopKPromptLogprobs,
	}
	return request, v.Err()
}

// SampleResponseOf converts samples. topK is the TopKPromptLogprobs of their request.
func SampleResponseOf(samples *engines.TrainSamples, topK int) SampleResponse {
	out := SampleResponse{Sequences: make([]SampledSequence, len(samples.Sequences)),
		PromptLogprobs: samples.PromptLogprobs, PromptCacheHitTokens: samples.CachedTokens}
	for i, s := range samples.Sequences {
		out.Sequences[i] = SampledSequence{StopReason: StopReasonLength, Tokens: s.Tokens, Logprobs: s.Logprobs}
		if s.Stopped {
			out.Sequences[i].StopReason = StopReasonStop
		}
	}
	if topK > 0 && len(samples.TopKTokens) > 0 {
		k := &TopKPromptLogprobs{K: topK, PromptLength: len(samples.TopKTokens) / topK,
			TokenIDs: slices.Clone(samples.TopKTokens), Logprobs: slices.Clone(samples.TopKLogprobs)}
		for i, x := range k.Logprobs {
			if x != x {
				k.TokenIDs[i], k.Logprobs[i] = 0, MaskLogprob
			}
		}
		out.TopKPromptLogprobs = k
	}
	return out
}
