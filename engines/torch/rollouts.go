package torch

import (
	"fmt"
	"time"

	"anneal/engines"
)

// record passes the rollouts of a score message, those of a step or of an evaluation, to the
// request's recorder.
func (r *training) record(m message, scores []engines.Score) error {
	if len(m.Numbers) != len(m.Rows) || len(scores) != len(m.Rows) {
		return fmt.Errorf("the training script sent %d rows with %d row numbers, and the evaluator returned %d "+
			"scores: each row must have one of each", len(m.Rows), len(m.Numbers), len(scores))
	}
	if r.request.OnRollouts == nil {
		return nil
	}
	now := time.Now().UTC()
	rollouts := make([]engines.Rollout, len(scores))
	for i, score := range scores {
		one := engines.NewRollout(m.Rows[i], score)
		one.Step, one.Epoch, one.Evaluation, one.Time, one.Row = m.Step, m.Epoch, m.Held, now, m.Numbers[i]
		one.Candidate = 1
		if i > 0 && m.Numbers[i-1] == m.Numbers[i] { // responses to the same row are adjacent
			one.Candidate = rollouts[i-1].Candidate + 1
		}
		rollouts[i] = one
	}
	r.request.OnRollouts(rollouts)
	return nil
}
