package enginetest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
)

// trained returns a run after some steps, and a sampler with its adapter.
func (s *poolSuite) trained(t *testing.T, p engines.TrainPool, rank int) (engines.TrainRun, engines.TrainSampler) {
	r := mustCreate(t, p, rank, uint64(rank))
	for step := range 4 {
		mustBackward(t, r, s.pass(uint64(rank*10+step), engines.LossCrossEntropy, 4))
		mustStep(t, r, adam())
	}
	dir := t.TempDir()
	require.NoError(t, r.Export(t.Context(), dir))
	return r, openSampler(t, p, dir)
}

func openSampler(t *testing.T, p engines.TrainPool, dir string) engines.TrainSampler {
	one, err := p.OpenSampler(t.Context(), dir)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, one.Close()) })
	return one
}

// sampleRequest returns a request with a random prompt of n tokens.
func (s *poolSuite) sampleRequest(seed uint64, n int) engines.TrainSampleRequest {
	rng := rand.New(rand.NewPCG(seed, 21))
	r := engines.TrainSampleRequest{N: 1, MaxTokens: 12, Temperature: 1, Seed: seed}
	for range n {
		r.Prompt = append(r.Prompt, int32(rng.IntN(s.vocab)))
	}
	return r
}

func mustSample(t *testing.T, s engines.TrainSampler, request engines.TrainSampleRequest) engines.TrainSamples {
	t.Helper()
	got, err := s.Sample(t.Context(), request)
	require.NoError(t, err)
	require.Len(t, got.Sequences, request.N)
	for _, one := range got.Sequences {
		require.Len(t, one.Logprobs, len(one.Tokens))
	}
	return got
}

// datum returns a prompt and its continuation as a datum.
func datum(prompt, continuation []int32) (d engines.TrainDatum) {
	all := append(slices.Clone(prompt), continuation...)
	d.Tokens, d.Targets = all[:len(all)-1], all[1:]
	return d
}

// samples compares the log-probabilities of samples and prompts with those of Forward, for runs and
// for the base model.
func (s *poolSuite) samples(t *testing.T) {
	p := s.open(t, 2)
	check := func(r engines.TrainRun, one engines.TrainSampler, seed uint64) {
		request := s.sampleRequest(seed, 1+int(seed)*7%20)
		request.N, request.PromptLogprobs, request.TopKPromptLogprobs = 1+int(seed)%3, true, 3
		got := mustSample(t, one, request)
		for _, sequence := range got.Sequences {
			want, err := r.Forward(t.Context(), engines.TrainPass{
				Data: []engines.TrainDatum{datum(request.Prompt, sequence.Tokens)},
			})
			require.NoError(t, err)
			values := want.Outputs[0].Logprobs
			require.True(t, math.IsNaN(float64(got.PromptLogprobs[0])))
			require.Equal(t, values[:len(request.Prompt)-1], got.PromptLogprobs[1:])
			require.Equal(t, values[len(request.Prompt)-1:], sequence.Logprobs)
		}
		s.checkTop(t, r, request, got)
	}
	fresh := mustCreate(t, p, 2, 1)
	for seed := range uint64(5) {
		check(fresh, openSampler(t, p, ""), seed)
	}
	for _, rank := range []int{1, 6} {
		r, one := s.trained(t, p, rank)
		for seed := range uint64(5) {
			check(r, one, seed)
		}
	}
}

// checkTop checks the most likely tokens of a prompt.
func (s *poolSuite) checkTop(
	t *testing.T, r engines.TrainRun, request engines.TrainSampleRequest, got engines.TrainSamples,
) {
	k := request.TopKPromptLogprobs
	require.Len(t, got.TopKTokens, k*len(request.Prompt))
	require.Len(t, got.TopKLogprobs, k*len(request.Prompt))
	if len(request.Prompt) < 2 {
		return
	}
	d := engines.TrainDatum{Tokens: request.Prompt[:1]} // all tokens after the first one
	for token := range s.vocab {
		d.Targets = append(d.Targets, int32(token))
	}
	want, err := r.Forward(t.Context(), engines.TrainPass{Data: []engines.TrainDatum{d}})
	require.NoError(t, err)
	sorted := slices.Clone(want.Outputs[0].Logprobs)
	slices.SortFunc(sorted, func(a, b float32) int { return int(math.Copysign(1, float64(b)-float64(a))) })
	require.Equal(t, sorted[:k], got.TopKLogprobs[k:2*k])
	for j, token := range got.TopKTokens[k : 2*k] {
		require.Equal(t, want.Outputs[0].Logprobs[token], got.TopKLogprobs[k+j])
	}
	require.True(t, math.IsNaN(float64(got.TopKLogprobs[0])))
	require.Zero(t, got.TopKTokens[0])
}

