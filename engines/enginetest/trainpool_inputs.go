package enginetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
)

// specialFloats are values at the limits of the number formats.
var specialFloats = []float64{
	0, math.Copysign(0, -1), 1, -1, 0.5, 1.5, -10000, 10000, math.MaxFloat32, -math.MaxFloat32, 1e39, -1e39,
	math.SmallestNonzeroFloat32, math.SmallestNonzeroFloat64, math.MaxFloat64, math.NaN(), math.Inf(1), math.Inf(-1),
}

func pick[T any](rng *rand.Rand, from []T) T { return from[rng.IntN(len(from))] }

// MalformedPass returns a random pass after some changes, most of which make it invalid.
func MalformedPass(rng *rand.Rand, vocab int) engines.TrainPass {
	losses := append([]engines.TrainLoss{"", "hinge"}, TrainLosses...)
	p := RandomPass(rng, pick(rng, losses), 1+rng.IntN(4), vocab)
	for range rng.IntN(5) {
		d := &p.Data[rng.IntN(len(p.Data))]
		switch rng.IntN(8) {
		case 0:
			p.Loss = pick(rng, losses) // the data are those of another loss
		case 1:
			*pick(rng, []**float64{&p.ClipLow, &p.ClipHigh, &p.Beta}) = new(pick(rng, specialFloats))
		case 2, 3:
			list := pick(rng, []*[]int32{&d.Tokens, &d.Targets})
			*list = damage(rng, *list, []int32{0, -1, int32(vocab), math.MinInt32, math.MaxInt32})
		case 4:
			*d = engines.TrainDatum{Tokens: d.Tokens, Targets: append(d.Targets, d.Targets...)}
		default:
			list := pick(rng, []*[]float32{&d.Weights, &d.Advantages, &d.Logprobs})
			var values []float32
			for _, x := range specialFloats {
				values = append(values, float32(x))
			}
			*list = damage(rng, *list, values)
		}
	}
	return p
}

// damage returns a list with another length or another element.
func damage[T any](rng *rand.Rand, list []T, values []T) []T {
	switch rng.IntN(5) {
	case 0:
		return nil
	case 1:
		return []T{}
	case 2:
		return list[:rng.IntN(len(list)+1)]
	case 3:
		return append(list, pick(rng, values))
	}
	if len(list) > 0 {
		list[rng.IntN(len(list))] = pick(rng, values)
	}
	return list
}

// TryPass computes a pass of any content. It must succeed or return InvalidArgument or
// engines.TrainingDiverged, and must not panic.
func TryPass(t *testing.T, r engines.TrainRun, pass engines.TrainPass) {
	t.Helper()
	forward, err := r.Forward(t.Context(), pass)
	got, again := r.ForwardBackward(t.Context(), pass)
	requireExpected(t, again)
	require.Equal(t, domain.CodeOf(err), domain.CodeOf(again), "Forward: %v, ForwardBackward: %v", err, again)
	require.Equal(t, forward, got)
	if err != nil {
		require.Empty(t, got)
		return
	}
	require.Len(t, got.Outputs, len(pass.Data))
	for i, out := range got.Outputs {
		require.Len(t, out.Logprobs, len(pass.Data[i].Targets))
	}
}

func requireExpected(t *testing.T, err error) {
	t.Helper()
	if err != nil && domain.CodeOf(err) != domain.InvalidArgument {
		requireReason(t, err, engines.TrainingDiverged)
	}
}

// malformed tries passes and steps with random content.
func (s *poolSuite) malformed(t *testing.T) {
	p := s.open(t, 2)
	rng := rand.New(rand.NewPCG(11, 12))
	for range 20 {
		r := mustCreate(t, p, 3, 1)
		for range 15 {
			TryPass(t, r, MalformedPass(rng, s.vocab))
		}
		o := engines.DefaultAdamParams()
		for range 1 + rng.IntN(2) {
			*pick(rng, []*float64{
				&o.LearningRate, &o.Beta1, &o.Beta2, &o.Epsilon, &o.WeightDecay, &o.GradClipNorm,
			}) = pick(rng, specialFloats)
		}
		_, err := r.Step(t.Context(), o)
		requireExpected(t, err)
	}
}

// unusedInputs checks that inputs that the loss does not use change nothing, whether all of them are
// set or not.
func (s *poolSuite) unusedInputs(t *testing.T) {
	p := s.open(t, 1)
	run := func(edit func(d *engines.TrainDatum)) (engines.TrainPassResult, string) {
		r := mustCreate(t, p, 2, 3)
		pass := s.pass(4, engines.LossPPO, 3)
		pass.Loss = engines.LossCrossEntropy
		for i := range pass.Data {
			edit(&pass.Data[i])
		}
		return mustBackward(t, r, pass), stateOf(t, r)
	}
	want, state := run(func(d *engines.TrainDatum) { d.Advantages, d.Logprobs = nil, nil })
	for i, edit := range []func(d *engines.TrainDatum){
		func(*engines.TrainDatum) {},
		func(d *engines.TrainDatum) { d.Logprobs = nil },
		func(d *engines.TrainDatum) { d.Advantages = nil },
		func(d *engines.TrainDatum) { d.Advantages, d.Logprobs = []float32{}, []float32{} },
	} {
		got, other := run(edit)
		require.Equal(t, want, got, "case %d", i)
		require.Equal(t, state, other, "case %d", i)
	}
}

