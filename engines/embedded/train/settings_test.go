package train

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/engines/embedded/llama"
)

// TestDefaultsOfAdapters checks that the default modules in the resource of a job are the
// modules that training selects by default.
func TestDefaultsOfAdapters(t *testing.T) {
	var names []string
	for _, m := range modules(engines.TrainSettings{}) {
		names = append(names, m.String())
	}
	require.Equal(t, engines.DefaultLoraModules(), names)
}

// TestLearningRateMultiplier checks that the multiplier scales the default learning rate, and that
// the settings of a job without one, which an earlier checkpoint may hold, do not change.
func TestLearningRateMultiplier(t *testing.T) {
	c := &llama.Config{HiddenSize: 2 * rateWidth, MaxPositions: 64}
	rate := func(s engines.TrainSettings) float64 {
		resolved, err := resolve(engines.TrainRequest{Method: engines.Supervised, Settings: s}, c)
		require.NoError(t, err)
		require.Equal(t, s.LearningRateMultiplier, resolved.LearningRateMultiplier)
		return resolved.LearningRate
	}
	standard := rate(engines.TrainSettings{LoraRank: 8})
	require.InDelta(t, defaultLoraRate/2, standard, 1e-12)
	require.InDelta(t, standard/4, rate(engines.TrainSettings{LoraRank: 8, LearningRateMultiplier: 0.25}), 1e-12)
	require.InDelta(t, 0.1, rate(engines.TrainSettings{LearningRate: 0.1}), 1e-12)
}

// TestAlphaIsFinite checks that the scale of an adapter is finite as float32.
func TestAlphaIsFinite(t *testing.T) {
	for alpha, valid := range map[float64]bool{16: true, 1e38: true, 1e39: false, math.Inf(1): false, math.NaN(): false} {
		_, err := resolve(engines.TrainRequest{Method: engines.Supervised,
			Settings: engines.TrainSettings{LoraRank: 8, LoraAlpha: alpha}}, &llama.Config{HiddenSize: 64, MaxPositions: 64})
		require.Equal(t, valid, err == nil, "%g: %v", alpha, err)
	}
}
