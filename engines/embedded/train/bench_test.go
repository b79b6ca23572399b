package train

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
)

// BenchmarkStep takes optimizer steps of a model with the shipped model's dimensions, on one
// core. A step has 40 sequences of 50 tokens, of which a quarter are targets. The metric of-peak
// is 6·parameters·tokens/s, the usual estimate of the operations for training all parameters,
// divided by the core's measured peak rate.
func BenchmarkStep(b *testing.B) {
	for _, rank := range []int{0, 8} {
		b.Run(fmt.Sprintf("rank=%d", rank), func(b *testing.B) {
			c := llama.Config{
				ModelType: "llama", HiddenSize: 128, IntermediateSize: 352, Layers: 4, Heads: 4, KVHeads: 4, HeadDim: 32,
				VocabSize: 260, MaxPositions: 512, NormEps: 1e-5, RopeTheta: 10000, TieWordEmbeddings: true,
			}
			weights := llama.NewWeights(c)
			weights.Initialize(1)
			var adapter *llama.Adapter
			if rank > 0 {
				adapter = llama.NewAdapter(c, rank, 16, []llama.Module{
					llama.Query, llama.Key, llama.Value, llama.Output, llama.Gate, llama.Up, llama.Down,
				})
				adapter.Initialize(2)
			}
			rng := rand.New(rand.NewPCG(1, 1))
			samples := samplesOf(make([]int, 40)...)
			for _, s := range samples {
				s.Tokens, s.Scored = make([]int32, 51), make([]bool, 51)
				for i := range s.Tokens {
					s.Tokens[i], s.Scored[i] = int32(rng.IntN(c.VocabSize)), i > 38
				}
			}
			loop := NewLoop(llama.NewNet(weights, adapter, 1), 1)
			tokens := 0
			for b.Loop() {
				report, err := loop.Step(b.Context(), samples, 1e-4)
				require.NoError(b, err)
				tokens += report.Tokens
			}
			rate := float64(tokens) / b.Elapsed().Seconds()
			b.ReportMetric(rate, "tok/s")
			b.ReportMetric(6*float64(c.Parameters())*rate/1e9/kernel.PeakGFlops(), "of-peak")
		})
	}
}