// sampleInvariance checks that samples depend on their request only: in any batch, with any number
// of cores, beside other adapters and passes, and whichever other samples the request has.
func (s *poolSuite) sampleInvariance(t *testing.T) {
	var want [12]engines.TrainSamples
	for round, cores := range []int{1, 3} {
		p := s.open(t, cores)
		var samplers []engines.TrainSampler
		var r engines.TrainRun
		for _, rank := range []int{2, 5} {
			var one engines.TrainSampler
			r, one = s.trained(t, p, rank)
			samplers = append(samplers, one)
		}
		samplers = append(samplers, openSampler(t, p, ""))
		one := func(i int) engines.TrainSamples {
			request := s.sampleRequest(uint64(i), 3+i)
			request.N = 4
			got, err := samplers[i%len(samplers)].Sample(t.Context(), request)
			assert.NoError(t, err)
			got.CachedTokens = 0
			return got
		}
		if round == 0 {
			for i := range want {
				want[i] = one(i)
			}
		}
		var all sync.WaitGroup
		for i := range want {
			all.Go(func() { assert.Equal(t, want[i], one(i)) })
		}
		all.Go(func() {
			_, err := r.Forward(t.Context(), s.pass(3, engines.LossCrossEntropy, 20))
			assert.NoError(t, err)
		})
		all.Wait()
		request := s.sampleRequest(2, 5)
		require.Equal(t, want[2].Sequences[0], mustSample(t, samplers[2], request).Sequences[0], "fewer samples")
	}
	for i, samples := range want {
		require.NotEqual(t, samples.Sequences[0].Tokens, samples.Sequences[1].Tokens, "request %d: seeds differ", i)
	}
}

// sampleFilters checks the distribution that tokens are drawn from, and what stops a sample.
func (s *poolSuite) sampleFilters(t *testing.T) {
	_, one := s.trained(t, s.open(t, 1), 4)
	base := s.sampleRequest(7, 6)
	base.N = 8
	free := mustSample(t, one, base)

	greedy := base
	greedy.Temperature = 0
	for _, sequence := range mustSample(t, one, greedy).Sequences {
		require.Equal(t, mustSample(t, one, greedy).Sequences[0], sequence)
		for _, logprob := range sequence.Logprobs {
			require.Zero(t, logprob, "no other token can be drawn")
		}
	}
	for _, edit := range []func(*engines.TrainSampleRequest){
		func(r *engines.TrainSampleRequest) { r.TopK = 1 },
		func(r *engines.TrainSampleRequest) { r.TopP = 1e-9 },
	} {
		single := base
		edit(&single)
		require.Equal(t, mustSample(t, one, greedy), mustSample(t, one, single))
	}
	all := base
	all.TopK, all.TopP = s.vocab+5, 1
	require.Equal(t, free.Sequences, mustSample(t, one, all).Sequences)

	few := base
	few.TopK, few.N, few.MaxTokens = 3, 200, 1
	mass := map[int32]float64{}
	for _, sequence := range mustSample(t, one, few).Sequences {
		mass[sequence.Tokens[0]] = math.Exp(float64(sequence.Logprobs[0]))
	}
	require.Len(t, mass, 3)
	sum := 0.0
	for _, p := range mass {
		sum += p
	}
	require.InDelta(t, 1, sum, 1e-5, "probabilities are of the distribution that was drawn from")

	stopped := base
	tokens := free.Sequences[0].Tokens
	stopped.StopTokens = []int32{tokens[3]}
	want := tokens[:slices.Index(tokens, tokens[3])+1]
	got := mustSample(t, one, stopped).Sequences[0]
	require.Equal(t, want, got.Tokens, "the stop token is included")
	require.True(t, got.Stopped)
	require.False(t, free.Sequences[0].Stopped)
}

// sampleLimits checks the maximum number of tokens.
func (s *poolSuite) sampleLimits(t *testing.T) {
	const limit = 40
	p := s.request(t, engines.TrainPoolRequest{Parallelism: 1, MaxTokens: limit, SampleBytes: 1})
	one := openSampler(t, p, "")
	request := s.sampleRequest(3, limit-5)
	for _, maxTokens := range []int{0, 5, 1000} {
		request.MaxTokens = maxTokens
		got := mustSample(t, one, request)
		require.Len(t, got.Sequences[0].Tokens, 5)
		require.False(t, got.Sequences[0].Stopped)
	}
	full := s.sampleRequest(3, limit)
	full.PromptLogprobs, full.N = true, 2
	got := mustSample(t, one, full)
	require.Empty(t, got.Sequences[0].Tokens)
	require.Len(t, got.PromptLogprobs, limit)
	require.False(t, math.IsNaN(float64(got.PromptLogprobs[limit-1])))
	full.PromptLogprobs = false
	require.Empty(t, mustSample(t, one, full).Sequences[1].Tokens)
	full.Prompt = append(full.Prompt, 1)
	_, err := one.Sample(t.Context(), full)
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), "%v", err)

	scoped := s.sampleRequest(9, 34)
	mustSample(t, one, scoped)
	require.Positive(t, mustSample(t, one, scoped).CachedTokens)
	scoped.Share.Account = "other"
	require.Zero(t, mustSample(t, one, scoped).CachedTokens, "accounts do not learn prompts of others")
}

