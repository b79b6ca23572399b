package enginetest

import (
	"bytes"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
)

// TrainPool runs the tests that every implementation of engines.TrainPool must pass. open opens a
// pool of the same base model each time, with the number of cores and the limits of a request. vocab
// is the number of tokens of the model, whose context has at least 64 tokens.
func TrainPool(t *testing.T, vocab int, open func(*testing.T, engines.TrainPoolRequest) engines.TrainPool) {
	s := &poolSuite{vocab: vocab, request: func(t *testing.T, request engines.TrainPoolRequest) engines.TrainPool {
		p := open(t, request)
		t.Cleanup(func() { assert.NoError(t, p.Close()) })
		return p
	}}
	t.Run("losses", s.losses)
	t.Run("no gradient in Forward", s.forward)
	t.Run("weights of zero", s.zeroWeights)
	t.Run("accumulation", s.accumulation)
	t.Run("batch invariance", s.batchInvariance)
	t.Run("restore", s.restore)
	t.Run("damaged state", s.damaged)
	t.Run("training lowers the loss", s.learns)
	t.Run("divergence", s.diverges)
	t.Run("overflow", s.overflow)
	t.Run("invalid input", s.invalid)
	t.Run("malformed input", s.malformed)
	t.Run("unused inputs", s.unusedInputs)
	t.Run("masked tokens", s.masked)
	t.Run("long data", s.longData)
	t.Run("memory of runs", s.runBytes)
	t.Run("samples equal Forward", s.samples)
	t.Run("samples are batch-invariant", s.sampleInvariance)
	t.Run("filters and stops", s.sampleFilters)
	t.Run("limits of samples", s.sampleLimits)
	t.Run("invalid samples", s.invalidSamples)
	t.Run("many samples", s.manySamples)
	t.Run("samplers", s.samplers)
}

type poolSuite struct {
	vocab   int
	request func(*testing.T, engines.TrainPoolRequest) engines.TrainPool
}

func (s *poolSuite) open(t *testing.T, cores int) engines.TrainPool {
	return s.request(t, engines.TrainPoolRequest{Parallelism: cores})
}

// TrainLosses are all loss functions of engines.TrainPass.
var TrainLosses = []engines.TrainLoss{
	engines.LossCrossEntropy, engines.LossImportanceSampling, engines.LossPPO, engines.LossCISPO, engines.LossDRO,
}

// RandomPass returns a pass of n random sequences of at most 40 tokens of a vocabulary. The
// log-probabilities of the old policy are about those of a uniform distribution.
func RandomPass(rng *rand.Rand, loss engines.TrainLoss, n, vocab int) engines.TrainPass {
	p := engines.TrainPass{Loss: loss}
	for range n {
		tokens := 1 + rng.IntN(40)
		var d engines.TrainDatum
		for range tokens {
			d.Tokens = append(d.Tokens, int32(rng.IntN(vocab)))
			d.Targets = append(d.Targets, int32(rng.IntN(vocab)))
			weight := float32(rng.NormFloat64())
			if rng.IntN(3) == 0 {
				weight = 0
			}
			d.Weights = append(d.Weights, weight)
			if loss != engines.LossCrossEntropy {
				d.Advantages = append(d.Advantages, float32(rng.NormFloat64()))
				d.Logprobs = append(d.Logprobs, float32(-math.Log(float64(vocab))+rng.NormFloat64()*0.7))
			}
		}
		p.Data = append(p.Data, d)
	}
	return p
}

func (s *poolSuite) pass(seed uint64, loss engines.TrainLoss, n int) engines.TrainPass {
	return RandomPass(rand.New(rand.NewPCG(seed, 1)), loss, n, s.vocab)
}

func mustCreate(t *testing.T, p engines.TrainPool, rank int, seed uint64) engines.TrainRun {
	r, err := p.CreateRun(t.Context(), engines.TrainRunConfig{Rank: rank, Seed: seed, TrainAttn: true, TrainMLP: true})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, r.Close()) })
	return r
}

func mustBackward(t *testing.T, r engines.TrainRun, p engines.TrainPass) engines.TrainPassResult {
	t.Helper()
	got, err := r.ForwardBackward(t.Context(), p)
	require.NoError(t, err)
	return got
}

// adam returns parameters of a step that change a run quickly.
func adam(edit ...func(*engines.AdamParams)) engines.AdamParams {
	o := engines.DefaultAdamParams()
	o.LearningRate, o.GradClipNorm = 1e-2, 1
	for _, f := range edit {
		f(&o)
	}
	return o
}

