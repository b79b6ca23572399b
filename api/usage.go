package api

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"anneal/engines"
)

// Usage counts tokens; each prompt once, however many continuations it has.
type Usage struct {
	PromptTokens      int                `json:"prompt_tokens"`
	CompletionTokens  int                `json:"completion_tokens"`
	TotalTokens       int                `json:"total_tokens"`
	Details           usageDetails       `json:"prompt_tokens_details"`
	CompletionDetails *completionDetails `json:"completion_tokens_details,omitempty"`
}

// Of the prompt's tokens.
type usageDetails struct {
	CachedTokens int `json:"cached_tokens"` // those that had not to be read again
}

// Of the completion's tokens; only there when the model reasoned.
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

// A seat is where a choice was generated.
type seat struct {
	host       string // the node
	concurrent int    // requests that this server had on the replica then, this one among them
}

// metrics are the performance metrics of the request, times in seconds. Those
// that nobody measured are left out.
func (g *generation) metrics() map[string]any {
	begun := g.first
	if begun.IsZero() {
		begun = time.Now()
	}
	all := map[string]any{
		"prompt-tokens":              g.usage.PromptTokens,
		"cached-prompt-tokens":       g.usage.Details.CachedTokens,
		"server-time-to-first-token": seconds(begun.Sub(g.start)),
		"server-processing-time":     seconds(time.Since(g.start)),
		"deployment":                 string(g.to.Name),
	}
	if g.at.host != "" {
		all["backend-host"], all["num-concurrent-requests"] = g.at.host, g.at.concurrent
	}
	for name, d := range map[string]time.Duration{"tokenizer-duration": g.times.Tokenize, "prefill-queue-duration": g.times.PrefillQueue, "prefill-duration": g.times.Prefill} {
		if d > 0 {
			all[name] = seconds(d)
		}
	}
	if g.times.Direct {
		all["tokenizer-queue-duration"], all["generation-queue-duration"] = seconds(0), seconds(0)
	}
	g.guess.tell(all)
	return all
}

// guesses are what became of the guesses of all choices.
type guesses struct {
	engines.Speculation
	some bool
}

func (s *guesses) add(more *engines.Speculation) {
	if more == nil {
		return
	}
	s.some = true
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

// tell adds the metrics of guesses to all others. The rates of acceptance are
// those of the first token of each guess, of the second, and so on.
func (s *guesses) tell(all map[string]any) {
	if s.PredictedTokens > 0 {
		all["speculation-prompt-tokens"], all["speculation-prompt-matched-tokens"] = s.PredictedTokens, s.MatchedTokens
	}
	if !s.some {
		return
	}
	guessed, rates := 0, []string{}
	for i, n := range s.Drafted {
		guessed += n
		rates = append(rates, strconv.FormatFloat(float64(s.Accepted[i])/float64(max(n, 1)), 'f', 3, 64))
	}
	if all["speculation-generated-tokens"] = guessed; guessed > 0 {
		all["speculation-acceptance"] = strings.Join(rates, ",")
	}
}

// metricsIn are the metrics in the body, when they are asked for there.
func (g *generation) metricsIn() map[string]any {
	if !g.q.perf {
		return nil
	}
	return g.metrics()
}

func seconds(d time.Duration) json.Number {
	return json.Number(strconv.FormatFloat(d.Seconds(), 'f', 6, 64))
}
