package train

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines/embedded/llama"
)

// targets returns a sample. chosen is the number of target tokens in its chosen response. If
// rejected is not 0, the sample is paired with a rejected response, in which rejected is the number
// of target tokens.
func targets(chosen, rejected int) *Sample {
	s := &Sample{Tokens: make([]int32, chosen+1), Scored: make([]bool, chosen+1)}
	for i := range chosen {
		s.Scored[i+1] = true
	}
	if rejected > 0 {
		s.Rejected = targets(rejected, 0)
	}
	return s
}

func loss(o objective, s *Sample, logp ...float32) float64 {
	return o.loss(s, logp, make([]float32, len(logp)), means{})
}

// usual is the clipping of GRPO.
var usual = clipping{0.8, 1.2, 0}

// TestObjectivesInClosedForm compares the loss of each objective with values computed by hand.
func TestObjectivesInClosedForm(t *testing.T) {
	pair := targets(2, 1)
	pair.Reference = []float32{-1, -2, -3}
	require.InDelta(t, math.Ln2, loss(dpo{0.1}, pair, -1, -2, -3), 1e-6, "the reference has no preference")
	require.InDelta(t, math.Log(1+math.Exp(-0.5*(2-(-1)))), loss(dpo{0.5}, pair, -0.5, -0.5, -4), 1e-6)

	odds := func(p float64) float64 { return math.Log(p / (1 - p)) }
	half, tenth := float32(math.Log(0.5)), float32(math.Log(0.1))
	require.InDelta(t, math.Ln2+0.3*math.Log(1+math.Exp(-(odds(0.5)-odds(0.1)))), loss(orpo{0.3}, pair, half, half, tenth),
		1e-6)

	answer := targets(2, 0)
	answer.Behavior, answer.Reference, answer.Advantage = []float32{-1, -1}, []float32{-1, -2}, 2
	double := -1 + float32(math.Ln2)
	require.InDelta(t, -2, loss(grpo{usual, 0}, answer, -1, -1), 1e-6, "on-policy the ratio is 1")
	require.InDelta(t, -(1*2+1.2*2)/2, loss(grpo{usual, 0}, answer, -1, double), 1e-6, "clipped from above")
	require.InDelta(t, -2+0.5*(math.Exp(-1)+1-1)/2, loss(grpo{usual, 0.5}, answer, -1, -1), 1e-6, "the KL term")
	require.InDelta(t, -(2 + 1.28*2), loss(dapo{clipping{0.8, 1.28, 0}}, answer, -1, double), 1e-6, "a sum over tokens")
	require.InDelta(t, -math.Sqrt2*2, loss(gspo{clipping{0.5, 2, 0}}, answer, -1, double), 1e-6,
		"the geometric mean of the ratios")
	answer.Advantage = -2
	require.InDelta(t, (2+2*2)/2., loss(grpo{usual, 0}, answer, -1, double), 1e-6,
		"negative advantages are not clipped from above")
	require.InDelta(t, (2+0.8*2)/2., loss(grpo{usual, 0}, answer, -1, -1-float32(math.Ln2)), 1e-6,
		"negative advantages are clipped from below")

	stale := clipping{0.8, 1.2, 2}
	require.InDelta(t, (2+2*2)/2., loss(grpo{stale, 0}, answer, -1, double), 1e-6, "the weight is not above the limit")
	grads, metrics := make([]float32, 2), means{}
	answer.Behavior = []float32{-4, -1}
	grpo{stale, 0}.loss(answer, []float32{-1, -1}, grads, metrics)
	require.InDelta(t, 2*2/2., grads[0], 1e-6, "the importance weight is truncated")
	require.InDelta(t, 2/2., grads[1], 1e-6)
	require.InDelta(t, (math.Exp(3)+1)/2, metrics["ratio"].value(), 1e-4, "the metric is not truncated")
}

// objectives returns each objective with several parameters, by name.
func objectives() map[string]objective {
	out := map[string]objective{"likelihood": likelihood{}}
	for _, beta := range []float64{0.01, 0.1, 1, 5} {
		out[fmt.Sprint("dpo beta ", beta)] = dpo{beta}
		out[fmt.Sprint("orpo lambda ", beta)] = orpo{beta}
		out[fmt.Sprint("grpo klBeta ", beta)] = grpo{usual, beta}
	}
	for _, low := range []float64{0.5, 0.8, 1} {
		for _, high := range []float64{1, 1.28, 2} {
			out[fmt.Sprint("grpo clip ", low, high)] = grpo{clipping{low, high, 0}, 0}
			out[fmt.Sprint("dapo clip ", low, high)] = dapo{clipping{low, high, 0}}
			out[fmt.Sprint("gspo clip ", low, high)] = gspo{clipping{low, high, 0}}
			out[fmt.Sprint("grpo truncated ", low, high)] = grpo{clipping{low, high, 1.1}, 0}
			out[fmt.Sprint("gspo truncated ", low, high)] = gspo{clipping{low, high, 1.1}}
		}
	}
	return out
}

// random returns a sample with random values in the fields of all objectives, and random
// log-probabilities of its targets.
func random(rng *rand.Rand, chosen, rejected int) (*Sample, []float32) {
	s := targets(chosen, rejected)
	draw := func(away float64) []float32 {
		out := make([]float32, chosen+rejected)
		for i := range out {
			out[i] = -float32(0.05 + away*rng.ExpFloat64())
		}
		return out
	}
	logp := draw(1)
	s.Reference, s.Behavior, s.Advantage = draw(1), draw(1), rng.NormFloat64()
	for i := range s.Behavior { // close enough to logp that some ratios are within the clipping range
		s.Behavior[i] = logp[i] + 0.3*float32(rng.NormFloat64())
	}
	return s, logp
}

