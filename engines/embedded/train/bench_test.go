package train

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/train/pool"
)

// BenchmarkStep takes optimizer steps of a model with the shipped model's dimensions, on one
// core. A step has 40 sequences of 50 tokens, of which a quarter are targets. The metric of-peak
// is 6·parameters·tokens/s, the usual estimate of the operations for training all parameters,
// divided by the core's measured peak rate.
func BenchmarkStep(b *testing.B) {
	for _, rank := range []int{0, 8} {
		b.Run(fmt.Sprintf("rank=%d", rank), func(b *testing.B) {
			weights := benchWeights()
			c := weights.Config
			samples := benchSamples(c.VocabSize, 40, 38)
			loop := benchLoop(weights, rank, 1)
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

// benchWeights returns random weights with the shipped model's dimensions.
func benchWeights() *llama.Weights {
	w := llama.NewWeights(llama.Config{
		ModelType: "llama", HiddenSize: 128, IntermediateSize: 352, Layers: 4, Heads: 4, KVHeads: 4, HeadDim: 32,
		VocabSize: 260, MaxPositions: 512, NormEps: 1e-5, RopeTheta: 10000, TieWordEmbeddings: true,
	})
	w.Initialize(1)
	return w
}

// benchSamples returns n sequences of 50 input tokens. The tokens after number prompt are targets.
func benchSamples(vocab, n, prompt int) []*Sample {
	rng := rand.New(rand.NewPCG(1, 1))
	samples := samplesOf(make([]int, n)...)
	for _, s := range samples {
		s.Tokens, s.Scored = make([]int32, 51), make([]bool, 51)
		for i := range s.Tokens {
			s.Tokens[i], s.Scored[i] = int32(rng.IntN(vocab)), i > prompt
		}
	}
	return samples
}

// benchLoop returns a loop that trains an adapter of a rank, or all parameters if rank is 0.
func benchLoop(w *llama.Weights, rank, workers int) *Loop {
	var adapter *llama.Adapter
	if rank > 0 {
		adapter = llama.NewAdapter(w.Config, rank, 16, []llama.Module{
			llama.Query, llama.Key, llama.Value, llama.Output, llama.Gate, llama.Up, llama.Down,
		})
		adapter.Initialize(2)
	}
	return NewLoop(llama.NewNet(w, adapter, workers), workers)
}

// passOf returns a pass of the pool for samples. Tokens that are no targets have the weight 0.
func passOf(samples []*Sample) engines.TrainPass {
	var pass engines.TrainPass
	for _, s := range samples {
		n := len(s.Tokens) - 1
		d := engines.TrainDatum{Tokens: s.Tokens[:n], Targets: s.Tokens[1:], Weights: make([]float32, n)}
		for i := range n {
			d.Weights[i] = float32(share(s.Scored[i+1]))
		}
		pass.Data = append(pass.Data, d)
	}
	return pass
}

// benchRun creates a run with an adapter for all projections, and returns a function that takes one
// step on the pass.
func benchRun(b *testing.B, p *pool.Pool, rank int, pass engines.TrainPass) (step func()) {
	r, err := p.CreateRun(b.Context(), engines.TrainRunConfig{Rank: rank, TrainAttn: true, TrainMLP: true})
	require.NoError(b, err)
	return func() {
		_, err := r.ForwardBackward(b.Context(), pass)
		require.NoError(b, err)
		_, err = r.Step(b.Context(), engines.DefaultAdamParams())
		require.NoError(b, err)
	}
}

// ratio calls one and other by turns, and returns the quotient of their shortest times, which other
// programs disturb least, and the shortest time of other.
func ratio(b *testing.B, one, other func()) (quotient float64, shortest time.Duration) {
	timed := func(do func()) time.Duration {
		start := time.Now()
		do()
		return time.Since(start)
	}
	first, second := timed(one), timed(other)
	for b.Loop() {
		first, second = min(first, timed(one)), min(second, timed(other))
	}
	return first.Seconds() / second.Seconds(), second
}

// BenchmarkTrainPool compares steps of one run of a pool with those of the loop of training jobs,
// on the same data. The metric of-loop is the quotient of their speeds. All tokens of the pool have
// log-probabilities, those of the loop only the targets.
func BenchmarkTrainPool(b *testing.B) {
	for _, rank := range []int{8, 64} {
		for name, prompt := range map[string]int{"quarter": 38, "all": 0} {
			b.Run(fmt.Sprintf("rank=%d/targets=%s", rank, name), func(b *testing.B) {
				w := benchWeights()
				samples := benchSamples(w.Config.VocabSize, 40, prompt)
				loop, p := benchLoop(w, rank, 1), pool.New(w, "", engines.TrainPoolRequest{Parallelism: 1})
				defer p.Close()
				step := benchRun(b, p, rank, passOf(samples))
				quotient, shortest := ratio(b, func() {
					_, err := loop.Step(b.Context(), samples, 1e-4)
					require.NoError(b, err)
				}, step)
				b.ReportMetric(quotient, "of-loop")
				b.ReportMetric(float64(50*len(samples))/shortest.Seconds(), "tok/s")
			})
		}
	}
}

// BenchmarkTrainRuns compares eight runs of ranks 4 to 64 that take steps at the same time with the
// same runs one after another. Each step has some sequences of 50 tokens. The metric speedup is the
// quotient of their speeds.
func BenchmarkTrainRuns(b *testing.B) {
	for _, cores := range []int{1, 2} {
		for _, sequences := range []int{1, 4} {
			b.Run(fmt.Sprintf("cores=%d/sequences=%d", cores, sequences), func(b *testing.B) {
				w := benchWeights()
				p := pool.New(w, "", engines.TrainPoolRequest{Parallelism: cores})
				defer p.Close()
				var steps []func()
				for _, rank := range []int{4, 4, 8, 8, 16, 16, 32, 64} {
					steps = append(steps, benchRun(b, p, rank, passOf(benchSamples(w.Config.VocabSize, sequences, 0))))
				}
				const rounds = 3
				quotient, shortest := ratio(b, func() {
					for range rounds {
						for _, step := range steps {
							step()
						}
					}
				}, func() {
					var all sync.WaitGroup
					for _, step := range steps {
						all.Go(func() {
							for range rounds {
								step()
							}
						})
					}
					all.Wait()
				})
				b.ReportMetric(quotient, "speedup")
				b.ReportMetric(float64(rounds*len(steps)*50*sequences)/shortest.Seconds(), "tok/s")
			})
		}
	}
}
