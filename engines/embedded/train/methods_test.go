package train

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	"anneal/domain"
	"anneal/engines"
)

// pairRows returns n rows of preference pairs. The preferred response reverses the digits of the
// question.
func pairRows(n int) []string {
	rng := rand.New(rand.NewPCG(6, 6))
	var out []string
	for range n {
		a, b := rng.IntN(10), rng.IntN(9)
		out = append(
			out, fmt.Sprintf(
				`{"input":{"messages":[{"role":"user","content":"code `+
					`%d%d"}]},"preferred_output":[{"role":"assistant","content":"%d-%d-ok"}],`+
					`"non_preferred_output":[{"role":"assistant","content":"%d-%d"}]}`, a, b, b, a, a, b+1))
	}
	return out
}

// scoredRows returns n rows of three scored responses, with two metrics for each response.
func scoredRows(n int) []string {
	rng := rand.New(rand.NewPCG(7, 7))
	var out []string
	for range n {
		var samples []string
		for _, text := range []string{"ab", "bcd", "zzzz"} {
			samples = append(
				samples, fmt.Sprintf(
					`{"messages":[{"role":"user","content":"code `+
						`%d"},{"role":"assistant","content":"%s%d"}],"good":%.2f,"short":%.2f}`,
					rng.IntN(99), text, rng.IntN(9), rng.Float64(), 1/float64(len(text))))
		}
		out = append(out, `{"samples":[`+strings.Join(samples, ",")+`]}`)
	}
	return out
}

// promptRows returns n rows, each with a prompt and a field for the evaluator.
func promptRows(n int) []string {
	var out []string
	for i := range n {
		out = append(out,
			fmt.Sprintf(`{"messages":[{"role":"user","content":"say %d"}],"ground_truth":{"letter":%q}}`, i,
				string(rune('a'+i%26))))
	}
	return out
}

var shortResponses = &engines.Rollouts{
	InferenceParameters: domain.InferenceParameters{MaxOutputTokens: 6, ResponseCandidatesCount: 4},
}

// responsesAhead returns shortResponses that are generated ahead.
func responsesAhead(staleness int) *engines.Rollouts {
	how := *shortResponses
	how.MaxStaleness = staleness
	return &how
}

// letterEvaluator scores a response by the share of its bytes below 'm'. For prompts that end in
// 7, the score is not valid.
type letterEvaluator struct{}

func (letterEvaluator) Score(_ context.Context, rows []map[string]any) ([]engines.Score, error) {
	var out []engines.Score
	for _, row := range rows {
		messages := row["messages"].([]any)
		asked, text := messages[0].(map[string]any)["content"].(string),
			messages[len(messages)-1].(map[string]any)["content"].(string)
		if strings.HasSuffix(asked, "7") {
			out = append(out, engines.Score{Reason: "no opinion"})
			continue
		}
		small := 0
		for _, b := range []byte(text) {
			if b < 'm' {
				small++
			}
		}
		out = append(out, engines.Score{
			Value: float64(small) / float64(max(len(text), 1)), Valid: true,
			Metrics: map[string]float64{"length": float64(len(text))},
		})
	}
	return out, nil
}

func (letterEvaluator) Close() error { return nil }
