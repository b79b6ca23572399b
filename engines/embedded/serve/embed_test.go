package serve

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/safetensors"
	"anneal/internal/testutil"
)

// embedder serves a model with the module files of a sentence-transformers model. mode is the mode
// of its module Pooling. Without modules, it writes no module files.
func embedder(t *testing.T, w *llama.Weights, options Options, mode string, modules ...string) engines.Embedder {
	t.Helper()
	dir := save(t, w)
	saveModules(t, dir, mode, modules...)
	m, err := New(options).Load(t.Context(), engines.ModelFiles{Dir: dir})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	return m.(engines.Embedder)
}

func saveModules(t *testing.T, dir, mode string, modules ...string) {
	t.Helper()
	if modules == nil {
		return
	}
	list := []map[string]any{}
	for _, kind := range modules {
		path := ""
		if kind == "Pooling" {
			path = "1_Pooling"
			require.NoError(t, os.Mkdir(filepath.Join(dir, path), 0o700))
			config := testutil.Marshal(t, map[string]any{"word_embedding_dimension": 48, "pooling_mode_cls_token": false,
				mode: true})
			require.NoError(t, os.WriteFile(filepath.Join(dir, path, "config.json"), config, 0o600))
		}
		list = append(list, map[string]any{"idx": len(list), "name": "n", "path": path,
			"type": "sentence_transformers.models." + kind})
	}
	data := testutil.Marshal(t, list)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "modules.json"), data, 0o600))
}

func vectorOf(t *testing.T, m engines.Embedder, req engines.EmbeddingRequest) []float32 {
	t.Helper()
	embedding, usage, err := m.Embed(t.Context(), req)
	require.NoError(t, err)
	if req.Tokens != nil {
		require.Equal(t, len(req.Tokens), usage.PromptTokens)
	}
	return embedding.Vector()
}

func norm(v []float32) float64 { return 1 / engines.UnitFactor(v) }

const (
	lastToken = "pooling_mode_lasttoken"
	meanToken = "pooling_mode_mean_tokens"
)

// TestEmbeddingIsTheHiddenState checks that the embedding of the last token is the hidden state
// that the model computes its logits from: its products with the output embeddings give the
// log-probabilities of a completion.
func TestEmbeddingIsTheHiddenState(t *testing.T) {
	for name, edit := range map[string]func(*llama.Config){
		"llama": func(*llama.Config) {},
		"qwen3": func(c *llama.Config) { c.ModelType = "qwen3" },
	} {
		t.Run(name, func(t *testing.T) {
			w := weights(edit)
			randomizeVectors(w)
			m := embedder(t, w, Options{}, lastToken, "Transformer", "Pooling")
			prompt := ids(40, 5)
			hidden := vectorOf(t, m, engines.EmbeddingRequest{Tokens: prompt})
			require.Len(t, hidden, w.Config.HiddenSize)
			logits := make([]float32, w.Config.VocabSize)
			for token := range logits {
				sum := 0.0
				for i, v := range w.Embed.Row(token) {
					sum += float64(v) * float64(hidden[i])
				}
				logits[token] = float32(sum)
			}
			var got []engines.Logprob
			_, err := m.Complete(t.Context(), engines.CompletionRequest{PromptTokens: prompt, MaxTokens: 1, Logprobs: true,
				TopLogprobs: 5, IgnoreEOS: true}, func(c engines.Chunk) error {
				got = append(got, c.Logprobs...)
				return nil
			})
			require.NoError(t, err)
			require.NotEmpty(t, got)
			total := kernel.LogSumExp64(make([]float32, len(logits)), logits)
			for _, one := range append(got[0].Top, got[0]) {
				require.InDelta(t, float64(logits[one.Token])-total, one.Logprob, 1e-3)
			}
		})
	}
}

// TestMeanEmbedding checks that the embedding is the mean of the hidden states of all tokens. It
// must be bit-identical for any division into steps, alone and beside other requests, and after
// other requests with the same prefix.
func TestMeanEmbedding(t *testing.T) {
	w := weights()
	prompt := ids(70, 3)
	last := embedder(t, w, Options{}, lastToken, "Transformer", "Pooling")
	want := make([]float64, w.Config.HiddenSize)
	for n := range prompt {
		for i, v := range vectorOf(t, last, engines.EmbeddingRequest{Tokens: prompt[:n+1]}) {
			want[i] += float64(v) / float64(len(prompt))
		}
	}
	var first []float32
	for _, chunk := range []int{3, 16, 200} {
		m := embedder(t, w, Options{ChunkTokens: chunk}, meanToken, "Transformer", "Pooling")
		for range 2 { // the second time with a warm prefix cache
			got := vectorOf(t, m, engines.EmbeddingRequest{Tokens: prompt})
			for i := range got {
				require.InDelta(t, want[i], got[i], 1e-5)
			}
			if first == nil {
				first = got
			}
			require.Equal(t, first, got, "chunks of %d tokens", chunk)
		}
		results := make(chan []float32, 8)
		for range cap(results) {
			go func() {
				embedding, _, err := m.Embed(t.Context(), engines.EmbeddingRequest{Tokens: prompt})
				assert.NoError(t, err)
				results <- embedding.Vector()
			}()
		}
		complete(t, m, engines.CompletionRequest{PromptTokens: prompt[:30], MaxTokens: 5})
		for range cap(results) {
			require.Equal(t, first, <-results)
		}
	}
}

