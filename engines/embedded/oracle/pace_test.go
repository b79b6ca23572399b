package oracle

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ollama/ollama/ml"
	"github.com/ollama/ollama/model"
	"github.com/ollama/ollama/model/input"
	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/miniature"
	"anneal/engines/embedded/serve"
)

const (
	pacePrompt = 32 // tokens of each prompt
	paceAnswer = 96
)

// BenchmarkPace compares this engine with ggml on one core, for 1 and 8 concurrent sequences. Both
// run the same small model in the same dtype. of-ggml is this engine's token rate divided by
// ggml's.
func BenchmarkPace(b *testing.B) {
	for _, as := range []string{"f32", "f16"} {
		dir := sized(b, map[string]string{"f32": "float32", "f16": "float16"}[as])
		ours, err := serve.New(serve.Options{Parallelism: 1}).Load(b.Context(), engines.ModelFiles{Dir: dir})
		require.NoError(b, err)
		theirs, err := model.New(export(b, dir, as), ml.BackendParams{AllocMemory: true, NumThreads: 1})
		require.NoError(b, err)
		require.NoError(b, theirs.Backend().Load(b.Context(), func(float32) {}))
		theirs.Config().Cache.Init(theirs.Backend(), ml.DTypeF32, 8, 2*(pacePrompt+paceAnswer), 8*pacePrompt)
		for _, sequences := range []int{1, 8} {
			b.Run(fmt.Sprintf("%s/%d", as, sequences), func(b *testing.B) {
				var we, they time.Duration
				round := 0
				for b.Loop() {
					began := time.Now()
					answer(b, ours, sequences, round)
					middle := time.Now()
					ggmlAnswer(b, theirs, sequences)
					we, they = we+middle.Sub(began), they+time.Since(middle)
					round++
				}
				tokens := float64(b.N * sequences * paceAnswer)
				b.ReportMetric(tokens/we.Seconds(), "tok/s")
				b.ReportMetric(tokens/they.Seconds(), "ggml-tok/s")
				b.ReportMetric(they.Seconds()/we.Seconds(), "of-ggml")
			})
		}
		require.NoError(b, ours.Close())
		theirs.Config().Cache.Close()
		theirs.Backend().Close()
	}
}

// sized writes a model of 26 M parameters with the tokenizer of a miniature model.
func sized(b *testing.B, dtype string) string {
	small, dir := b.TempDir(), b.TempDir()
	require.NoError(b, miniature.Write(small, "llama3"))
	for _, file := range []string{"tokenizer.json", "tokenizer_config.json"} {
		data, err := os.ReadFile(filepath.Join(small, file))
		require.NoError(b, err)
		require.NoError(b, os.WriteFile(filepath.Join(dir, file), data, 0o600))
	}
	c, err := llama.ReadConfig(small)
	require.NoError(b, err)
	c.HiddenSize, c.IntermediateSize, c.Layers, c.Heads, c.KVHeads, c.HeadDim, c.MaxPositions = 512, 1408, 8, 8, 8, 64, 512
	c.RopeScaling, c.RopeParameters, c.TorchDType = nil, nil, dtype
	w := llama.NewWeights(c)
	w.Initialize(1)
	require.NoError(b, w.Save(dir))
	return dir
}

func answer(b *testing.B, m engines.Model, sequences, round int) {
	var all sync.WaitGroup
	for i := range sequences {
		all.Go(func() {
			req := engines.CompletionRequest{
				PromptTokens: make([]int, pacePrompt), MaxTokens: paceAnswer, IgnoreEOS: true,
				CacheScope: fmt.Sprint(sequences, round, i),
			}
			_, err := m.Complete(b.Context(), req, func(engines.Chunk) error { return nil })
			require.NoError(b, err)
		})
	}
	all.Wait()
}

// ggmlAnswer prefills prompts and then decodes with ggml, one token for each sequence and step.
func ggmlAnswer(b *testing.B, m model.Model, sequences int) {
	var positions, owners []int32
	for i := range sequences {
		require.NoError(b, m.Config().Cache.Remove(i, 0, math.MaxInt32)) // removes the cache of the previous round
	}
	for i := range sequences {
		for at := range pacePrompt {
			positions, owners = append(positions, int32(at)), append(owners, int32(i))
		}
	}
	ggmlStep(b, m, positions, owners)
	for at := range paceAnswer - 1 {
		positions, owners = positions[:0], owners[:0]
		for i := range sequences {
			positions, owners = append(positions, int32(pacePrompt+at)), append(owners, int32(i))
		}
		ggmlStep(b, m, positions, owners)
	}
}

func ggmlStep(b *testing.B, m model.Model, positions, owners []int32) {
	ctx := m.Backend().NewContext()
	defer ctx.Close()
	var last []int32
	sequences := make([]int, len(owners))
	for i, owner := range owners {
		if sequences[i] = int(owner); i == len(owners)-1 || owners[i+1] != owner {
			last = append(last, int32(i))
		}
	}
	logits, err := model.Forward(
		ctx, m, input.Batch{Inputs: ctx.Input().FromIntSlice(make([]int32, len(positions)), len(positions)),
			Outputs: ctx.Input().FromIntSlice(last, len(last)), Positions: positions, Sequences: sequences})
	require.NoError(b, err)
	ctx.Compute(logits)
	_ = logits.Floats()
}
