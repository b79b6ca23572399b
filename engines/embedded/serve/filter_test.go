package serve

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/engines"
)

// expectedProbabilities returns the exact distribution from which a sampler for req samples a
// token.
func expectedProbabilities(req engines.CompletionRequest, prompt, generated []int, logits []float32) []float64 {
	seed := uint64(1)
	req.Seed = &seed
	s := newSampler(&req, prompt)
	for _, token := range generated {
		s.penalty.observe(token)
	}
	if s.penalty != nil {
		logits = s.penalty.apply(logits)
	}
	s.probs = append(s.probs, logits...)
	softmax(s.probs, req.Temperature)
	left := s.filtered()
	out, mass := make([]float64, len(logits)), total(left)
	for _, c := range left {
		out[c.token] = c.p / mass
	}
	return out
}

func softmax(values []float32, temperature float64) {
	sum := 0.0
	for _, v := range values {
		sum += math.Exp(float64(v) / temperature)
	}
	for i, v := range values {
		values[i] = float32(math.Exp(float64(v)/temperature) / sum)
	}
}

func logs(p ...float64) []float32 {
	out := make([]float32, len(p))
	for i, v := range p {
		out[i] = float32(math.Log(v))
	}
	return out
}

// normal returns weights divided by their sum.
func normal(weights ...float64) []float64 {
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	for i := range weights {
		weights[i] /= sum
	}
	return weights
}

// TestFiltersLeaveTheExactDistribution compares the distribution that each filter leaves, alone
// and combined with others, with values computed by hand.
func TestFiltersLeaveTheExactDistribution(t *testing.T) {
	spread := logs(0.1, 0.4, 0.2, 0.3)
	e := math.E
	for name, c := range map[string]struct {
		req               engines.CompletionRequest
		prompt, generated []int
		logits            []float32
		want              []float64
	}{
		"min_p keeps what is half as likely as the best": {
			engines.CompletionRequest{MinP: 0.5}, nil, nil, spread, normal(0, 4, 2, 3),
		},
		"min_p 1 keeps the best": {
			engines.CompletionRequest{MinP: 1}, nil, nil, spread, normal(0, 1, 0, 0),
		},
		"min_p 1 keeps all of the best": {
			engines.CompletionRequest{MinP: 1}, nil, nil, logs(0.3, 0.3, 0.2, 0.2), normal(1, 1, 0, 0),
		},
		"min_p after the temperature": {
			engines.CompletionRequest{Temperature: 0.5, MinP: 0.5}, nil, nil, spread, normal(0, 16, 0, 9),
		},
		// The surprisals are 2.303, 0.916, 1.609 and 1.204 nats and the entropy is 1.280, so the
		// order of the tokens by distance is 3, 2, 1, 0.
		"typical_p begins with the expected": {
			engines.CompletionRequest{TypicalP: 0.25}, nil, nil, spread, normal(0, 0, 0, 1),
		},
		"typical_p continues with the next nearest": {
			engines.CompletionRequest{TypicalP: 0.45}, nil, nil, spread, normal(0, 0, 2, 3),
		},
		"typical_p may leave out the best": {
			engines.CompletionRequest{TypicalP: 0.499}, nil, nil, spread, normal(0, 0, 2, 3),
		},
		"typical_p nearly all": {
			engines.CompletionRequest{TypicalP: 0.95}, nil, nil, spread, normal(1, 4, 2, 3),
		},
		"top_k before min_p": {
			engines.CompletionRequest{TopK: 3, MinP: 0.6}, nil, nil, spread, normal(0, 4, 0, 3),
		},
		"all of them": {
			engines.CompletionRequest{TopK: 3, TopP: 0.99, MinP: 0.1, TypicalP: 0.3}, nil, nil, spread, normal(0, 0, 0, 1),
		},
		"logit_bias": {
			engines.CompletionRequest{LogitBias: map[int]float64{0: 1, 3: -1}}, nil, nil, spread, normal(0.1*e, 0.4, 0.2, 0.3/e),
		},
		"logit_bias 100": {
			engines.CompletionRequest{LogitBias: map[int]float64{0: 100}}, nil, nil, spread, normal(1, 0, 0, 0),
		},
		"presence_penalty once": {
			engines.CompletionRequest{PresencePenalty: 1}, []int{0}, []int{1, 1, 2}, spread, normal(0.1, 0.4/e, 0.2/e, 0.3),
		},
		"frequency_penalty each time": {
			engines.CompletionRequest{FrequencyPenalty: 1}, []int{0}, []int{1, 1, 2}, spread, normal(0.1, 0.4/e/e, 0.2/e, 0.3),
		},
		"both together": {
			engines.CompletionRequest{FrequencyPenalty: 1, PresencePenalty: -2}, nil, []int{1, 1}, spread,
			normal(0.1, 0.4, 0.2, 0.3),
		},
		"repetition_penalty of prompt and answer": {
			engines.CompletionRequest{RepetitionPenalty: 2}, []int{0, 0}, []int{1, 1}, []float32{2, -1, 1, 0},
			normal(e, math.Exp(-2), e, 1),
		},
		"repetition_penalty below 1 favors repetition": {
			engines.CompletionRequest{RepetitionPenalty: 0.5}, []int{0}, []int{1}, []float32{1, -2, 1, 0},
			normal(e*e, 1/e, e, 1),
		},
		// The initial bound is twice the target, 2 bits, so tokens of probability 1/4 and more
		// remain.
		"mirostat begins at twice its target": {
			engines.CompletionRequest{MirostatTarget: 2}, nil, nil, spread, normal(0, 4, 0, 3),
		},
		"mirostat takes the place of the other filters": {
			engines.CompletionRequest{MirostatTarget: 4, TopK: 1, TopP: 0.1, MinP: 1}, nil, nil, spread, normal(1, 4, 2, 3),
		},
		"mirostat keeps one": {
			engines.CompletionRequest{MirostatTarget: 1}, nil, nil, spread, normal(0, 1, 0, 0),
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.req.Temperature == 0 {
				c.req.Temperature = 1
			}
			before := append([]float32(nil), c.logits...)
			assert.InDeltaSlice(t, c.want, expectedProbabilities(c.req, c.prompt, c.generated, c.logits), 1e-6)
			assert.Equal(t, before, c.logits, "the model's own logits stay")
		})
	}
}

