package train

import "anneal/engines"

// rolloutCounts counts the rollouts of a job, their rows and their tokens.
type rolloutCounts struct {
	Expected int `json:"expected,omitempty"`
	Done     int `json:"done,omitempty"`
	Failed   int `json:"failed,omitempty"`
	Rows     int `json:"rows,omitempty"`
	Prompts  int `json:"prompts,omitempty"` // number of prompt tokens
	Tokens   int `json:"tokens,omitempty"`  // number of generated tokens
	Cached   int `json:"cached,omitempty"`
}

// countRollouts returns the counts of responses. candidates is the number of responses to each row.
func countRollouts(responses []response, candidates int) rolloutCounts {
	t := rolloutCounts{Done: len(responses), Rows: len(responses) / candidates}
	for i := range responses {
		t.Prompts += len(responses[i].prompt.tokens)
		t.Tokens += len(responses[i].tokens)
		t.Cached += responses[i].cached
		if !responses[i].score.Valid {
			t.Failed++
		}
	}
	return t
}

func (t *rolloutCounts) add(more rolloutCounts) {
	t.Done, t.Failed, t.Rows = t.Done+more.Done, t.Failed+more.Failed, t.Rows+more.Rows
	t.Prompts, t.Tokens, t.Cached = t.Prompts+more.Prompts, t.Tokens+more.Tokens, t.Cached+more.Cached
}

// addTo adds the counts to the metrics of a step. It adds nothing if the job has no rollouts.
func (t *rolloutCounts) addTo(metrics map[string]float64) {
	if t.Done == 0 {
		return
	}
	for name, n := range map[string]int{
		engines.RolloutsExpected: t.Expected, engines.RolloutsDone: t.Done, engines.RolloutsFailed: t.Failed,
		engines.RolloutRows: t.Rows, engines.RolloutPrompts: t.Prompts, engines.RolloutTokens: t.Tokens,
		engines.RolloutCached: t.Cached,
	} {
		metrics[name] = float64(n)
	}
}
