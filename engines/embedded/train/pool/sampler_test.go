package pool_test

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/serve"
	"anneal/engines/embedded/tokenizer"
	"anneal/engines/embedded/train/pool"
	"anneal/engines/enginetest"
)

// equalTokens returns the number of tokens whose log-probabilities are compared:
// ANNEAL_EQUAL_TOKENS, by default 10,000.
func equalTokens(t *testing.T) int {
	text := os.Getenv("ANNEAL_EQUAL_TOKENS")
	if text == "" {
		return 10_000
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, "ANNEAL_EQUAL_TOKENS")
	return n
}

// sampledModels saves random models, one with biases, head norms and grouped-query attention, and
// one of 16-bit weights with tied embeddings. It returns their directories by name.
func sampledModels(t *testing.T) map[string]string {
	tokens, dirs := tokenizer.NewBytes(), map[string]string{}
	for name, edit := range map[string]func(*llama.Config){
		"qwen3":           func(c *llama.Config) { c.ModelType, c.AttentionBias, c.KVHeads = "qwen3", true, 2 },
		"llama, bfloat16": func(c *llama.Config) { c.TieWordEmbeddings, c.TorchDType, c.HeadDim = true, "bfloat16", 32 },
	} {
		c := llama.Config{
			ModelType: "llama", HiddenSize: 48, IntermediateSize: 80, Layers: 3, Heads: 4, KVHeads: 4, HeadDim: 10,
			VocabSize: tokens.VocabSize(), MaxPositions: 200, NormEps: 1e-5, RopeTheta: 10000, HiddenAct: "silu",
			TorchDType: "float32", InitializerRange: 0.2,
		}
		edit(&c)
		w := llama.NewWeights(c)
		w.Initialize(11)
		dirs[name] = t.TempDir()
		require.NoError(t, w.Save(dirs[name]))
		require.NoError(t, tokens.Save(dirs[name]))
	}
	return dirs
}

// trainedRun returns a run after some steps on random data.
func trainedRun(t *testing.T, p engines.TrainPool, rank, vocab int) engines.TrainRun {
	r, err := p.CreateRun(t.Context(), engines.TrainRunConfig{Rank: rank, Seed: 1, TrainAttn: rank%2 == 0, TrainMLP: true})
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(uint64(rank), 9))
	for range 5 {
		_, err := r.ForwardBackward(t.Context(), enginetest.RandomPass(rng, engines.LossCrossEntropy, 8, vocab))
		require.NoError(t, err)
		o := engines.DefaultAdamParams()
		o.LearningRate = 5e-3
		_, err = r.Step(t.Context(), o)
		require.NoError(t, err)
	}
	return r
}

// TestSamplerEqualsTrainer checks that the samplers, of a deployment and of the pool, and the
// trainer compute the same log-probabilities of the same tokens, bit by bit, in batches of 1 to 32
// sequences, with several adapters, and after runs were restored.
func TestSamplerEqualsTrainer(t *testing.T) {
	for name, dir := range sampledModels(t) {
		t.Run(name, func(t *testing.T) { compareSampler(t, dir) })
	}
}

