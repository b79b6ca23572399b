package external

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
)

// TestEmbed checks that embeddings come from the server, for texts and tokens.
func TestEmbed(t *testing.T) {
	for preset := range presets {
		t.Run(preset, func(t *testing.T) {
			m := start(t, unconfined(options(t, preset, "")))
			e, ok := m.(engines.Embedder)
			require.True(t, ok)
			text, usage, err := e.Embed(t.Context(), engines.EmbeddingRequest{Input: "ab"})
			require.NoError(t, err)
			require.Equal(t, 3, usage.PromptTokens)
			require.Len(t, text.Vector(), 32)
			tokens, _, err := e.Embed(t.Context(), engines.EmbeddingRequest{Tokens: []int{0, 'a', 'b'}})
			require.NoError(t, err)
			require.Equal(t, text, tokens)
			short, _, err := e.Embed(t.Context(), engines.EmbeddingRequest{Input: "ab", Dimensions: 3})
			require.NoError(t, err)
			require.Equal(t, engines.Shorten(text.Vector(), 3), short.Vector())
			require.InDelta(t, 1, math.Sqrt(float64(short.Vector()[0]*short.Vector()[0]+short.Vector()[1]*short.Vector()[1]+
				short.Vector()[2]*short.Vector()[2])), 1e-6)
			_, _, err = e.Embed(t.Context(), engines.EmbeddingRequest{Input: "ab", Dimensions: 33})
			require.ErrorContains(t, err, "dimensions: must be 1 to 32")
		})
	}
}

// TestModelsWithoutEmbeddings checks the error for a server whose model computes no embeddings.
func TestModelsWithoutEmbeddings(t *testing.T) {
	for _, mode := range []string{"noEmbeddings404", "noEmbeddings400", "noEmbeddings501"} {
		m := start(t, unconfined(options(t, VLLM, mode)))
		_, _, err := m.(engines.Embedder).Embed(t.Context(), engines.EmbeddingRequest{Input: "ab"})
		var fault *domain.Error
		require.ErrorAs(t, err, &fault, mode)
		require.Equal(t, engines.NoEmbeddings, fault.Reason, "%s: %s", mode, fault.Message)
	}
}

// TestEmbeddingOptions checks that llama.cpp's server gets the options of an embedding model if and
// only if the model's files say that it is one.
func TestEmbeddingOptions(t *testing.T) {
	dir := t.TempDir()
	require.Empty(t, embeddingOptions(dir))
	write := func(name, text string) {
		assert.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("modules.json", `[{"type": "sentence_transformers.models.Transformer", "path": ""}, `+
		`{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]`)
	write("1_Pooling/config.json", `{"pooling_mode_mean_tokens": false, "pooling_mode_lasttoken": true}`)
	require.Equal(t, []string{"--embeddings", "--pooling", "last"}, embeddingOptions(dir))
	line := template{"llama-server", "{embeddings}", "--port"}.expand(arguments{embeddings: embeddingOptions(dir)}, nil)
	require.Equal(t, []string{"llama-server", "--embeddings", "--pooling", "last", "--port"}, line)
}

// TestTemplatesWithoutReasoning checks when a chat template shows that a model does not reason.
func TestTemplatesWithoutReasoning(t *testing.T) {
	dir := t.TempDir()
	require.False(t, lacksReasoning(dir), "without a template, the server decides")
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("tokenizer_config.json", `{"chat_template": "{{ messages }}"}`)
	require.True(t, lacksReasoning(dir))
	write("tokenizer_config.json", `{"chat_template": [{"name": "default", "template": "\u003cthink\u003e"}]}`)
	require.False(t, lacksReasoning(dir))
	write("chat_template.jinja", "{{ messages }}")
	require.True(t, lacksReasoning(dir), "the file precedes the configuration")

	p := presets[VLLM]
	p.noReasoning = true
	req := engines.CompletionRequest{Chat: &engines.Chat{}, Reasoning: &engines.Reasoning{Effort: "low"}, TopK: -1}
	_, _, err := p.bodyOf("model", 100, &req)
	var fault *domain.Error
	require.ErrorAs(t, err, &fault)
	require.Equal(t, engines.NoReasoning, fault.Reason)
	req.Reasoning = &engines.Reasoning{History: "disabled"}
	_, _, err = p.bodyOf("model", 100, &req)
	require.NoError(t, err)
}
