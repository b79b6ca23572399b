package external

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/engines/embedded"
	"anneal/engines/embedded/gguf"
	"anneal/engines/enginetest"
)

// TestLlamaServer runs the conformance tests with llama.cpp's server and the embedded base model.
func TestLlamaServer(t *testing.T) {
	if _, err := exec.LookPath("llama-server"); err != nil {
		t.Skip("llama-server is not in PATH: install llama.cpp")
	}
	load := func(t *testing.T) engines.Model {
		dir := filepath.Join(t.TempDir(), "base")
		require.NoError(t, embedded.WriteBase(dir))
		c, err := New(Options{Preset: LlamaCpp, Dir: t.TempDir(), ToGGUF: func(dir, file string) error {
			f, err := os.Create(file)
			require.NoError(t, err)
			_, err = gguf.Export(t.Context(), f, dir, gguf.Options{Name: "base", Type: gguf.F16})
			return errors.Join(err, f.Close())
		}})
		require.NoError(t, err)
		m, err := c.Load(t.Context(), engines.ModelFiles{Dir: dir})
		require.NoError(t, err)
		return m
	}
	enginetest.Model(t, load)

	m := load(t)
	defer m.Close()
	require.Positive(t, m.Info().ParameterCount)
	seed := uint64(9)
	all, echoed, usage := complete(t, m, engines.CompletionRequest{Prompt: "What is the capital of France?", MaxTokens: 8,
		Echo: true, ReturnTokenIDs: true,
		Temperature: 0.5, Seed: &seed, TypicalP: 0.9, MinP: 0.1, TopK: 20, RepetitionPenalty: 1.1,
		LogitBias: map[int]float64{7: -100}})
	require.Equal(t, "What is the capital of France?", echoed)
	require.Len(t, all.Prompt.Tokens, usage.PromptTokens)
	require.NotEmpty(t, all.Tokens)

	chat := &engines.Chat{Messages: []engines.Message{{Role: "user", Content: "Reverse the word garden."}}}
	all, _, _ = complete(t, m, engines.CompletionRequest{Chat: chat, MaxTokens: 20, ReturnTokenIDs: true})
	require.Equal(t, "nedrag", all.Text)
	require.NotEmpty(t, all.Prompt.Tokens)

	all, _, _ = complete(t, m, engines.CompletionRequest{Prompt: "What is the capital of France?", MaxTokens: 8,
		Logprobs: true, TopLogprobs: 2})
	require.NotEmpty(t, all.Logprobs)
	text := ""
	for i, one := range all.Logprobs {
		require.Equal(t, all.Tokens[i], one.Token)
		require.LessOrEqual(t, one.Logprob, 0.0)
		require.Len(t, one.Top, 2)
		text += one.Text
	}
	require.Contains(t, text, all.Text)

	all, _, _ = complete(t, m, engines.CompletionRequest{Prompt: "p", MaxTokens: 8,
		Format: &engines.ResponseFormat{Type: engines.FormatGrammar, Grammar: `root ::= "yes" | "no"`}})
	require.Contains(t, []string{"yes", "no"}, all.Text)
}