func mustStep(t *testing.T, r engines.TrainRun, o engines.AdamParams) {
	t.Helper()
	before := r.Steps()
	got, err := r.Step(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, before+1, got.Step)
	require.Equal(t, got.Step, r.Steps())
}

// stateOf returns the complete state of a run.
func stateOf(t *testing.T, r engines.TrainRun) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, r.Save(t.Context(), &out))
	return out.String()
}

// naiveLoss is an independent implementation of the losses.
func naiveLoss(p engines.TrainPass, l, q, a, w float64) float64 {
	low, high, beta := 0.8, 1.2, 0.05
	if p.ClipLow != nil {
		low, high = *p.ClipLow, *p.ClipHigh
	}
	if p.Beta != nil {
		beta = *p.Beta
	}
	r := math.Exp(l - q)
	clipped := math.Max(low, math.Min(high, r))
	switch p.Loss {
	case engines.LossCrossEntropy:
		return -w * l
	case engines.LossImportanceSampling:
		return -w * r * a
	case engines.LossPPO:
		return -w * math.Min(r*a, clipped*a)
	case engines.LossCISPO:
		return -w * clipped * a * l
	}
	return -w * (a*l - beta/2*(l-q)*(l-q))
}

// losses compares the outputs of a pass with naiveLoss of the returned log-probabilities.
func (s *poolSuite) losses(t *testing.T) {
	r := mustCreate(t, s.open(t, 2), 5, 1)
	low, high, beta := 0.5, 3.0, 0.3
	for i, loss := range TrainLosses {
		for _, custom := range []bool{false, true} {
			for _, weighted := range []bool{true, false} {
				p := s.pass(uint64(i), loss, 9)
				if custom {
					p.ClipLow, p.ClipHigh, p.Beta = &low, &high, &beta
				}
				for i := range p.Data {
					if !weighted {
						p.Data[i].Weights = nil
					}
				}
				got, err := r.Forward(t.Context(), p)
				require.NoError(t, err)
				require.Len(t, got.Outputs, len(p.Data))
				sum := 0.0
				for j, out := range got.Outputs {
					sum += checkOutput(t, p, p.Data[j], out)
				}
				require.InDelta(t, sum, got.Metrics[engines.MetricLossSum], 1e-6*(1+math.Abs(sum)))
				for name := range got.Metrics {
					require.Equal(t, 1, strings.Count(name, ":"), "metric %s", name)
				}
				require.Equal(t, got, mustBackward(t, r, p), "Forward and ForwardBackward return the same")
			}
		}
	}
}

// checkOutput checks the output of a datum, and returns its loss.
func checkOutput(t *testing.T, p engines.TrainPass, d engines.TrainDatum, out engines.TrainOutput) (sum float64) {
	require.Len(t, out.Logprobs, len(d.Targets))
	if p.Loss == engines.LossCrossEntropy {
		require.Len(t, out.Losses, len(d.Targets))
	} else {
		require.Nil(t, out.Losses)
	}
	for i, lp := range out.Logprobs {
		require.Less(t, lp, float32(0))
		q, a, w := 0.0, 0.0, 1.0
		if d.Weights != nil {
			w = float64(d.Weights[i])
		}
		if d.Advantages != nil {
			q, a = float64(d.Logprobs[i]), float64(d.Advantages[i])
		}
		want := naiveLoss(p, float64(lp), q, a, w)
		if out.Losses != nil {
			require.InDelta(t, want, out.Losses[i], 1e-6*(1+math.Abs(want)))
		}
		sum += want
	}
	return sum
}

func (s *poolSuite) forward(t *testing.T) {
	r := mustCreate(t, s.open(t, 1), 4, 2)
	before := stateOf(t, r)
	_, err := r.Forward(t.Context(), s.pass(1, engines.LossPPO, 3))
	require.NoError(t, err)
	require.Equal(t, before, stateOf(t, r))
}

