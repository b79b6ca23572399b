package inference

import (
	"strconv"
	"strings"
	"time"

	"anneal/api/wire"
	"anneal/engines"
)

// Usage counts the tokens of a request. The tokens of a prompt count once, whatever n is.
type Usage struct {
	PromptTokens      int                `json:"prompt_tokens"`
	CompletionTokens  int                `json:"completion_tokens"`
	TotalTokens       int                `json:"total_tokens"`
	Details           usageDetails       `json:"prompt_tokens_details"`
	CompletionDetails *completionDetails `json:"completion_tokens_details,omitempty"`
}

type usageDetails struct {
	CachedTokens int `json:"cached_tokens"` // prompt tokens that were found in the prefix cache
}

type completionDetails struct {
	ReasoningTokens int `json:"reasoning_tokens"`
}

func (u *Usage) add(more engines.Usage, firstSample bool) {
	if firstSample {
		u.PromptTokens += more.PromptTokens
		u.Details.CachedTokens += more.CachedTokens
	}
	u.CompletionTokens += more.CompletionTokens
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	if more.ReasoningTokens > 0 {
		if u.CompletionDetails == nil {
			u.CompletionDetails = &completionDetails{}
		}
		u.CompletionDetails.ReasoningTokens += more.ReasoningTokens
	}
}

// metrics returns the performance metrics of the request by name, with times in seconds. It leaves
// out metrics that the engine did not measure.
func (g *generation) metrics() map[string]any {
	first := g.firstChunk
	if first.IsZero() {
		first = time.Now()
	}
	all := map[string]any{
		"prompt-tokens":              g.usage.PromptTokens,
		"cached-prompt-tokens":       g.usage.Details.CachedTokens,
		"server-time-to-first-token": wire.Seconds(first.Sub(g.start)),
		"server-processing-time":     wire.Seconds(time.Since(g.start)),
		"deployment":                 string(g.deployment()),
	}
	if g.placement.Node != "" {
		all["backend-host"], all["num-concurrent-requests"] = g.placement.Node, g.placement.Concurrent
	}
	for name, d := range map[string]time.Duration{"tokenizer-duration": g.timings.Tokenize,
		"prefill-queue-duration": g.timings.PrefillQueue, "prefill-duration": g.timings.Prefill} {
		if d > 0 {
			all[name] = wire.Seconds(d)
		}
	}
	if g.timings.Direct {
		all["tokenizer-queue-duration"], all["generation-queue-duration"] = wire.Seconds(0), wire.Seconds(0)
	}
	g.speculation.addTo(all)
	return all
}

// A speculation counts the draft tokens of all choices of a request.
type speculation struct {
	engines.Speculation
	reported bool // at least one choice reported draft tokens
}

func (s *speculation) add(more *engines.Speculation) {
	if more == nil {
		return
	}
	s.reported = true
	s.PredictedTokens += more.PredictedTokens
	s.MatchedTokens += more.MatchedTokens
	for i := range min(len(more.Drafted), len(more.Accepted)) {
		if i == len(s.Drafted) {
			s.Drafted, s.Accepted = append(s.Drafted, 0), append(s.Accepted, 0)
		}
		s.Drafted[i] += more.Drafted[i]
		s.Accepted[i] += more.Accepted[i]
	}
}

// addTo adds the metrics of speculative decoding to metrics. The acceptance rates are a list by
// position in the draft.
func (s *speculation) addTo(metrics map[string]any) {
	if s.PredictedTokens > 0 {
		metrics["speculation-prompt-tokens"] = s.PredictedTokens
		metrics["speculation-prompt-matched-tokens"] = s.MatchedTokens
	}
	if !s.reported {
		return
	}
	drafted, rates := 0, []string{}
	for i, n := range s.Drafted {
		drafted += n
		rates = append(rates, strconv.FormatFloat(float64(s.Accepted[i])/float64(max(n, 1)), 'f', 3, 64))
	}
	if metrics["speculation-generated-tokens"] = drafted; drafted > 0 {
		metrics["speculation-acceptance"] = strings.Join(rates, ",")
	}
}

// bodyMetrics returns the field perf_metrics of the response's body, whose keys are the names of
// the headers without the prefix anneal-. It returns nil unless the request has
// perf_metrics_in_response.
func (g *generation) bodyMetrics() map[string]any {
	if !g.q.metricsInBody {
		return nil
	}
	return g.metrics()
}
