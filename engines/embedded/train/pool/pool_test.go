package pool

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
	"anneal/engines/enginetest"
)

const vocab = 41

func testWeights() *llama.Weights {
	w := llama.NewWeights(llama.Config{
		ModelType: "qwen2", HiddenSize: 24, IntermediateSize: 40, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 6,
		VocabSize: vocab, MaxPositions: 256, NormEps: 1e-5, RopeTheta: 10000, TieWordEmbeddings: true, HiddenAct: "silu",
		InitializerRange: 0.25, TorchDType: "float32",
	})
	w.Initialize(7)
	return w
}

func openTest(t *testing.T, workers int) *Pool {
	w := testWeights()
	p := New(w, w.Hash(), engines.TrainPoolRequest{Parallelism: workers})
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	return p
}

func create(t *testing.T, p *Pool, rank int) *run {
	r, err := p.CreateRun(t.Context(), engines.TrainRunConfig{Rank: rank, Seed: 5, TrainAttn: true, TrainMLP: true})
	require.NoError(t, err)
	return r.(*run)
}

// randomize adds noise to the adapter, so that no matrix is zero.
func (r *run) randomize(seed uint64, std float64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	for i := range r.adapter.Flat() {
		r.adapter.Flat()[i] += float32(rng.NormFloat64() * std)
	}
	r.adapter.Pack()
}

func TestTrainPoolSuite(t *testing.T) {
	enginetest.TrainPool(t, vocab, func(_ *testing.T, request engines.TrainPoolRequest) engines.TrainPool {
		w := testWeights()
		return New(w, w.Hash(), request)
	})
}

// TestGradients checks the gradient of each loss against finite differences along random
// directions.
func TestGradients(t *testing.T) {
	p := openTest(t, 2)
	for i, name := range enginetest.TrainLosses {
		for _, rank := range []int{1, 7, 64} {
			created, err := p.CreateRun(t.Context(),
				engines.TrainRunConfig{Rank: rank, Alpha: float64(rank), TrainAttn: true, TrainMLP: true})
			require.NoError(t, err)
			r := created.(*run)
			r.randomize(3, 0.1)
			rng := rand.New(rand.NewPCG(uint64(i), 4))
			pass := enginetest.RandomPass(rng, name, 8, vocab)
			if name == engines.LossCISPO { // its gradient takes clip(r) as a constant
				pass.ClipLow, pass.ClipHigh = new(1.0), new(1.0)
			}
			if name == engines.LossPPO { // no ratio near a bound, where the loss has a bend
				spread(t, r, &pass)
			}
			_, err = r.ForwardBackward(t.Context(), pass)
			require.NoError(t, err)
			parameters, want, norm := r.adapter.Flat(), 0.0, r.optimizer.Norm(r.gradient.Flat)
			direction := make([]float32, len(parameters))
			for j := range direction {
				direction[j] = float32(rng.NormFloat64())
				want += float64(direction[j]) * float64(r.gradient.Flat[j])
			}
			keep := append([]float32(nil), parameters...)
			at := func(f float32) float64 {
				for j := range parameters {
					parameters[j] = keep[j] + f*direction[j]
				}
				r.adapter.Pack()
				got, err := r.Forward(t.Context(), pass)
				require.NoError(t, err)
				return got.Metrics[engines.MetricLossSum]
			}
			const step = 3e-4
			got := (8*(at(step)-at(-step)) - (at(2*step) - at(-2*step))) / (12 * step)
			require.InDelta(t, want, got, 0.02*norm+0.02*math.Abs(want), "%s, rank %d", name, rank)
		}
	}
}

// spread sets the log-probabilities of the old policy so that the ratios are 0.6, 1 and 1.5 by
// turns.
func spread(t *testing.T, r *run, pass *engines.TrainPass) {
	got, err := r.Forward(t.Context(), *pass)
	require.NoError(t, err)
	for i := range pass.Data {
		for j := range pass.Data[i].Logprobs {
			ratio := []float64{0.6, 1, 1.5}[(i+j)%3]
			pass.Data[i].Logprobs[j] = got.Outputs[i].Logprobs[j] - float32(math.Log(ratio))
		}
	}
}