// masked checks that a token with the advantage 0 changes nothing, however much the policies differ,
// unless the loss has another term.
func (s *poolSuite) masked(t *testing.T) {
	p := s.open(t, 1)
	run := func(loss engines.TrainLoss, edit func(d *engines.TrainDatum, i int)) string {
		r := mustCreate(t, p, 2, 3)
		pass := s.pass(5, loss, 3)
		for i := range pass.Data {
			for j := 0; j < len(pass.Data[i].Targets); j += 3 {
				edit(&pass.Data[i], j)
			}
		}
		mustBackward(t, r, pass)
		return stateOf(t, r)
	}
	for _, loss := range TrainLosses[1:] {
		want := run(loss, func(d *engines.TrainDatum, i int) { d.Weights[i] = 0 })
		for _, logprob := range []float32{-10000, -1, 10000} {
			got := run(loss, func(d *engines.TrainDatum, i int) {
				d.Weights[i], d.Advantages[i], d.Logprobs[i] = 1, 0, logprob
			})
			require.Equal(t, loss != engines.LossDRO, want == got, "%s, log-probability %g", loss, logprob)
		}
	}
}

func (s *poolSuite) invalid(t *testing.T) {
	p := s.open(t, 1)
	for _, c := range []engines.TrainRunConfig{
		{Rank: 0, TrainAttn: true}, {Rank: 65, TrainAttn: true}, {Rank: 4}, {Rank: 4, TrainAttn: true, Alpha: -1},
		{Rank: 4, TrainAttn: true, Alpha: 1e39}, {Rank: 4, TrainAttn: true, Alpha: 1e-60},
	} {
		_, err := p.CreateRun(t.Context(), c)
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), "%+v", c)
	}
	r := mustCreate(t, p, 2, 9)
	before := stateOf(t, r)
	for i, edit := range []func(*engines.TrainPass){
		func(p *engines.TrainPass) { p.Data = nil },
		func(p *engines.TrainPass) { p.Loss = "hinge" },
		func(p *engines.TrainPass) { p.Data[1].Tokens = nil },
		func(p *engines.TrainPass) { p.Data[1].Targets = p.Data[1].Targets[1:] },
		func(p *engines.TrainPass) { p.Data[1].Tokens[0] = int32(s.vocab) },
		func(p *engines.TrainPass) { p.Data[1].Targets[0] = -1 },
		func(p *engines.TrainPass) { p.Data[1].Weights = []float32{} },
		func(p *engines.TrainPass) { p.Data[1].Weights[0] = float32(math.NaN()) },
		func(p *engines.TrainPass) { p.Data[1].Advantages = nil },
		func(p *engines.TrainPass) { p.Data[1].Logprobs[0] = float32(math.Inf(-1)) },
		func(p *engines.TrainPass) { p.ClipLow = new(2.0) },
		func(p *engines.TrainPass) { p.Beta = new(math.NaN()) },
		func(p *engines.TrainPass) { p.Data[1].Tokens = make([]int32, 1<<22) },
	} {
		pass := s.pass(3, engines.LossPPO, 3)
		edit(&pass)
		_, err := r.ForwardBackward(t.Context(), pass)
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), fmt.Sprint("case ", i, ": ", err))
	}
	for _, edit := range []func(*engines.AdamParams){
		func(o *engines.AdamParams) { o.LearningRate = -1 },
		func(o *engines.AdamParams) { o.LearningRate = math.NaN() },
		func(o *engines.AdamParams) { o.LearningRate = 1e39 },
		func(o *engines.AdamParams) { o.LearningRate, o.WeightDecay = 0, 1e39 },
		func(o *engines.AdamParams) { o.LearningRate, o.WeightDecay = 0.5, 3 },
		func(o *engines.AdamParams) { o.Epsilon = 1e39 },
		func(o *engines.AdamParams) { o.GradClipNorm = math.NaN() },
		func(o *engines.AdamParams) { o.Beta1 = 1 },
		func(o *engines.AdamParams) { o.Beta2 = -0.1 },
		func(o *engines.AdamParams) { o.Epsilon = 0 },
		func(o *engines.AdamParams) { o.WeightDecay = math.Inf(1) },
		func(o *engines.AdamParams) { o.GradClipNorm = -1 },
	} {
		_, err := r.Step(t.Context(), adam(edit))
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), "%v", err)
	}
	require.Equal(t, before, stateOf(t, r))
}

// overflow checks that a step whose new weights are not finite changes only the gradient.
func (s *poolSuite) overflow(t *testing.T) {
	p := s.open(t, 2)
	r := mustCreate(t, p, 3, 8)
	mustBackward(t, r, s.pass(1, engines.LossCrossEntropy, 2))
	mustStep(t, r, adam())
	before := stateOf(t, r)
	for _, edit := range []func(*engines.AdamParams){
		func(o *engines.AdamParams) { o.LearningRate = math.MaxFloat32 },
		func(o *engines.AdamParams) { o.LearningRate, o.Beta2, o.Epsilon = 1e30, 0, 1e-45 },
	} {
		mustBackward(t, r, s.pass(2, engines.LossCrossEntropy, 2))
		_, err := r.Step(t.Context(), adam(edit))
		requireReason(t, err, engines.TrainingDiverged)
		require.Equal(t, before, stateOf(t, r))
	}
	mustBackward(t, r, s.pass(2, engines.LossCrossEntropy, 2))
	mustStep(t, r, adam())
	_, err := r.Forward(t.Context(), s.pass(3, engines.LossPPO, 2))
	require.NoError(t, err)
}
