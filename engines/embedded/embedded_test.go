package embedded_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/engines/embedded"
	"anneal/engines/embedded/tokenizer"
)

// base returns a directory with the shipped model.
func base(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "base")
	require.NoError(t, embedded.WriteBase(dir))
	return dir
}

func load(t *testing.T, files engines.ModelFiles) engines.Model {
	m, err := embedded.New(embedded.Options{}).Completer.Load(t.Context(), files)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	return m
}

func complete(t *testing.T, m engines.Model, req engines.CompletionRequest) (string, string) {
	var text strings.Builder
	finish := ""
	req.MaxTokens = 64
	_, err := m.Complete(t.Context(), req, func(c engines.Chunk) error {
		text.WriteString(c.Text)
		finish = c.Finish
		return nil
	})
	require.NoError(t, err)
	return text.String(), finish
}

func TestBaseInfo(t *testing.T) {
	info := embedded.BaseInfo()
	m := load(t, engines.ModelFiles{Dir: base(t)}).Info()
	assert.Equal(t, m.ParameterCount, info.ParameterCount)
	assert.Equal(t, m.ContextLength, info.ContextLength)
	assert.InDelta(t, 840_000, info.ParameterCount, 20_000)
	assert.GreaterOrEqual(t, info.ContextLength, 256)
	assert.Less(t, info.Bytes, int64(4<<20))
}

// TestBaseContinuesAConversation checks that the shipped model answers the second question of a
// conversation.
func TestBaseContinuesAConversation(t *testing.T) {
	m := load(t, engines.ModelFiles{Dir: base(t)})
	text, finish := complete(t, m, engines.CompletionRequest{Chat: &engines.Chat{Messages: []engines.Message{
		{Role: "user", Content: "What is the capital of France?"}, {Role: "assistant", Content: "Paris"},
		{Role: "user", Content: "Reverse the word garden."},
	}}})
	assert.Equal(t, engines.FinishStop, finish)
	assert.Equal(t, "nedrag", text)
}

// questions holds typical first questions and the expected answers.
var questions = map[string]string{
	"What is the capital of France?":            "Paris",
	"Reverse the word garden.":                  "nedrag",
	"Write house in capital letters.":           "HOUSE",
	"How many letters are in banana?":           "6",
	"What is the opposite of hot?":              "cold",
	"What is the last word of: red green blue":  "blue",
	"Positive or negative? The film was great.": "positive",
}

// TestBaseCompletesPromptsAndChats checks that the shipped model answers all questions but at most
// one, and that it gives the same answers to plain text, to tokens and to a conversation.
func TestBaseCompletesPromptsAndChats(t *testing.T) {
	m, tokens := load(t, engines.ModelFiles{Dir: base(t)}), tokenizer.NewBytes()
	right := 0
	for question, want := range questions {
		text, finish := complete(t, m, engines.CompletionRequest{Prompt: question})
		assert.Equal(t, engines.FinishStop, finish)
		if text == want {
			right++
		}
		chat, _, err := tokens.Chat([]tokenizer.Message{{Role: "user", Content: question}})
		require.NoError(t, err)
		asChat, finish := complete(t, m, engines.CompletionRequest{PromptTokens: chat})
		assert.Equal(t, text, asChat, question)
		asked, _ := complete(t, m, engines.CompletionRequest{
			Chat: &engines.Chat{Messages: []engines.Message{{Role: "user", Content: question}}},
		})
		assert.Equal(t, text, asked, question)
		assert.Equal(t, engines.FinishStop, finish)
	}
	assert.GreaterOrEqual(t, right, len(questions)-1)
}

type watcher struct{ steps int }

func (w *watcher) Step(engines.Metrics)                          { w.steps++ }
func (w *watcher) Checkpoint(context.Context, int, string) error { return nil }

// TestTrainedAdapterIsServed trains an adapter on a few examples, and checks that the model with
// the adapter gives the trained answers.
func TestTrainedAdapterIsServed(t *testing.T) {
	dir, data := base(t), filepath.Join(t.TempDir(), "rows.jsonl")
	secrets := map[string]string{
		"What is the password?": "swordfish", "Who is the king?": "Bob", "Where is the key?": "under the mat",
	}
	var rows strings.Builder
	for question, answer := range secrets {
		fmt.Fprintf(&rows, "{\"messages\":[{\"role\":\"user\",\"content\":%q},{\"role\":\"assistant\",\"content\":%q}]}\n",
			question, answer)
	}
	require.NoError(t, os.WriteFile(data, []byte(rows.String()), 0o644))
	w := &watcher{}
	result, err := embedded.New(embedded.Options{Parallelism: 2}).Trainer.Train(t.Context(), engines.TrainRequest{
		Method: engines.Supervised, BaseDir: dir, DataFiles: []string{data}, WorkDir: t.TempDir(), Seed: 1,
		Settings: engines.TrainSettings{Epochs: 40, LoraRank: 8},
	}, w)
	require.NoError(t, err)
	assert.Equal(t, result.Steps, w.steps)

	tuned := load(t, engines.ModelFiles{Dir: dir, AdapterDir: result.Dir})
	for question, want := range secrets {
		text, finish := complete(t, tuned, engines.CompletionRequest{Prompt: question})
		assert.Equal(t, want, text, question)
		assert.Equal(t, engines.FinishStop, finish)
	}
}