// zeroWeights checks that targets without weight, at the end of data or between them, change nothing.
func (s *poolSuite) zeroWeights(t *testing.T) {
	p := s.open(t, 2)
	for i, loss := range TrainLosses {
		run := func(edit func(*engines.TrainPass)) string {
			r := mustCreate(t, p, 4, 3)
			pass := s.pass(uint64(i), loss, 5)
			edit(&pass)
			mustBackward(t, r, pass)
			return stateOf(t, r)
		}
		want := run(func(*engines.TrainPass) {})
		require.Equal(t, want, run(func(p *engines.TrainPass) {
			empty := s.pass(99, loss, 3)
			for i := range empty.Data {
				clear(empty.Data[i].Weights)
			}
			p.Data = append(append(append(empty.Data[:1:1], p.Data[:2]...), empty.Data[1:]...), p.Data[2:]...)
		}), "%s: data without weight", loss)
		require.Equal(t, want, run(func(p *engines.TrainPass) {
			for i := range p.Data {
				d := &p.Data[i]
				d.Tokens, d.Targets = append(d.Tokens, 1, 2), append(d.Targets, 3, 4)
				d.Weights = append(d.Weights, 0, 0)
				if d.Advantages != nil {
					d.Advantages, d.Logprobs = append(d.Advantages, 5, 6), append(d.Logprobs, -1, -2)
				}
			}
		}), "%s: padding", loss)
	}
	r := mustCreate(t, p, 4, 3)
	mustStep(t, r, adam()) // a step without a gradient
	require.Equal(t, 1, r.Steps())
}

// accumulation checks that one call equals several calls with parts of its data.
func (s *poolSuite) accumulation(t *testing.T) {
	for _, cores := range []int{1, 3} {
		p := s.open(t, cores)
		whole := s.pass(7, engines.LossImportanceSampling, 60)
		var want string
		for _, n := range []int{60, 30, 7, 1} {
			r := mustCreate(t, p, 8, 4)
			for step := range 2 {
				for lo := 0; lo < len(whole.Data); lo += n {
					part := whole
					part.Data = whole.Data[lo:min(lo+n, len(whole.Data))]
					mustBackward(t, r, part)
				}
				if step == 0 {
					mustStep(t, r, adam())
				}
			}
			if want == "" {
				want = stateOf(t, r)
			}
			require.Equal(t, want, stateOf(t, r), "%d data in each call", n)
		}
	}
}

// script trains a run for some steps, and returns its results and final state.
func (s *poolSuite) script(t *testing.T, p engines.TrainPool, number, n int) (
	results []engines.TrainPassResult, state string,
) {
	r := mustCreate(t, p, 1+number*9, uint64(number))
	for step := range 4 {
		loss := TrainLosses[(number+step)%len(TrainLosses)]
		results = append(results, mustBackward(t, r, s.pass(uint64(100*number+step), loss, n)))
		if step%2 == 1 {
			more, err := r.Forward(t.Context(), s.pass(uint64(number), engines.LossCrossEntropy, 2))
			require.NoError(t, err)
			results = append(results, more)
		}
		mustStep(t, r, adam(func(o *engines.AdamParams) { o.WeightDecay = 0.1 * float64(step) }))
	}
	mustBackward(t, r, s.pass(1, engines.LossCrossEntropy, 1))
	return results, stateOf(t, r)
}

// batchInvariance checks that a run beside seven others returns what it returns alone, with batches of
// several sizes.
func (s *poolSuite) batchInvariance(t *testing.T) {
	sizes := []int{1, 2, 5, 12, 32, 3, 8, 20}
	var results [8][]engines.TrainPassResult
	var states [8]string
	for i, n := range sizes {
		results[i], states[i] = s.script(t, s.open(t, 1), i%7, n)
	}
	for _, cores := range []int{1, 2, 5} {
		p := s.open(t, cores)
		var all sync.WaitGroup
		for i, n := range sizes {
			all.Go(func() {
				got, state := s.script(t, p, i%7, n)
				assert.Equal(t, results[i], got)
				assert.Equal(t, states[i], state)
			})
		}
		all.Wait()
	}
}

// restore saves a run after each of its operations, and continues with the restored run.
func (s *poolSuite) restore(t *testing.T) {
	p := s.open(t, 2)
	again := func(r engines.TrainRun) engines.TrainRun {
		state := stateOf(t, r)
		restored, err := s.open(t, 1).RestoreRun(t.Context(), strings.NewReader(state), engines.TrainRestoreOptions{})
		require.NoError(t, err)
		require.Equal(t, state, stateOf(t, restored))
		require.Equal(t, r.Config(), restored.Config())
		require.Equal(t, r.Steps(), restored.Steps())
		return restored
	}
	keep := func(r engines.TrainRun) engines.TrainRun { return r }
	script := func(next func(engines.TrainRun) engines.TrainRun) (string, engines.TrainPassResult) {
		r := next(mustCreate(t, p, 6, 5))
		for step := range 3 {
			for call := range 2 {
				mustBackward(t, r, s.pass(uint64(step*2+call), engines.LossPPO, 6))
				r = next(r)
			}
			mustStep(t, r, adam())
			r = next(r)
		}
		return stateOf(t, r), mustBackward(t, r, s.pass(50, engines.LossCrossEntropy, 3))
	}
	want, last := script(keep)
	got, restored := script(again)
	require.Equal(t, want, got)
	require.Equal(t, last, restored)

	fresh, err := p.RestoreRun(t.Context(), strings.NewReader(want),
		engines.TrainRestoreOptions{ResetOptimizer: true})
	require.NoError(t, err)
	require.Zero(t, fresh.Steps())
	result, err := fresh.Forward(t.Context(), s.pass(50, engines.LossCrossEntropy, 3))
	require.NoError(t, err)
	require.Equal(t, last, result, "the adapter is kept")
}

