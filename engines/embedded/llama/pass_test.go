package llama

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func tiny(tied bool) Config {
	return Config{ModelType: "llama", HiddenSize: 24, IntermediateSize: 40, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 6,
		VocabSize: 37, MaxPositions: 256, NormEps: 1e-5, RopeTheta: 10000, TieWordEmbeddings: tied, HiddenAct: "silu",
		InitializerRange: 0.25, TorchDType: "float32"}
}

// randomBatch returns random sequences of the given lengths.
func randomBatch(c Config, seed uint64, lengths ...int) *Batch {
	rng := rand.New(rand.NewPCG(seed, 1))
	b := &Batch{}
	for _, n := range lengths {
		tokens, scored := make([]int32, n), make([]bool, n)
		for i := range tokens {
			tokens[i], scored[i] = int32(rng.IntN(c.VocabSize)), rng.IntN(3) > 0
		}
		scored[n-1] = true
		b.Add(tokens, scored)
	}
	return b
}

func randomize(v []float32, seed uint64, std float64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	for i := range v {
		v[i] += float32(rng.NormFloat64() * std)
	}
}

// groups returns the parameters of the adapter, or of the model if a is nil, by name of their
// group.
func groups(w *Weights, a *Adapter) map[string][]float32 {
	out := map[string][]float32{}
	if a != nil {
		for i := range a.Layers {
			for m := range Modules {
				if p := a.Layers[i][m]; p.A.Data != nil {
					out[fmt.Sprintf("%d.%s.A", i, m)] = p.A.Data
					out[fmt.Sprintf("%d.%s.B", i, m)] = p.B.Data
				}
			}
		}
		return out
	}
	out["embed"], out["norm"] = w.Embed.Data, w.Norm
	if !w.Config.TieWordEmbeddings {
		out["head"] = w.Head.Data
	}
	for i, l := range w.Layers {
		for input, bias := range l.Bias {
			if bias != nil {
				out[fmt.Sprint(i, ".bias.", input)] = bias
			}
		}
		if l.QNorm != nil {
			out[fmt.Sprint(i, ".qNorm")], out[fmt.Sprint(i, ".kNorm")] = l.QNorm, l.KNorm
		}
		out[fmt.Sprint(i, ".attnNorm")], out[fmt.Sprint(i, ".mlpNorm")] = l.AttnNorm, l.MLPNorm
		for m := range Modules {
			out[fmt.Sprint(i, ".", m)] = l.Matrix(m).Data
		}
	}
	return out
}

// TestGradient checks the gradient of Backward against finite differences along a random
// direction of each group of parameters.
func TestGradient(t *testing.T) {
	all := []Module{Query, Key, Value, Output, Gate, Up, Down}
	cases := []struct {
		name    string
		tied    bool
		modules []Module
		dropout float64
		edit    func(*Config)
	}{
		{name: "all parameters, tied", tied: true},
		{name: "all parameters, untied"},
		{name: "qwen2", tied: true, edit: func(c *Config) { c.ModelType = "qwen2" }},
		{name: "qwen3", edit: func(c *Config) { c.ModelType, c.AttentionBias = "qwen3", true }},
		{name: "all biased, scaled rotation", edit: func(c *Config) {
			c.AttentionBias, c.MLPBias, c.RopeScaling = true, true, &Rotary{Type: "linear", Factor: 4}
		}},
		{name: "low rank on qwen2", modules: all, edit: func(c *Config) { c.ModelType = "qwen2" }},
		{name: "low rank on qwen3", modules: all, edit: func(c *Config) { c.ModelType = "qwen3" }},
		{name: "low rank on all modules", modules: all},
		{name: "low rank on some modules", modules: []Module{Query, Value, Up}},
		{name: "low rank with dropout", modules: all, dropout: 0.3},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			c := tiny(tc.tied)
			if tc.edit != nil {
				tc.edit(&c)
			}
			w := NewWeights(c)
			w.Initialize(7)
			randomize(w.Flat(), 8, 0.05)
			var a *Adapter
			if tc.modules != nil {
				a = NewAdapter(c, 3, 6, tc.modules)
				a.Initialize(9)
				randomize(a.Flat(), 10, 0.2)
			}
			batch := randomBatch(c, 11, 5, 2, 90, 17)
			weights := make([]float32, batch.Scored())
			randomize(weights, 12, 1)
			net := NewNet(w, a, 2)
			pass := NewPass(net)
			loss := func() float64 {
				net.Pack(1)
				sum := 0.0
				for i, lp := range pass.ForwardDropout(batch, tc.dropout, 5) {
					sum += float64(weights[i]) * float64(lp)
				}
				return sum
			}
			loss()
			g := net.NewGradient()
			pass.Backward(weights, g)

			values, grads := groups(w, a), groups(g.weights, g.adapter)
			require.Equal(t, len(values), len(grads))
			for name, v := range values {
				direction := make([]float32, len(v))
				randomize(direction, 13, 1)
				want, norm := 0.0, 0.0
				for i, d := range direction {
					want += float64(d) * float64(grads[name][i])
					norm += float64(grads[name][i]) * float64(grads[name][i])
				}
				require.NotZero(t, norm, name)
				keep := append([]float32(nil), v...)
				const step = 1e-3
				at := func(f float32) float64 {
					for i := range v {
						v[i] = keep[i] + f*direction[i]
					}
					return loss()
				}
				got := (8*(at(step)-at(-step)) - (at(2*step) - at(-2*step))) / (12 * step)
				copy(v, keep)
				require.InDelta(t, want, got, 0.02*math.Sqrt(norm)+0.02*math.Abs(want), name)
			}
		})
	}
}

