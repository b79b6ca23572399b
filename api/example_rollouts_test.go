package api

import (
	"time"

	"anneal/domain"
	"anneal/engines"
)

// exampleRollouts returns the rollouts of the step of a reinforcement job in the examples.
func exampleRollouts(at domain.JobProgress, now time.Time) []engines.Rollout {
	row := map[string]any{"order": "returned", "messages": []any{
		map[string]any{"role": "user", "content": "The tent leaks. Can I send it back?"}, nil}}
	rollouts := make([]engines.Rollout, 2)
	for i, response := range []struct {
		text, reason string
		score        float64
	}{
		{"Yes. Our 60-day return policy covers it: the label is in your order.", "names the return policy", 1},
		{"I am sorry to hear that. Yes, you can.", "names no policy", 0},
	} {
		row["messages"].([]any)[1] = map[string]any{"role": "assistant", "content": response.text}
		rollouts[i] = engines.NewRollout(row, engines.Score{Value: response.score, Valid: true, Reason: response.reason,
			Metrics: map[string]float64{"policies": response.score}})
		rollouts[i].Step, rollouts[i].Epoch, rollouts[i].Time = at.Step, at.Epoch, now
		rollouts[i].Row, rollouts[i].Candidate = 2, i+1
	}
	return rollouts
}