// TestAlternatives checks that K targets for each token have the gradient of K data with one.
func TestAlternatives(t *testing.T) {
	p := openTest(t, 1)
	rng := rand.New(rand.NewPCG(1, 1))
	a, b := enginetest.RandomPass(rng, engines.LossCrossEntropy, 1, vocab), engines.TrainPass{}
	first := &a.Data[0]
	second := *first
	second.Targets, second.Weights = nil, nil
	joined := engines.TrainDatum{Tokens: first.Tokens}
	for i := range first.Tokens {
		second.Targets, second.Weights = append(second.Targets, int32(rng.IntN(vocab))), append(second.Weights, rng.Float32())
		joined.Targets = append(joined.Targets, first.Targets[i], second.Targets[i])
		joined.Weights = append(joined.Weights, first.Weights[i], second.Weights[i])
	}
	a.Data, b.Data = append(a.Data, second), []engines.TrainDatum{joined}
	one, other := create(t, p, 4), create(t, p, 4)
	want, err := one.ForwardBackward(t.Context(), a)
	require.NoError(t, err)
	got, err := other.ForwardBackward(t.Context(), b)
	require.NoError(t, err)
	for i := range first.Tokens {
		require.Equal(t, want.Outputs[0].Logprobs[i], got.Outputs[0].Logprobs[2*i])
		require.Equal(t, want.Outputs[1].Losses[i], got.Outputs[0].Losses[2*i+1])
	}
	require.InDeltaSlice(t, one.gradient.Flat, other.gradient.Flat, 1e-3)
}

// TestStep compares steps with a float64 implementation of AdamW.
func TestStep(t *testing.T) {
	r := create(t, openTest(t, 2), 3)
	r.randomize(9, 0.1)
	n := len(r.adapter.Flat())
	w, m, v := make([]float64, n), make([]float64, n), make([]float64, n)
	for i, x := range r.adapter.Flat() {
		w[i] = float64(x)
	}
	for step, o := range []engines.AdamParams{
		{LearningRate: 1e-3, Beta1: 0.9, Beta2: 0.95, Epsilon: 1e-12},
		{LearningRate: 1e-2, Beta1: 0.8, Beta2: 0.99, Epsilon: 1e-8, WeightDecay: 0.1},
		{LearningRate: 3e-3, Beta1: 0, Beta2: 0.9, Epsilon: 1e-3, GradClipNorm: 0.5},
		{LearningRate: 0, Beta1: 0.5, Beta2: 0.5, Epsilon: 1e-6},
	} {
		pass := enginetest.RandomPass(rand.New(rand.NewPCG(uint64(step), 3)), engines.LossCrossEntropy, 3, vocab)
		_, err := r.ForwardBackward(t.Context(), pass)
		require.NoError(t, err)
		norm, scale := 0.0, 1.0
		for _, g := range r.gradient.Flat {
			norm += float64(g) * float64(g)
		}
		if norm = math.Sqrt(norm); o.GradClipNorm > 0 {
			scale = math.Min(1, o.GradClipNorm/norm)
			require.Less(t, scale, 1.0)
		}
		for i, g := range r.gradient.Flat {
			g := float64(g) * scale
			m[i], v[i] = o.Beta1*m[i]+(1-o.Beta1)*g, o.Beta2*v[i]+(1-o.Beta2)*g*g
			top := m[i] / (1 - math.Pow(o.Beta1, float64(step+1)))
			root := math.Sqrt(v[i] / (1 - math.Pow(o.Beta2, float64(step+1))))
			w[i] = w[i]*(1-o.LearningRate*o.WeightDecay) - o.LearningRate*top/(root+o.Epsilon)
		}
		got, err := r.Step(t.Context(), o)
		require.NoError(t, err)
		require.InEpsilon(t, norm, got.GradNorm, 1e-4)
		for i, x := range r.adapter.Flat() {
			require.InDelta(t, w[i], x, 1e-5*float64(step+1), "step %d, parameter %d", step, i)
		}
	}
}

func TestOpener(t *testing.T) {
	w := testWeights()
	dir := t.TempDir()
	require.NoError(t, w.Save(dir))
	opened, err := Opener{}.OpenTrainPool(t.Context(), engines.TrainPoolRequest{BaseDir: dir, BaseHash: w.Hash()})
	require.NoError(t, err)
	require.Equal(t, w.Hash(), opened.BaseHash())
	require.Equal(t, w.Config.MaxPositions, opened.MaxTokens(), "the default is limited by the context length")
	require.NoError(t, opened.Close())
	for _, request := range []engines.TrainPoolRequest{
		{BaseDir: dir, BaseHash: "sha256:0"}, {BaseDir: dir, Precision: "bfloat16"}, {BaseDir: t.TempDir()},
	} {
		_, err := Opener{}.OpenTrainPool(t.Context(), request)
		require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err), "%v", err)
	}
	for _, request := range []engines.TrainPoolRequest{
		{BaseDir: dir, MaxTokens: -1}, {BaseDir: dir, RunBytes: -1}, {BaseDir: dir, SampleBytes: -1},
	} {
		_, err := Opener{}.OpenTrainPool(t.Context(), request)
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), "%v", err)
	}
}

