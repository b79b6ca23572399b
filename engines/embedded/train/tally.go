package train

import "anneal/engines"

// A tally counts what came of the answers that a job had written, from its
// beginning.
type tally struct {
	Expected int `json:"expected,omitempty"`
	Done     int `json:"done,omitempty"`
	Failed   int `json:"failed,omitempty"`
	Rows     int `json:"rows,omitempty"`
	Tokens   int `json:"tokens,omitempty"`
	Cached   int `json:"cached,omitempty"`
}

// tallied counts answers, of which each row has several.
func tallied(answers []answer, candidates int) tally {
	t := tally{Done: len(answers), Rows: len(answers) / candidates}
	for i := range answers {
		t.Tokens += len(answers[i].tokens)
		t.Cached += answers[i].cached
		if !answers[i].score.Valid {
			t.Failed++
		}
	}
	return t
}

func (t *tally) add(more tally) {
	t.Done, t.Failed, t.Rows = t.Done+more.Done, t.Failed+more.Failed, t.Rows+more.Rows
	t.Tokens, t.Cached = t.Tokens+more.Tokens, t.Cached+more.Cached
}

// tell adds the counts to a step's figures; a job that has no answers written
// tells none.
func (t *tally) tell(told map[string]float64) {
	if t.Done == 0 {
		return
	}
	for name, n := range map[string]int{engines.RolloutsExpected: t.Expected, engines.RolloutsDone: t.Done, engines.RolloutsFailed: t.Failed,
		engines.RolloutRows: t.Rows, engines.RolloutTokens: t.Tokens, engines.RolloutCached: t.Cached} {
		told[name] = float64(n)
	}
}
