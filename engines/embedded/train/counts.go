package train

import "anneal/engines"

// rolloutCounts counts the answers of a job.
type rolloutCounts struct {
	Expected int `json:"expected,omitempty"`
	Done     int `json:"done,omitempty"`
	Failed   int `json:"failed,omitempty"`
	Rows     int `json:"rows,omitempty"`
	Tokens   int `json:"tokens,omitempty"`
	Cached   int `json:"cached,omitempty"`
}

// countRollouts counts answers, of which each row has candidates.
func countRollouts(answers []answer, candidates int) rolloutCounts {
	t := rolloutCounts{Done: len(answers), Rows: len(answers) / candidates}
	for i := range answers {
		t.Tokens += len(answers[i].tokens)
		t.Cached += answers[i].cached
		if !answers[i].score.Valid {
			t.Failed++
		}
	}
	return t
}

func (t *rolloutCounts) add(more rolloutCounts) {
	t.Done, t.Failed, t.Rows = t.Done+more.Done, t.Failed+more.Failed, t.Rows+more.Rows
	t.Tokens, t.Cached = t.Tokens+more.Tokens, t.Cached+more.Cached
}

// addTo adds the counts to a step's metrics, if the job has rollouts.
func (t *rolloutCounts) addTo(metrics map[string]float64) {
	if t.Done == 0 {
		return
	}
	for name, n := range map[string]int{
		engines.RolloutsExpected: t.Expected, engines.RolloutsDone: t.Done, engines.RolloutsFailed: t.Failed,
		engines.RolloutRows: t.Rows, engines.RolloutTokens: t.Tokens, engines.RolloutCached: t.Cached,
	} {
		metrics[name] = float64(n)
	}
}