// damaged flips bits of a state, all of those at its beginning, and truncates it.
func (s *poolSuite) damaged(t *testing.T) {
	p := s.open(t, 1)
	r := mustCreate(t, p, 1, 6)
	mustBackward(t, r, s.pass(1, engines.LossCrossEntropy, 1))
	state := stateOf(t, r)
	restore := func(from io.Reader) error {
		_, err := p.RestoreRun(t.Context(), from, engines.TrainRestoreOptions{AnyKernel: true})
		return err
	}
	lost := func(state []byte, what string, at int) {
		err := restore(bytes.NewReader(state))
		require.Equal(t, domain.DataLoss, domain.CodeOf(err), "%s %d: %v", what, at, err)
	}
	broken := []byte(state)
	for bit := 0; bit < 8*len(broken); bit++ {
		if at := bit / 8; at > 1024 && at < len(broken)-64 && bit%1009 != 0 {
			continue
		}
		broken[bit/8] ^= 1 << (bit % 8)
		lost(broken, "bit", bit)
		broken[bit/8] ^= 1 << (bit % 8)
	}
	for n := 0; n < len(broken); n += 1 + n/16 {
		lost(broken[:n], "length", n)
		failing := io.MultiReader(strings.NewReader(state[:n]), iotest.ErrReader(errors.New("the disk is gone")))
		require.Equal(t, domain.Unknown, domain.CodeOf(restore(failing)), "it may be read later")
	}
	lost(broken[:len(broken)-1], "length", len(broken)-1)
	lost(append(broken, 'x'), "length", len(broken)+1)
	require.NoError(t, restore(strings.NewReader(state)))
}

func (s *poolSuite) learns(t *testing.T) {
	p := s.open(t, 2)
	r := mustCreate(t, p, 16, 7)
	pass := engines.TrainPass{Data: []engines.TrainDatum{{Tokens: []int32{1, 2, 3, 4}, Targets: []int32{2, 3, 4, 5}}}}
	first := mustBackward(t, r, pass).Metrics[engines.MetricLossSum]
	for range 30 {
		mustStep(t, r, adam())
		mustBackward(t, r, pass)
	}
	last, err := r.Forward(t.Context(), pass)
	require.NoError(t, err)
	require.Less(t, last.Metrics[engines.MetricLossSum], 0.9*first)

	frozen := stateOf(t, r)
	require.NotEqual(t, frozen, stateOf(t, mustCreate(t, p, 16, 7)))
	require.Equal(t, stateOf(t, mustCreate(t, p, 16, 7)), stateOf(t, mustCreate(t, p, 16, 7)), "the seed decides")
	require.NotEqual(t, stateOf(t, mustCreate(t, p, 16, 8)), stateOf(t, mustCreate(t, p, 16, 7)))
}

// diverges checks that a loss that is not finite is reported, and changes nothing.
func (s *poolSuite) diverges(t *testing.T) {
	p := s.open(t, 1)
	r := mustCreate(t, p, 3, 8)
	before := stateOf(t, r)
	pass := s.pass(1, engines.LossImportanceSampling, 2)
	pass.Data[0].Logprobs[0], pass.Data[0].Advantages[0], pass.Data[0].Weights[0] = -10000, 1, 1
	_, err := r.ForwardBackward(t.Context(), pass)
	requireReason(t, err, engines.TrainingDiverged)
	_, err = r.Step(t.Context(), adam())
	requireReason(t, err, engines.TrainingDiverged)
	require.Equal(t, before, stateOf(t, r))
}

func requireReason(t *testing.T, err error, reason string) {
	t.Helper()
	var f *domain.Error
	require.ErrorAs(t, err, &f)
	require.Equal(t, reason, f.Reason)
}