// TestSamplesFollowTheDistribution checks samples with Pearson's chi-squared test at the 0.001
// level. The seed is fixed.
func TestSamplesFollowTheDistribution(t *testing.T) {
	logits := logs(0.1, 0.4, 0.2, 0.3)
	for name, req := range map[string]engines.CompletionRequest{
		"plain":    {Temperature: 1},
		"top_k":    {Temperature: 1, TopK: 2},
		"top_p":    {Temperature: 1, TopP: 0.8},
		"min_p":    {Temperature: 1.5, MinP: 0.4},
		"typical":  {Temperature: 1, TypicalP: 0.8},
		"biased":   {Temperature: 1, LogitBias: map[int]float64{0: 2}},
		"together": {Temperature: 0.7, TopK: 3, TopP: 0.95, MinP: 0.05, LogitBias: map[int]float64{2: 1}},
	} {
		want, got := expectedProbabilities(req, nil, nil, logits), shares(t, req, logits)
		sum, free := 0.0, -1
		for i, p := range want {
			if p == 0 {
				require.Zero(t, got[i], name)
				continue
			}
			sum += draws * (got[i] - p) * (got[i] - p) / p
			free++
		}
		limit := map[int]float64{1: 10.83, 2: 13.82, 3: 16.27}[free]
		assert.Less(t, sum, limit, name)
	}
}

// TestMirostatHoldsItsTarget checks that the mean surprisal of a long text is near the target.
// The text is sampled from a fixed distribution whose entropy exceeds the target.
func TestMirostatHoldsItsTarget(t *testing.T) {
	logits := make([]float32, 200)
	for i := range logits {
		logits[i] = -1.1 * float32(math.Log(float64(i+1)))
	}
	for _, perplexity := range []float64{4, 8, 16} {
		seed := uint64(3)
		s := newSampler(&engines.CompletionRequest{Temperature: 1, MirostatTarget: perplexity, Seed: &seed}, nil)
		surprise, n := 0.0, 0
		for i := range 5000 {
			_, p, err := s.next(logits)
			require.NoError(t, err)
			if i >= 500 { // earlier, the bound is still near its start, twice the target
				surprise, n = surprise-math.Log2(p), n+1
			}
		}
		assert.InDelta(t, math.Log2(perplexity), surprise/float64(n), 0.05, "perplexity %g", perplexity)
	}
}

func TestGreedyObeysPenaltiesAndNoFilter(t *testing.T) {
	logits := logs(0.1, 0.4, 0.2, 0.3)
	token, p, err := newSampler(&engines.CompletionRequest{TypicalP: 0.1, MirostatTarget: 9}, nil).next(logits)
	require.NoError(t, err)
	assert.Equal(t, 1, token)
	assert.InDelta(t, 1, p, 0)
	s := newSampler(&engines.CompletionRequest{FrequencyPenalty: 0.3}, nil)
	var drawn []int
	for range 6 {
		token, _, err := s.next(logits)
		require.NoError(t, err)
		drawn = append(drawn, token)
	}
	assert.Equal(t, []int{1, 3, 1, 3, 1, 2}, drawn)
}

func TestTopTokens(t *testing.T) {
	logits := []float32{1, 5, 3, 5, 2, 5}
	for n, want := range [][]int{nil, {1}, {1, 3}, {1, 3, 5}, {1, 3, 5, 2}, {1, 3, 5, 2, 4}, {1, 3, 5, 2, 4, 0}} {
		assert.Equal(t, want, topTokens(logits, n)[:len(want):len(want)])
		assert.Len(t, topTokens(logits, n), n)
	}
}