func compareSampler(t *testing.T, dir string) {
	vocab := tokenizer.NewBytes().VocabSize()
	open := func() engines.TrainPool {
		p, err := pool.Opener{Parallelism: 2}.OpenTrainPool(t.Context(), engines.TrainPoolRequest{BaseDir: dir})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, p.Close()) })
		return p
	}
	model, err := serve.New(serve.Options{Parallelism: 2}).Load(t.Context(), engines.ModelFiles{Dir: dir})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, model.Close()) })
	p, runs, names := open(), []engines.TrainRun{}, []string{}
	var dirs []string
	var samplers []engines.TrainSampler
	openSamplers := func() {
		samplers = nil
		for _, dir := range dirs {
			one, err := p.OpenSampler(t.Context(), dir)
			require.NoError(t, err)
			samplers = append(samplers, one)
		}
	}
	for _, rank := range []int{1, 4, 13, 64} {
		r, to, name := trainedRun(t, p, rank, vocab), t.TempDir(), strconv.Itoa(rank)
		require.NoError(t, r.Export(t.Context(), to))
		require.NoError(t, model.(engines.AddonLoader).LoadAddon(t.Context(), name, to))
		runs, names, dirs = append(runs, r), append(names, name), append(dirs, to)
	}
	openSamplers()
	want, total := equalTokens(t), 0
	for size := 1; total < want; size = size%32 + 1 {
		if size == 17 { // restart
			p = open()
			for i, r := range runs {
				var state strings.Builder
				require.NoError(t, r.Save(t.Context(), &state))
				runs[i], err = p.RestoreRun(t.Context(), strings.NewReader(state.String()),
					engines.TrainRestoreOptions{})
				require.NoError(t, err)
			}
			openSamplers()
		}
		var count atomic.Int64
		var all sync.WaitGroup
		for i := range size {
			all.Go(func() {
				one := (i + size) % len(runs)
				var d engines.TrainDatum
				var sampled []float32
				if i%2 == 0 {
					d, sampled = sample(t, model, names[one], uint64(total+i))
				} else {
					d, sampled = sampleInPool(t, samplers[one], uint64(total+i))
				}
				got, err := runs[one].Forward(t.Context(), engines.TrainPass{Data: []engines.TrainDatum{d}})
				if !assert.NoError(t, err) {
					return
				}
				assert.Equal(t, sampled, got.Outputs[0].Logprobs)
				count.Add(int64(len(sampled)))
			})
		}
		all.Wait()
		if t.Failed() {
			return
		}
		total += int(count.Load())
	}
	t.Logf("%d tokens", total)
}

// sample generates a completion, and returns it with its prompt as a datum, and the log-probability
// that the sampler reports for each target.
func sample(t *testing.T, m engines.Model, addon string, seed uint64) (d engines.TrainDatum, logprobs []float32) {
	rng := rand.New(rand.NewPCG(seed, 3))
	var prompt []int
	for range 1 + rng.IntN(60) {
		prompt = append(prompt, rng.IntN(256))
	}
	var tokens []int
	_, err := m.Complete(t.Context(), engines.CompletionRequest{
		PromptTokens: prompt, Addon: addon, MaxTokens: 1 + rng.IntN(90), Temperature: 1, Seed: &seed, IgnoreEOS: true,
		Logprobs: true, Echo: true,
	}, func(c engines.Chunk) error {
		tokens = append(tokens, c.Tokens...)
		for _, one := range c.Logprobs {
			assert.Equal(t, one.Logprob, one.Sampling, "tokens are drawn from the distribution of the model")
			logprobs = append(logprobs, float32(one.Logprob))
		}
		return nil
	})
	assert.NoError(t, err)
	for i, token := range tokens[1:] {
		d.Tokens, d.Targets = append(d.Tokens, int32(tokens[i])), append(d.Targets, int32(token))
	}
	return d, logprobs[1:] // the first token of the prompt has none
}

// sampleInPool is like sample, with a sampler of the pool.
func sampleInPool(t *testing.T, s engines.TrainSampler, seed uint64) (d engines.TrainDatum, logprobs []float32) {
	rng := rand.New(rand.NewPCG(seed, 3))
	request := engines.TrainSampleRequest{
		N: 1, MaxTokens: 1 + rng.IntN(90), Temperature: 1, Seed: seed, PromptLogprobs: true,
	}
	for range 1 + rng.IntN(60) {
		request.Prompt = append(request.Prompt, int32(rng.IntN(256)))
	}
	got, err := s.Sample(t.Context(), request)
	if !assert.NoError(t, err) {
		return d, nil
	}
	tokens := append(request.Prompt, got.Sequences[0].Tokens...)
	d.Tokens, d.Targets = tokens[:len(tokens)-1], tokens[1:]
	return d, append(got.PromptLogprobs[1:], got.Sequences[0].Logprobs...)
}
