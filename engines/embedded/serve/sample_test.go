package serve

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/engines"
)

const draws = 20000

// shares returns the relative frequency of each token in many samples.
func shares(t *testing.T, req engines.CompletionRequest, logits []float32) []float64 {
	seed := uint64(1)
	req.Seed = &seed
	s := newSampler(&req, nil)
	out := make([]float64, len(logits))
	for range draws {
		token, _, err := s.next(logits)
		require.NoError(t, err)
		out[token] += 1.0 / draws
	}
	return out
}

func TestSampling(t *testing.T) {
	logits := []float32{float32(math.Log(0.1)), float32(math.Log(0.4)), float32(math.Log(0.2)), float32(math.Log(0.3))}
	for name, c := range map[string]struct {
		req  engines.CompletionRequest
		want []float64
	}{
		"greedy":      {engines.CompletionRequest{}, []float64{0, 1, 0, 0}},
		"plain":       {engines.CompletionRequest{Temperature: 1}, []float64{0.1, 0.4, 0.2, 0.3}},
		"top_p 1":     {engines.CompletionRequest{Temperature: 1, TopP: 1}, []float64{0.1, 0.4, 0.2, 0.3}},
		"cold":        {engines.CompletionRequest{Temperature: 0.5}, []float64{1. / 30, 16. / 30, 4. / 30, 9. / 30}},
		"nearly zero": {engines.CompletionRequest{Temperature: 1e-9}, []float64{0, 1, 0, 0}},
		"top_k":       {engines.CompletionRequest{Temperature: 1, TopK: 2}, []float64{0, 4. / 7, 0, 3. / 7}},
		"top_k all":   {engines.CompletionRequest{Temperature: 1, TopK: 9}, []float64{0.1, 0.4, 0.2, 0.3}},
		"top_p":       {engines.CompletionRequest{Temperature: 1, TopP: 0.75}, []float64{0, 4. / 9, 2. / 9, 3. / 9}},
		"top_p tiny":  {engines.CompletionRequest{Temperature: 1, TopP: 0.01}, []float64{0, 1, 0, 0}},
		"both":        {engines.CompletionRequest{Temperature: 1, TopK: 3, TopP: 0.6}, []float64{0, 4. / 7, 0, 3. / 7}},
	} {
		t.Run(name, func(t *testing.T) { assert.InDeltaSlice(t, c.want, shares(t, c.req, logits), 0.015) })
	}
}

func TestTiesByTokenID(t *testing.T) {
	logits := []float32{1, 2, 2, 2}
	assert.InDelta(t, 1, shares(t, engines.CompletionRequest{}, logits)[1], 1e-9)
	got := shares(t, engines.CompletionRequest{Temperature: 1, TopK: 2}, logits)
	assert.InDeltaSlice(t, []float64{0, 0.5, 0.5, 0}, got, 0.015)
}

func TestUnseededCompletionsDiffer(t *testing.T) {
	logits := make([]float32, 1000)
	req := engines.CompletionRequest{Temperature: 1}
	a, b := newSampler(&req, nil), newSampler(&req, nil)
	same := 0
	for range 20 {
		x, _, err := a.next(logits)
		require.NoError(t, err)
		y, _, err := b.next(logits)
		require.NoError(t, err)
		if x == y {
			same++
		}
	}
	assert.Less(t, same, 5)
}

func TestNaNIsAnError(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, req := range []engines.CompletionRequest{
		{}, {Temperature: 1}, {Temperature: 1e-3, TopP: 0.5, TypicalP: 0.5}, {Temperature: 1, MirostatTarget: 9},
		{Temperature: 1, RepetitionPenalty: 2},
	} {
		for _, logits := range [][]float32{{nan, 0}, {0, nan}, {inf, 0}, {0, inf}, {-inf, -inf}} {
			_, _, err := newSampler(&req, nil).next(logits)
			assert.ErrorContains(t, err, "not a number")
		}
	}
	_, _, err := newSampler(&engines.CompletionRequest{Temperature: 1e-3}, nil).next([]float32{math.MaxFloat32, 0})
	assert.ErrorContains(t, err, "not a number", "dividing by the temperature makes a logit infinite")
	token, _, err := newSampler(&engines.CompletionRequest{Temperature: 1}, nil).next([]float32{-inf, 0})
	assert.NoError(t, err)
	assert.Equal(t, 1, token)
}