// TestGradientsMatchFiniteDifferences compares the derivatives that each objective writes with
// finite differences of its loss, for several parameters and lengths.
func TestGradientsMatchFiniteDifferences(t *testing.T) {
	for name, o := range objectives() {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(3, 4))
			seen, corners := 0, 0
			for try := range 200 {
				s, logp := random(rng, 1+try%7, 1+try%5)
				if _, pairs := o.(dpo); !pairs {
					if _, pairs = o.(orpo); !pairs {
						s.Rejected, logp = nil, logp[:1+try%7]
						s.Behavior = s.Behavior[:len(logp)]
					}
				}
				grads := make([]float32, len(logp))
				o.loss(s, logp, grads, means{})
				const step = 1.0 / 512
				for i := range logp {
					at := func(by float32) float64 {
						moved := append([]float32(nil), logp...)
						moved[i] += by
						return loss(o, s, moved...)
					}
					forth, back := (at(step)-at(0))/step, (at(0)-at(-step))/step
					if math.Abs(forth-back) > 2e-3+0.02*(math.Abs(forth)+math.Abs(back)) {
						corners++
						continue // the loss is not differentiable where clipping begins
					}
					require.InDelta(t, (forth+back)/2, grads[i], 5e-3+0.02*math.Abs(forth), "token %d of %v", i, logp)
					seen++
				}
			}
			require.Greater(t, seen, 300)
			require.Less(t, corners, seen/20)
		})
	}
}

// TestGradientsMatchFiniteDifferencesThroughTheModel takes a small step along the gradient of
// each objective through a whole model, at two temperatures. The change of the loss must match
// the gradient's norm.
func TestGradientsMatchFiniteDifferencesThroughTheModel(t *testing.T) {
	c := llama.Config{
		ModelType: "llama", HiddenSize: 16, IntermediateSize: 24, Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 8,
		VocabSize: 23, MaxPositions: 32, NormEps: 1e-5, RopeTheta: 10000, TieWordEmbeddings: true, InitializerRange: 0.3,
	}
	for name, o := range objectives() {
		for _, temperature := range []float64{1, 0.7} {
			t.Run(fmt.Sprint(name, " at ", temperature), func(t *testing.T) {
				weights := llama.NewWeights(c)
				weights.Initialize(3)
				loop := NewLoop(llama.NewNet(weights, nil, 1), 2)
				loop.objective = o
				loop.setTemperature(temperature)
				rng := rand.New(rand.NewPCG(7, 8))
				samples := sequences(rng, c.VocabSize, o)
				now, err := loop.logp(t.Context(), samples)
				require.NoError(t, err)
				for i, s := range samples {
					for _, lp := range now[i] {
						s.Reference = append(s.Reference, lp+0.2*float32(rng.NormFloat64()))
						s.Behavior = append(s.Behavior, lp+0.1*float32(rng.NormFloat64()))
					}
				}
				clear(loop.total.Flat)
				report, err := loop.gradient(t.Context(), samples)
				require.NoError(t, err)
				w, grads := loop.Net.Trained(), append([]float32(nil), loop.total.Flat...)
				keep := append([]float32(nil), w...)
				norm := 0.0
				for _, g := range grads {
					norm += float64(g) * float64(g)
				}
				require.NotZero(t, norm, "some terms are not clipped")
				at := func(by float64) float64 {
					for i := range w {
						w[i] = keep[i] + float32(by*float64(grads[i])/math.Sqrt(norm))
					}
					loop.Net.Pack(1)
					metrics, err := loop.measure(t.Context(), samples)
					require.NoError(t, err)
					return metrics["loss"].value()
				}
				require.InDelta(t, report.Loss, at(0), 1e-5)
				const step = 2e-4
				got := (8*(at(step)-at(-step)) - (at(2*step) - at(-2*step))) / (12 * step)
				require.InDelta(t, math.Sqrt(norm), got, 0.02*math.Sqrt(norm)+5e-3)
			})
		}
	}
}

// sequences returns random samples, as pairs if the objective compares pairs.
func sequences(rng *rand.Rand, vocab int, o objective) []*Sample {
	var out []*Sample
	draw := func() *Sample {
		n := 3 + rng.IntN(9)
		s := targets(n, 0)
		for i := range s.Tokens {
			s.Tokens[i] = int32(rng.IntN(vocab))
			s.Scored[i] = i > 1
		}
		return s
	}
	for range 9 {
		s := draw()
		switch o.(type) {
		case dpo, orpo:
			s.Rejected = draw()
		}
		s.Advantage = rng.NormFloat64()
		out = append(out, s)
	}
	return out
}

func TestAdvantages(t *testing.T) {
	for _, tc := range []struct{ scores, want []float64 }{
		{[]float64{0, 1}, []float64{-1, 1}},
		{[]float64{1, 0, 0, 0}, []float64{math.Sqrt(3), -1 / math.Sqrt(3), -1 / math.Sqrt(3), -1 / math.Sqrt(3)}},
		{[]float64{0.3, 0.3, 0.3}, nil},
		{[]float64{0.5}, nil},
		{nil, nil},
	} {
		got := advantages(tc.scores)
		require.Len(t, got, len(tc.want))
		for i := range got {
			require.InDelta(t, tc.want[i], got[i], 1e-12)
		}
	}
}
