package simulated_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/simulated"
)

func TestMeanReward(t *testing.T) {
	for _, line := range []struct {
		name, rows string
		weights    map[string]float64
		want       float64
		message    string
	}{
		{"weighted", `{"samples":[{"messages":[],"a":1,"b":0.5},{"messages":[],"a":0,"b":1}]}`,
			map[string]float64{"a": 2, "b": -1}, 0.25, ""},
		{"without weights", `{"samples":[{"messages":[],"a":1,"b":0.5}]}`, nil, 1.5, ""},
		{"a reward is missing", `{"samples":[{"messages":[],"a":1}]}`, map[string]float64{"b": 1}, 0, `lacks the reward "b"`},
		{"no samples", `{"text":"a"}`, nil, 0, "has no samples"},
	} {
		t.Run(line.name, func(t *testing.T) {
			one := request(t)
			one.Method, one.Settings.RewardWeights = engines.RLOR, line.weights
			one.DataFiles = []string{filepath.Join(t.TempDir(), "rows.jsonl")}
			require.NoError(t, os.WriteFile(one.DataFiles[0], []byte(line.rows+"\n"), 0o600))
			result, err := simulated.New(simulated.Options{}).Trainer.Train(t.Context(), one, &watcher{})
			if line.message != "" {
				require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
				require.ErrorContains(t, err, line.message)
				return
			}
			require.NoError(t, err)
			require.InDelta(t, line.want, result.Values["reward/mean"], 1e-9)
		})
	}
}