// TestExport checks that an exported adapter has the log-probabilities of the run, and that a state
// is refused on another base model.
func TestExport(t *testing.T) {
	p := openTest(t, 1)
	r := create(t, p, 3)
	r.randomize(1, 0.2)
	dir := t.TempDir()
	require.NoError(t, r.Export(t.Context(), dir))
	a, err := llama.LoadAdapter(dir, p.hash, p.net.Weights.Config)
	require.NoError(t, err)
	require.Equal(t, r.adapter.Flat(), a.Flat())
	require.Equal(t, 32.0, a.Alpha)

	var state bytes.Buffer
	require.NoError(t, r.Save(t.Context(), &state))
	other := New(testWeights(), "sha256:other", engines.TrainPoolRequest{Parallelism: 1})
	defer other.Close()
	_, err = other.RestoreRun(t.Context(), &state, engines.TrainRestoreOptions{})
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
}

func TestUnembedWarning(t *testing.T) {
	r, err := openTest(t, 1).CreateRun(t.Context(), engines.TrainRunConfig{Rank: 2, TrainMLP: true, TrainUnembed: true})
	require.NoError(t, err)
	require.Len(t, r.Warnings(), 1)
	require.Empty(t, create(t, openTest(t, 1), 2).Warnings())
}

func TestClosedAndCanceled(t *testing.T) {
	p := openTest(t, 1)
	r := create(t, p, 2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	pass := enginetest.RandomPass(rand.New(rand.NewPCG(1, 3)), engines.LossCrossEntropy, 3, vocab)
	_, err := r.ForwardBackward(ctx, pass)
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, r.accumulated)
	require.NoError(t, p.Close())
	_, err = r.Forward(t.Context(), pass)
	require.Equal(t, domain.Unavailable, domain.CodeOf(err))
}

// FuzzPass checks that no input of a pass panics, for all losses.
func FuzzPass(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed)
	}
	w := testWeights()
	p := New(w, w.Hash(), engines.TrainPoolRequest{Parallelism: 1})
	f.Cleanup(func() { assert.NoError(f, p.Close()) })
	f.Fuzz(func(t *testing.T, seed uint64) {
		rng, r := rand.New(rand.NewPCG(seed, 1)), create(t, p, 2)
		for range 5 {
			enginetest.TryPass(t, r, enginetest.MalformedPass(rng, vocab))
		}
	})
}

// TestOtherKernel checks that a run continues with another kernel only if that is allowed, and that
// it warns then.
func TestOtherKernel(t *testing.T) {
	levels := kernel.Levels()
	if len(levels) == 1 {
		t.Skip("this processor supports one kernel level only")
	}
	level := kernel.Level()
	t.Cleanup(func() { require.NoError(t, kernel.SetLevel(level)) })
	at := func(level string) *Pool {
		require.NoError(t, kernel.SetLevel(level))
		return openTest(t, 1)
	}
	r := create(t, at(levels[0]), 2)
	var state bytes.Buffer
	require.NoError(t, r.Save(t.Context(), &state))
	restore := func(p *Pool, options engines.TrainRestoreOptions) (engines.TrainRun, error) {
		return p.RestoreRun(t.Context(), bytes.NewReader(state.Bytes()), options)
	}
	same, err := restore(at(levels[0]), engines.TrainRestoreOptions{})
	require.NoError(t, err)
	require.Empty(t, same.Warnings())

	other := at("go")
	require.NotEqual(t, r.pool.Kernel(), other.Kernel())
	_, err = restore(other, engines.TrainRestoreOptions{})
	var refused *domain.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, domain.FailedPrecondition, refused.Code)
	require.Equal(t, engines.TrainKernelDiffers, refused.Reason)
	require.Contains(t, refused.Message, "ANNEAL_KERNEL="+levels[0])

	_, err = restore(other, engines.TrainRestoreOptions{ResetOptimizer: true})
	require.NoError(t, err)
	moved, err := restore(other, engines.TrainRestoreOptions{AnyKernel: true})
	require.NoError(t, err)
	require.Len(t, moved.Warnings(), 1)
	require.Contains(t, moved.Warnings()[0], levels[0])
}

// TestOtherStates checks that a state of another engine or version is refused, not reported as
// damaged.
func TestOtherStates(t *testing.T) {
	p := openTest(t, 1)
	for _, h := range []header{
		{Version: stateVersion, Engine: "torch", Base: p.hash, Kernel: p.kernel},
		{Version: stateVersion + 1, Engine: stateEngine, Base: p.hash, Kernel: p.kernel},
	} {
		state, err := h.frame()
		require.NoError(t, err)
		_, err = p.RestoreRun(t.Context(), bytes.NewReader(state), engines.TrainRestoreOptions{ResetOptimizer: true})
		require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err), "%v", err)
	}
}
