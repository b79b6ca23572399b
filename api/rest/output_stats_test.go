package rest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// TestOutputMetricsSelectOutputStats checks that outputMetrics selects the metrics of outputStats.
func TestOutputMetricsSelectOutputStats(t *testing.T) {
	progress := &JobProgress{Metrics: map[string]float64{"reward/mean": 0.5, "rollout/done": 4, "train/loss": 2,
		"train/kl": 1, "rewards": 3}}
	for metrics, want := range map[string]string{
		"":                      `{"reward/mean": 0.5, "rollout/done": 4}`,
		"train/loss":            `{"train/loss": 2}`,
		"reward/mean , train/,": `{"reward/mean": 0.5, "train/loss": 2, "train/kl": 1}`,
	} {
		require.JSONEq(t, want, outputStats(progress, domain.ReinforcementSpec{OutputMetrics: metrics}.SelectedMetrics()))
	}
	require.Empty(t, outputStats(progress, []string{"eval/"}))
	require.Empty(t, outputStats(nil, []string{"train/"}))
}