// TestSequencesAreIndependent checks that a sequence has the same log-probabilities alone and in a
// batch, bit for bit.
func TestSequencesAreIndependent(t *testing.T) {
	c := tiny(true)
	w := NewWeights(c)
	w.Initialize(1)
	pass := NewPass(NewNet(w, nil, 1))
	lengths := []int{70, 3, 130, 2}
	together := append([]float32(nil), pass.Forward(randomBatch(c, 3, lengths...))...)
	whole := randomBatch(c, 3, lengths...)
	for i := range whole.Starts {
		lo, hi := whole.span(i)
		one := &Batch{Tokens: whole.Tokens[lo:hi], Targets: whole.Targets[lo:hi], Starts: []int32{0}}
		alone := pass.Forward(one)
		require.Equal(t, together[:len(alone)], alone)
		together = together[len(alone):]
	}
	require.Empty(t, together)
}

// TestUniform checks that Forward gives every token the probability 1/vocab in a model of zeros.
func TestUniform(t *testing.T) {
	c := tiny(true)
	pass := NewPass(NewNet(NewWeights(c), nil, 1))
	for _, lp := range pass.Forward(randomBatch(c, 1, 9, 4)) {
		require.InDelta(t, -math.Log(float64(c.VocabSize)), lp, 1e-6)
	}
}

// TestMergeEqualsAdapter checks that Forward gives equivalent results for merged weights and for
// the base model with the adapter.
func TestMergeEqualsAdapter(t *testing.T) {
	c := tiny(false)
	w := NewWeights(c)
	w.Initialize(1)
	a := NewAdapter(c, 4, 8, []Module{Query, Output, Down})
	a.Initialize(2)
	randomize(a.Flat(), 3, 0.1)
	batch := randomBatch(c, 4, 30, 12)
	low := append([]float32(nil), NewPass(NewNet(w, a, 1)).Forward(batch)...)
	plain := append([]float32(nil), NewPass(NewNet(w, nil, 1)).Forward(batch)...)
	merged := NewPass(NewNet(a.Merge(w), nil, 1)).Forward(batch)
	require.InDeltaSlice(t, low, merged, 1e-4)
	require.NotEqual(t, plain, low)
}

// TestParts checks that the ranges of Parts, which select the parameters for weight decay, cover
// each parameter once.
func TestParts(t *testing.T) {
	for _, family := range []string{"llama", "qwen2", "qwen3"} {
		c := tiny(false)
		c.ModelType, c.AttentionBias, c.MLPBias = family, family != "qwen2", true
		w := NewWeights(c)
		for i := range w.Layers {
			l := &w.Layers[i]
			for _, vector := range append(l.Bias[:], l.AttnNorm, l.MLPNorm, l.QNorm, l.KNorm, w.Norm) {
				for j := range vector {
					vector[j] = 1
				}
			}
		}
		require.Len(t, w.Flat(), int(c.Parameters()))
		at := 0
		for _, part := range NewNet(w, nil, 1).Parts() {
			for _, v := range w.Flat()[at : at+part.Len] {
				require.Equal(t, part.Matrix, v == 0, "parameter %d of %s", at, family)
			}
			at += part.Len
		}
		require.Equal(t, len(w.Flat()), at)
	}
}

// TestRopeDivisors checks RopeDivisor for the scaling of Llama 3.1 8B and for linear scaling. For
// Llama, the expected divisors of three elements are computed by hand.
func TestRopeDivisors(t *testing.T) {
	c := Config{
		HeadDim: 128, RopeTheta: 500000,
		RopeScaling: &Rotary{Type: "llama3", Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalPositions: 8192},
	}
	require.Equal(t, 1.0, c.RopeDivisor(0), "a wave of 6 tokens")
	require.Equal(t, 8.0, c.RopeDivisor(63), "a wave of 2.5 million tokens")
	// Element 32: θ^-½ = 0.00141421, wavelength 4442.9 tokens, 1.84383 rotations in 8192; weight
	// (1.84383-1)/3 = 0.281277.
	require.InDelta(t, 1/((1-0.281277)/8+0.281277), c.RopeDivisor(32), 1e-4)
	c.RopeScaling = &Rotary{Legacy: "linear", Factor: 4}
	require.Equal(t, 4.0, c.RopeDivisor(7))
}

// TestFrozen checks that training does not change the output of a net that Frozen returned.
func TestFrozen(t *testing.T) {
	for name, rank := range map[string]int{"all parameters": 0, "an adapter": 3} {
		t.Run(name, func(t *testing.T) {
			c := tiny(true)
			w := NewWeights(c)
			w.Initialize(1)
			var a *Adapter
			if rank > 0 {
				a = NewAdapter(c, rank, 6, []Module{Query, Value, Down})
				a.Initialize(2)
				randomize(a.Flat(), 3, 0.1)
			}
			net := NewNet(w, a, 1)
			batch := randomBatch(c, 4, 30, 12)
			before := append([]float32(nil), NewPass(net).Forward(batch)...)
			frozen := net.Frozen(1)
			randomize(net.Trained(), 5, 0.1)
			net.Pack(1)
			require.Equal(t, before, NewPass(frozen).Forward(batch))
			require.NotEqual(t, before, NewPass(net).Forward(batch))
		})
	}
}
