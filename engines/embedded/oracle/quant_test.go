package oracle

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	fsggml "github.com/ollama/ollama/fs/ggml"
	"github.com/ollama/ollama/ml/backend/ggml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/miniature"
	"anneal/engines/embedded/quant"
)

var blockTypes = []quant.Type{quant.Q8_0, quant.Q5_0, quant.Q5_1, quant.Q6_K, quant.Q5_K, quant.Q4_K}

// samples are values with the distributions of matrices: normal, uniform, with outliers, and with a
// mean that is not zero.
func samples() map[string][]float32 {
	source, out := rand.New(rand.NewPCG(1, 2)), map[string][]float32{}
	for name, value := range map[string]func() float64{
		"normal":   func() float64 { return source.NormFloat64() * 0.02 },
		"uniform":  func() float64 { return source.Float64() - 0.5 },
		"outliers": func() float64 { return 0.02 * math.Pow(source.NormFloat64(), 5) },
		"shifted":  func() float64 { return 0.1 + 0.02*source.NormFloat64() },
	} {
		x := make([]float32, 1<<16)
		for i := range x {
			x[i] = float32(value())
		}
		out[name] = x
	}
	return out
}

// TestDequantize checks that ggml decodes what package quant encodes to the same values as package
// quant, and that the error is not above that of ggml's own quantizer.
func TestDequantize(t *testing.T) {
	for name, x := range samples() {
		for _, as := range blockTypes {
			data, ours := make([]byte, as.Bytes(len(x))), make([]float32, len(x))
			as.Encode(data, x)
			as.Decode(ours, data)
			theirs := ggml.ConvertToF32(data, uint32(as), uint64(len(x)))
			for i := range x {
				require.InDelta(t, theirs[i], ours[i], 1e-6*math.Abs(float64(theirs[i]))+1e-9, "%s %s value %d", name, as, i)
			}
			reference := ggml.ConvertToF32(
				ggml.Quantize(fsggml.TensorType(as), x, []uint64{256, uint64(len(x) / 256)}), uint32(as), uint64(len(x)))
			own, ggmls := rms(x, ours), rms(x, reference)
			t.Logf("%s as %s: error %.3g, ggml's quantizer %.3g", name, as, own, ggmls)
			assert.LessOrEqual(t, own, 1.001*ggmls, "%s as %s", name, as)
		}
	}
}

func rms(x, y []float32) (sum float64) {
	for i := range x {
		sum += math.Pow(float64(x[i]-y[i]), 2)
	}
	return math.Sqrt(sum / float64(len(x)))
}

// TestQuantizedModels checks that ggml loads quantized models and computes nearly the same
// distributions as the engine from the exact model: it bounds the Kullback-Leibler divergence of
// the tokens' distributions, the measure of llama.cpp's perplexity tool. A wide model has the types
// of the mixed file types; a miniature model has the types that replace them for its short rows.
// The bounds are twice the measured values, which are far above those of trained models, because
// random weights have no redundancy.
func TestQuantizedModels(t *testing.T) {
	mini := t.TempDir()
	require.NoError(t, miniature.Write(mini, "llama3"))
	for _, dir := range []string{wide(t), mini} {
		w, err := llama.Load(dir)
		require.NoError(t, err)
		tokens, source := make([]int32, length), rand.New(rand.NewPCG(1, 2))
		for i := range tokens {
			tokens[i] = int32(source.IntN(w.Config.VocabSize))
		}
		exact := logProbabilities(ourLogits(w, tokens), w.Config.VocabSize)
		for as, bound := range map[string]float64{"f16": 1e-5, "q8_0": 0.005, "q5_k_m": 0.12, "q4_k_m": 0.44} {
			t.Run(fmt.Sprint(w.Config.HiddenSize, " ", as), func(t *testing.T) {
				got := logProbabilities(ggmlLogits(t, export(t, dir, as), tokens), w.Config.VocabSize)
				require.Len(t, got, len(exact))
				divergence := 0.0
				for i := range exact {
					divergence += math.Exp(exact[i]) * (exact[i] - got[i]) / float64(len(tokens))
				}
				t.Logf("Kullback-Leibler divergence %.2g nats for each token", divergence)
				assert.Less(t, divergence, bound)
			})
		}
	}
}

// wide writes a model whose rows are multiples of 256 values, with the tokenizer of a miniature one.
func wide(t *testing.T) string {
	small, dir := t.TempDir(), t.TempDir()
	require.NoError(t, miniature.Write(small, "llama3"))
	for _, file := range []string{"tokenizer.json", "tokenizer_config.json"} {
		data, err := os.ReadFile(filepath.Join(small, file))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), data, 0o600))
	}
	c, err := llama.ReadConfig(small)
	require.NoError(t, err)
	c.HiddenSize, c.IntermediateSize, c.Layers, c.Heads, c.KVHeads, c.HeadDim = 256, 512, 4, 8, 4, 32
	c.TorchDType, c.InitializerRange = "float32", 0.08
	w := llama.NewWeights(c)
	w.Initialize(1)
	require.NoError(t, w.Save(dir))
	return dir
}
