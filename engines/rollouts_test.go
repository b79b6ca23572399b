package engines_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/internal/testutil"
)

func scoredRow(content string) map[string]any {
	return map[string]any{"ground_truth": "4", "messages": []any{
		map[string]any{"role": "user", "content": "2 + 2?"}, map[string]any{"role": "assistant", "content": content}}}
}

func TestNewRollout(t *testing.T) {
	row := scoredRow("4")
	r := engines.NewRollout(row, engines.Score{Value: 0.5, Valid: true, Reason: "right",
		Metrics: map[string]float64{"length": 1, "none": math.NaN()}})
	require.Equal(t, engines.Rollout{Response: "4", Score: 0.5, Valid: true, Reason: "right",
		Metrics: map[string]float64{"length": 1},
		Input:   json.RawMessage(`{"ground_truth":"4","messages":[{"content":"2 + 2?","role":"user"}]}`)}, r)
	require.Len(t, row["messages"], 2, "the row is not changed")
	for _, score := range []engines.Score{{Value: 7, Valid: true}, {Value: math.NaN(), Valid: true}, {Value: 1}} {
		r := engines.NewRollout(row, score)
		require.False(t, r.Valid)
		require.Zero(t, r.Score)
		testutil.Marshal(t, r)
	}
	require.Equal(t, "{}", string(engines.NewRollout(map[string]any{}, engines.Score{}).Input))
}

// TestRolloutsAreLimited checks that a rollout of any row, response and score has a limited size
// and valid UTF-8, and is marked as truncated.
func TestRolloutsAreLimited(t *testing.T) {
	many := map[string]float64{strings.Repeat("n", 1000): 1}
	for _, name := range strings.Split(strings.Repeat("x ", 100), " ") {
		many[name+strings.Repeat("y", len(many))] = 1
	}
	long := scoredRow("4")
	long["messages"].([]any)[0].(map[string]any)["content"] = strings.Repeat("é", 1<<20)
	wide := scoredRow("4")
	for i := range 5000 {
		wide[strings.Repeat("k", i%50)+string(rune('a'+i%26))+strings.Repeat("v", i/100)] = i
	}
	for name, r := range map[string]engines.Rollout{
		"response": engines.NewRollout(scoredRow(strings.Repeat("é", 1<<20)), engines.Score{Valid: true}),
		"reason":   engines.NewRollout(scoredRow("4"), engines.Score{Reason: strings.Repeat("é", 1<<20)}),
		"metrics":  engines.NewRollout(scoredRow("4"), engines.Score{Metrics: many}),
		"row":      engines.NewRollout(long, engines.Score{}),
		"fields":   engines.NewRollout(wide, engines.Score{}),
	} {
		r.Row = 1
		data := testutil.Marshal(t, r)
		require.Less(t, len(data), 40<<10, name)
		require.True(t, r.Truncated, name)
		require.NotContains(t, string(data), "\\ufffd", name)
		require.Contains(t, string(r.Input), `"role":"user"`, name)
	}
}

func TestReadRollouts(t *testing.T) {
	var rows []int
	file := `{"step":1,"row":3,"response":"a"}` + "\n\nnonsense\n{}\n" + `{"step":2,"row":4,"response":"b"}` + "\n" +
		`{"step":2,"row":5,"resp`
	read := func(limit int) {
		rows = nil
		require.NoError(t, engines.ReadRollouts(strings.NewReader(file), func(r *engines.Rollout, line []byte) bool {
			require.Contains(t, string(line), r.Response)
			rows = append(rows, r.Row)
			return len(rows) < limit
		}))
	}
	read(10)
	require.Equal(t, []int{3, 4}, rows)
	read(1)
	require.Equal(t, []int{3}, rows)
	damaged := strings.NewReader(strings.Repeat("x", 2*engines.MaxStepRolloutsBytes))
	require.Error(t, engines.ReadRollouts(damaged, func(*engines.Rollout, []byte) bool { return true }))
}
