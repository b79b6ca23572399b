package train

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/domain/rows"
	"anneal/engines"
	"anneal/engines/embedded/llama"
)

// chatRows returns n rows of conversations whose responses follow one rule.
func chatRows(n int) []string {
	rng := rand.New(rand.NewPCG(5, 5))
	var out []string
	for range n {
		a, b := rng.IntN(10), rng.IntN(10)
		out = append(out,
			fmt.Sprintf(`{"messages":[{"role":"user","content":"code %d%d"},{"role":"assistant","content":"%d-%d-ok"}]}`, a, b,
				b, a))
	}
	return out
}

// completionRows returns n rows of prompts with completions that follow one rule.
func completionRows(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf(`{"prompt":"code %d: ","completion":"%d-ok"}`, i, n-i))
	}
	return out
}

// TestReplayGradient compares the gradient of a step with replayed responses with finite
// differences of its loss: the mean likelihood plus the weighted mean divergence.
func TestReplayGradient(t *testing.T) {
	c := llama.Config{ModelType: "llama", HiddenSize: 16, IntermediateSize: 24, Layers: 2, Heads: 2, KVHeads: 2,
		HeadDim: 8, VocabSize: 40, MaxPositions: 64, NormEps: 1e-5, RopeTheta: 10000, HiddenAct: "silu",
		InitializerRange: 0.3}
	w := llama.NewWeights(c)
	w.Initialize(3)
	a := llama.NewAdapter(c, 3, 6, []llama.Module{llama.Query, llama.Up, llama.Down})
	a.Initialize(4)
	l := NewLoop(llama.NewNet(w, a, 1), 1)
	keepInitial(&job{loop: l, settings: engines.TrainSettings{ReplayWeight: 2}})
	random := rand.New(rand.NewPCG(5, 5))
	for i := range a.Flat() { // away from the initial model, where the divergence and its gradient are 0
		a.Flat()[i] += float32(0.2 * random.NormFloat64())
	}
	samples := sequences(random, c.VocabSize, likelihood{})
	for i, s := range sequences(random, c.VocabSize, likelihood{}) {
		s.Replay = i > 0
		samples = append(samples, s)
	}
	loss := func() float64 {
		l.Net.Pack(1)
		clear(l.total.Flat)
		report, err := l.gradient(t.Context(), samples)
		require.NoError(t, err)
		require.Positive(t, report.metrics["divergence"].value())
		require.InDelta(t, report.metrics["loss"].value()+2*report.metrics["divergence"].value(), report.Loss, 1e-9)
		return report.Loss
	}
	loss()
	gradient, keep := slices.Clone(l.total.Flat), slices.Clone(l.Net.Trained())
	direction, want, norm := make([]float32, len(keep)), 0.0, 0.0
	for i := range direction {
		direction[i] = float32(random.NormFloat64())
		want += float64(direction[i]) * float64(gradient[i])
		norm += float64(gradient[i]) * float64(gradient[i])
	}
	at := func(f float32) float64 {
		for i := range keep {
			l.Net.Trained()[i] = keep[i] + f*direction[i]
		}
		return loss()
	}
	const step = 1e-3
	got := (8*(at(step)-at(-step)) - (at(2*step) - at(-2*step))) / (12 * step)
	require.InDelta(t, want, got, 0.02*math.Sqrt(norm)+0.02*math.Abs(want))
}

// TestSyntheticPrompts checks that prompts are varied, have words of the rows, and have the
// format of the dataset.
func TestSyntheticPrompts(t *testing.T) {
	var a promptStats
	a.add(&rows.Row{Messages: []rows.Message{{Role: "system", Content: "never"},
		{Role: "user", Content: "pack the blue box"}}})
	a.add(&rows.Row{Prompt: "pack the red box"})
	require.Equal(t, []string{"pack", "the", "blue", "box", "red"}, a.order)
	random, seen, used, noise := rand.New(rand.NewPCG(1, 1)), map[string]bool{}, 0, 0
	for range 1000 {
		text := a.prompt(random)
		require.NotEmpty(t, text)
		seen[text] = true
		used += int(share(slices.ContainsFunc(strings.Fields(text), func(word string) bool { return a.words[word] })))
		noise += int(share(strings.ContainsAny(text, "%&{}~^|")))
	}
	require.Greater(t, len(seen), 900)
	require.Greater(t, used, 400)
	require.Greater(t, noise, 100)
	require.Equal(t, a.prompt(rand.New(rand.NewPCG(7, 7))), a.prompt(rand.New(rand.NewPCG(7, 7))))
}

func TestReplayWeightIsForSupervisedTraining(t *testing.T) {
	c := &llama.Config{HiddenSize: 32, MaxPositions: 64}
	for name, request := range map[string]engines.TrainRequest{
		"is -1":                    {Settings: engines.TrainSettings{ReplayWeight: -1}},
		"must be 0 to":             {Settings: engines.TrainSettings{ReplayWeight: domain.MaxReplayWeight + 1}},
		"only supervised training": {Method: engines.DPO, Settings: engines.TrainSettings{ReplayWeight: 1}},
	} {
		if request.Method == "" {
			request.Method = engines.Supervised
		}
		_, err := resolve(request, c)
		require.ErrorContains(t, err, name)
		require.ErrorContains(t, err, "replayWeight")
	}
}
