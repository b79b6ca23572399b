package serve

import (
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/tokenizer"
)

// check returns an InvalidArgument error with all violations of a request.
func (s *Samples) check(req *engines.TrainSampleRequest) error {
	var v domain.Violations
	vocab, window := s.model.vocab, s.model.info.ContextLength
	n := len(req.Prompt)
	v.Require(n >= 1 && n <= window, "prompt", "must have 1 to %d tokens, has %d", window, n)
	tokenRange(&v, "prompt", req.Prompt, vocab)
	v.Require(req.N >= 1 && req.N <= engines.MaxTrainSamples, "num_samples", "must be 1 to %d, is %d",
		engines.MaxTrainSamples, req.N)
	v.Require(req.MaxTokens >= 0, "max_tokens", "must be 0 or more, is %d", req.MaxTokens)
	v.Require(req.Temperature >= 0 && !math.IsInf(req.Temperature, 0), "temperature",
		"must be a finite number of at least 0, is %g", req.Temperature)
	v.Require(req.TopP >= 0 && req.TopP <= 1, "top_p", "must be 0 to 1, is %g", req.TopP)
	v.Require(len(req.StopTokens) <= engines.MaxTrainStops && len(req.StopTexts) <= engines.MaxTrainStops, "stop",
		"must have at most %d tokens and %d texts, has %d and %d", engines.MaxTrainStops, engines.MaxTrainStops,
		len(req.StopTokens), len(req.StopTexts))
	tokenRange(&v, "stop", req.StopTokens, vocab)
	v.Require(len(req.StopTexts) == 0 || s.tokenizer != nil, "stop",
		"has a text, but the base model has no tokenizer.json: give tokens")
	for i, text := range req.StopTexts[:min(len(req.StopTexts), engines.MaxTrainStops)] {
		if len(text) == 0 || len(text) > engines.MaxTrainStopTextSize || !utf8.ValidString(text) {
			v.Add("stop", "text %d must be UTF-8 of 1 to %d bytes, has %d", i, engines.MaxTrainStopTextSize, len(text))
		}
	}
	maxTop := min(engines.MaxTrainTopLogprobs, vocab)
	v.Require(req.TopKPromptLogprobs >= 0 && req.TopKPromptLogprobs <= maxTop, "topk_prompt_logprobs",
		"must be 0 to %d, is %d", maxTop, req.TopKPromptLogprobs)
	v.Require(req.Share.Weight >= 0 && req.Share.Weight <= engines.MaxTrainWeight, "share", "must have a weight of 0 to "+
		"%d, has %d", engines.MaxTrainWeight, req.Share.Weight)
	return v.Err()
}

func tokenRange(v *domain.Violations, field string, tokens []int32, vocab int) {
	at := slices.IndexFunc(tokens, func(token int32) bool { return token < 0 || int(token) >= vocab })
	if at >= 0 {
		v.Add(field, "token %d must be 0 to %d, is %d", at, vocab-1, tokens[at])
	}
}

// stopTexts finds texts that stop a sample.
type stopTexts struct {
	decoder *tokenizer.Decoder
	stops   []string
	tail    string // end of the text so far, in which a stop may begin
}

// completedBy adds a token, and reports whether it completes one of the texts.
func (t *stopTexts) completedBy(token int) bool {
	t.tail += t.decoder.Next(token)
	longest := 0
	for _, stop := range t.stops {
		if strings.Contains(t.tail, stop) {
			return true
		}
		longest = max(longest, len(stop))
	}
	t.tail = t.tail[max(len(t.tail)-longest+1, 0):]
	return false
}
