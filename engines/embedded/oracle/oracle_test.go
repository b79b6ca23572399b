// Package oracle compares the embedded engine with ggml, an independent implementation of the same
// models. It is a separate module, because it needs a C++ compiler and takes minutes to build.
// `make oracle` runs it; `make bench-others` compares the engine's speed with that of ggml and
// OpenBLAS.
package oracle

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ollama/ollama/ml"
	_ "github.com/ollama/ollama/ml/backend"
	"github.com/ollama/ollama/model"
	"github.com/ollama/ollama/model/input"
	_ "github.com/ollama/ollama/model/models/llama"
	_ "github.com/ollama/ollama/model/models/qwen2"
	_ "github.com/ollama/ollama/model/models/qwen3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/engines/embedded/gguf"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/miniature"
	"anneal/engines/embedded/tokenizer"
)

// length is the number of tokens of a sequence. It exceeds the original context length of the
// miniature Llama 3, so that rope scaling has an effect.
const length = 150

// TestLogits checks that ggml computes the same log-probabilities from an exported model as the
// embedded engine computes from the original model.
func TestLogits(t *testing.T) {
	for _, family := range miniature.Families() {
		for _, c := range []struct {
			as    string
			bound float64 // maximum of the mean difference; with 16 and 8 bits, ggml rounds the activations too
		}{{"f32", 1e-5}, {"f16", 1e-2}, {"bf16", 5e-2}, {"q8_0", 1e-1}} {
			t.Run(family+" "+c.as, func(t *testing.T) {
				dir := t.TempDir()
				require.NoError(t, miniature.Write(dir, family))
				w, err := llama.Load(dir)
				require.NoError(t, err)
				tokens := make([]int32, length)
				source := rand.New(rand.NewPCG(1, 2))
				for i := range tokens {
					tokens[i] = int32(source.IntN(w.Config.VocabSize))
				}
				ours, theirs := logProbabilities(ourLogits(w, tokens), w.Config.VocabSize), logProbabilities(
					ggmlLogits(t, export(t, dir, c.as), tokens), w.Config.VocabSize)
				require.Len(t, theirs, len(ours))
				largest, mean, spread := 0.0, 0.0, 0.0
				for i := range ours {
					difference := math.Abs(ours[i] - theirs[i])
					largest, mean = max(largest, difference), mean+difference/float64(len(ours))
					spread = max(spread, -ours[i])
				}
				t.Logf("%d logits, log-probabilities from 0 to -%.1f, differences: greatest %.2g, mean %.2g", len(ours), spread,
					largest, mean)
				assert.Less(t, mean, c.bound)
				if c.as == "f32" {
					assert.Less(t, largest, 1e-3)
				}
				assert.Greater(t, spread, 5.0, "nearly uniform log-probabilities prove nothing")
			})
		}
	}
}

func export(t testing.TB, dir, as string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.gguf")
	kind, err := gguf.ParseFileType(as)
	require.NoError(t, err)
	f, err := os.Create(path)
	require.NoError(t, err)
	_, err = gguf.Export(t.Context(), f, dir, gguf.Options{Name: "miniature", Type: kind})
	require.NoError(t, err)
	require.NoError(t, f.Close())
	return path
}

// ourLogits returns the embedded engine's log-probabilities. They serve as logits, because
// logProbabilities does not change them.
func ourLogits(w *llama.Weights, tokens []int32) []float32 {
	scored := make([]bool, len(tokens)+1)
	for i := range scored {
		scored[i] = true
	}
	var batch llama.Batch
	batch.Add(append(tokens, 0), scored)
	pass := llama.NewPass(llama.NewNet(w, nil, 1))
	pass.Forward(&batch)
	probabilities := pass.Probabilities()
	out := make([]float32, len(probabilities.Data))
	for i, p := range probabilities.Data {
		out[i] = float32(math.Log(float64(p)))
	}
	return out
}

func ggmlLogits(t *testing.T, path string, tokens []int32) []float32 {
	m, err := model.New(path, ml.BackendParams{AllocMemory: true, NumThreads: 2})
	require.NoError(t, err)
	defer m.Backend().Close()
	require.NoError(t, m.Backend().Load(t.Context(), func(float32) {}))
	cache := m.Config().Cache
	cache.Init(m.Backend(), ml.DTypeF32, 1, 2*length, length)
	defer cache.Close()
	ctx := m.Backend().NewContext()
	defer ctx.Close()
	positions, all := make([]int32, len(tokens)), make([]int32, len(tokens))
	for i := range positions {
		positions[i], all[i] = int32(i), int32(i)
	}
	logits, err := model.Forward(
		ctx, m, input.Batch{
			Inputs: ctx.Input().FromIntSlice(tokens, len(tokens)), Outputs: ctx.Input().FromIntSlice(all, len(all)),
			Positions: positions, Sequences: make([]int, len(tokens)),
		})
	require.NoError(t, err)
	ctx.Compute(logits)
	return logits.Floats()
}

func logProbabilities(logits []float32, vocabulary int) []float64 {
	out := make([]float64, len(logits))
	for at := 0; at < len(logits); at += vocabulary {
		row, sum, largest := logits[at:at+vocabulary], 0.0, math.Inf(-1)
		for _, v := range row {
			largest = max(largest, float64(v))
		}
		for _, v := range row {
			sum += math.Exp(float64(v) - largest)
		}
		for i, v := range row {
			out[at+i] = float64(v) - largest - math.Log(sum)
		}
	}
	return out
}

// TestTokens checks that ollama's tokenizer, which has separate regular expressions and merges,
// produces the same tokens as tokenizer.Encode. ollama does not support SmolLM's pre-tokenizer.
func TestTokens(t *testing.T) {
	pieces := []string{
		"the small model", " asks", "'ll", "'LL ", "12345", " 7", "½", "\n", "\r\n", "  ", "\t", " \n ", "!?", " (", "東京",
		" café", "🙂", "_x", "\u00a0", "answers",
	}
	for _, family := range []string{"llama3", "qwen2", "qwen3"} {
		dir := t.TempDir()
		require.NoError(t, miniature.Write(dir, family))
		ours, err := tokenizer.Load(dir)
		require.NoError(t, err)
		m, err := model.New(export(t, dir, "f32"), ml.BackendParams{AllocMemory: true, NumThreads: 1})
		require.NoError(t, err)
		theirs := m.(model.TextProcessor)
		source := rand.New(rand.NewPCG(3, 4))
		for range 2000 {
			var text strings.Builder
			for range source.IntN(12) {
				text.WriteString(pieces[source.IntN(len(pieces))])
			}
			want, err := theirs.Encode(text.String(), false)
			require.NoError(t, err)
			got := ours.Encode(text.String())
			require.Len(t, got, len(want), "%s: %q", family, text.String())
			for i := range got {
				require.EqualValues(t, want[i], got[i], "%s: %q, token %d", family, text.String(), i)
			}
			back, err := theirs.Decode(want)
			require.NoError(t, err)
			require.Equal(t, back, ours.Decode(got))
		}
		m.Backend().Close()
	}
}