// TestEmbeddingModules checks which pooling and normalization the files of a model select.
func TestEmbeddingModules(t *testing.T) {
	w := weights()
	prompt := engines.EmbeddingRequest{Input: "hello"}
	plain := vectorOf(t, embedder(t, w, Options{}, lastToken, "Transformer", "Pooling"), prompt)
	require.Greater(t, math.Abs(norm(plain)-1), 1e-3, "not normalized")
	scaled := vectorOf(t, embedder(t, w, Options{}, lastToken, "Transformer", "Pooling", "Normalize"), prompt)
	require.InDelta(t, 1, norm(scaled), 1e-6)
	for i := range plain {
		require.InDelta(t, float64(plain[i])/norm(plain), scaled[i], 1e-6)
	}
	m := embedder(t, w, Options{}, "")
	require.Equal(t, scaled, vectorOf(t, m, prompt), "a model without module files normalizes the last hidden state")
	short := vectorOf(t, m, engines.EmbeddingRequest{Input: "hello", Dimensions: 7})
	require.Len(t, short, 7)
	require.InDelta(t, 1, norm(short), 1e-6)
	require.Equal(t, engines.Shorten(scaled, 7), short)
	same := vectorOf(t, m, engines.EmbeddingRequest{Tokens: m.(*model).tokenizer.EncodeWithSpecial("hello")})
	require.Equal(t, scaled, same, "a text has the embedding of its tokens, including the special tokens")
	require.NotEqual(t, scaled, vectorOf(t, m, engines.EmbeddingRequest{Input: "hellp"}))

	for name, modules := range map[string]struct {
		mode    string
		modules []string
		says    string
	}{
		"another mode":    {"pooling_mode_max_tokens", []string{"Transformer", "Pooling"}, "pooling_mode_max_tokens"},
		"another module":  {meanToken, []string{"Transformer", "Pooling", "Dense"}, "type Dense"},
		"without pooling": {"", []string{"Transformer"}, "no module of the type Pooling"},
	} {
		t.Run(name, func(t *testing.T) {
			m := embedder(t, w, Options{}, modules.mode, modules.modules...)
			_, _, err := m.Embed(t.Context(), prompt)
			require.ErrorContains(t, err, modules.says)
			var fault *domain.Error
			require.ErrorAs(t, err, &fault)
			require.Equal(t, engines.NoEmbeddings, fault.Reason)
			require.NotEmpty(t, complete(t, m, engines.CompletionRequest{Prompt: "p", MaxTokens: 2}).finish,
				"the model completes prompts")
		})
	}
	missing := save(t, w)
	saveModules(t, missing, lastToken, "Pooling")
	require.NoError(t, os.RemoveAll(filepath.Join(missing, "1_Pooling")))
	_, err := New(Options{}).Load(t.Context(), engines.ModelFiles{Dir: missing})
	require.ErrorContains(t, err, "1_Pooling/config.json, which the model lacks")
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
}

// TestInvalidEmbeddings checks that invalid requests are rejected with the name of the field.
func TestInvalidEmbeddings(t *testing.T) {
	m := embedder(t, weights(), Options{}, "")
	for says, req := range map[string]engines.EmbeddingRequest{
		"input: has no tokens":                         {Tokens: []int{}},
		"input: has 201 tokens, more than the context": {Tokens: ids(201, 1)},
		"input: has the token 260":                     {Tokens: []int{260}},
		"dimensions: must be 1 to 48":                  {Input: "a", Dimensions: 49},
	} {
		_, _, err := m.Embed(t.Context(), req)
		require.ErrorContains(t, err, says)
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
	}
	vectorOf(t, m, engines.EmbeddingRequest{Tokens: ids(200, 1)}) // fills the context length
}

// TestWeightsWithoutPrefix checks that a model whose tensors lack the prefix "model.", as those of
// published embedding models do, has the same embeddings.
func TestWeightsWithoutPrefix(t *testing.T) {
	w := weights()
	want := vectorOf(t, embedder(t, w, Options{}, ""), engines.EmbeddingRequest{Input: "hello"})
	dir := save(t, w)
	tensors := w.Tensors(safetensors.F32)
	for i := range tensors {
		tensors[i].Name = strings.TrimPrefix(tensors[i].Name, "model.")
	}
	require.NoError(t, safetensors.WriteFile(filepath.Join(dir, "model.safetensors"), tensors, nil))
	m, err := New(Options{}).Load(t.Context(), engines.ModelFiles{Dir: dir})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	require.Equal(t, want, vectorOf(t, m.(engines.Embedder), engines.EmbeddingRequest{Input: "hello"}))
}