func (s *poolSuite) invalidSamples(t *testing.T) {
	one := openSampler(t, s.open(t, 1), "")
	nan := math.NaN()
	for name, edit := range map[string]func(*engines.TrainSampleRequest){
		"prompt":      func(r *engines.TrainSampleRequest) { r.Prompt = nil },
		"token":       func(r *engines.TrainSampleRequest) { r.Prompt[0] = int32(s.vocab) },
		"negative":    func(r *engines.TrainSampleRequest) { r.Prompt[0] = -1 },
		"none":        func(r *engines.TrainSampleRequest) { r.N = 0 },
		"many":        func(r *engines.TrainSampleRequest) { r.N = engines.MaxTrainSamples + 1 },
		"max tokens":  func(r *engines.TrainSampleRequest) { r.MaxTokens = -1 },
		"temperature": func(r *engines.TrainSampleRequest) { r.Temperature = -1 },
		"NaN":         func(r *engines.TrainSampleRequest) { r.Temperature = nan },
		"top_p":       func(r *engines.TrainSampleRequest) { r.TopP = nan },
		"top_p 2":     func(r *engines.TrainSampleRequest) { r.TopP = 2 },
		"stop token":  func(r *engines.TrainSampleRequest) { r.StopTokens = []int32{-1} },
		"stop tokens": func(r *engines.TrainSampleRequest) { r.StopTokens = make([]int32, engines.MaxTrainStops+1) },
		"stop text":   func(r *engines.TrainSampleRequest) { r.StopTexts = []string{""} },
		"stop texts":  func(r *engines.TrainSampleRequest) { r.StopTexts = make([]string, engines.MaxTrainStops+1) },
		"UTF-8":       func(r *engines.TrainSampleRequest) { r.StopTexts = []string{"\xff"} },
		"top": func(r *engines.TrainSampleRequest) {
			r.TopKPromptLogprobs = engines.MaxTrainTopLogprobs + 1
		},
		"weight": func(r *engines.TrainSampleRequest) { r.Share.Weight = -1 },
	} {
		request := s.sampleRequest(1, 4)
		edit(&request)
		_, err := one.Sample(t.Context(), request)
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), "%s: %v", name, err)
	}
	rng := rand.New(rand.NewPCG(5, 5))
	odd := []float64{0, 1, 1e-300, 1e300, 0.5, 3e-5, 1e-3, math.MaxFloat64}
	for range 50 { // extreme values that are valid
		request := s.sampleRequest(rng.Uint64(), 1+rng.IntN(5))
		request.Temperature, request.TopP, request.TopK = odd[rng.IntN(len(odd))], rng.Float64(), rng.IntN(60)-5
		request.MaxTokens, request.N = rng.IntN(4), 1+rng.IntN(3)
		mustSample(t, one, request)
	}
}

// manySamples has more calls in progress than any batch has room for.
func (s *poolSuite) manySamples(t *testing.T) {
	p := s.request(t, engines.TrainPoolRequest{Parallelism: 2, SampleBytes: 1})
	samplers := []engines.TrainSampler{openSampler(t, p, "")}
	for _, rank := range []int{1, 3} {
		_, one := s.trained(t, p, rank)
		samplers = append(samplers, one)
	}
	var all sync.WaitGroup
	for i := range 2000 {
		all.Go(func() {
			request := s.sampleRequest(uint64(i%50), 1+i%9)
			request.MaxTokens, request.N, request.Share.Account = 1+i%5, 1+i%3, fmt.Sprint(i%4)
			got, err := samplers[i%3].Sample(t.Context(), request)
			if assert.NoError(t, err) {
				assert.Len(t, got.Sequences, request.N)
			}
		})
	}
	all.Wait()
}

// samplers checks the lifecycle of samplers.
func (s *poolSuite) samplers(t *testing.T) {
	p := s.request(t, engines.TrainPoolRequest{Parallelism: 1, RunBytes: 1 << 20})
	r, one := s.trained(t, p, 2)
	request := s.sampleRequest(1, 4)
	want := mustSample(t, one, request)
	mustBackward(t, r, s.pass(5, engines.LossCrossEntropy, 4))
	mustStep(t, r, adam())
	require.Equal(t, want.Sequences, mustSample(t, one, request).Sequences, "later steps do not change a sampler")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := one.Sample(ctx, request)
	require.ErrorIs(t, err, context.Canceled)
	_, err = p.OpenSampler(t.Context(), t.TempDir())
	require.Error(t, err)

	dir := t.TempDir()
	require.NoError(t, r.Export(t.Context(), dir))
	var opened []engines.TrainSampler
	for err = error(nil); err == nil; {
		var next engines.TrainSampler
		if next, err = p.OpenSampler(t.Context(), dir); err == nil {
			opened = append(opened, next)
		}
		require.Less(t, len(opened), 1<<20)
	}
	requireReason(t, err, engines.TrainRunsTooLarge)
	for _, next := range opened {
		require.NoError(t, next.Close())
		require.NoError(t, next.Close(), "a second time")
	}
	require.Equal(t, want.Sequences, mustSample(t, one, request).Sequences)
	again := openSampler(t, p, dir)
	require.NoError(t, again.Close())
	_, err = again.Sample(t.Context(), request)
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
}
