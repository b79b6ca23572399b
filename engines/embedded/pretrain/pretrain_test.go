package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/engines/embedded"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/tokenizer"
	"anneal/engines/embedded/train"
)

type silent struct{}

func (silent) Step(engines.Metrics)                          {}
func (silent) Checkpoint(context.Context, int, string) error { return nil }

// exact counts the greedy answers to raw prompts that are exactly right.
func exact(net *llama.Net, asked []example) int {
	right := 0
	for i, answer := range answers(net, tokenizer.NewBytes(), asked) {
		if answer == asked[i].answer {
			right++
		}
	}
	return right
}

// TestNewTasks tunes the base model on each new task with the default settings
// and asks prompts that were not in the file.
func TestNewTasks(t *testing.T) {
	if testing.Short() {
		t.Skip("trains for some ten seconds a task")
	}
	base := t.TempDir()
	require.NoError(t, embedded.WriteBase(base))
	weights, err := llama.Load(base)
	require.NoError(t, err)
	for _, task := range newTasks {
		t.Run(task.name, func(t *testing.T) {
			rows, held := tuningRows(task, 1)
			file := filepath.Join(t.TempDir(), "rows.jsonl")
			require.NoError(t, writeLines(file, rows))
			begin := time.Now()
			result, err := train.Trainer{}.Train(t.Context(), engines.TrainOrder{
				BaseDir: base, DataFiles: []string{file}, WorkDir: t.TempDir(), Parallelism: 2,
				Settings: engines.TrainSettings{Epochs: epochs(), LoraRank: 8, LoraAlpha: 16},
			}, silent{})
			require.NoError(t, err)
			took := time.Since(begin)
			adapter, err := llama.LoadAdapter(result.Dir, weights.Hash(), weights.Config)
			require.NoError(t, err)
			before := exact(llama.NewNet(weights, nil, 2), held)
			tuned := llama.NewNet(adapter.Merge(weights), nil, 2)
			after := exact(tuned, held)
			old := oldExamples(t, 100)
			kept, knew := exact(tuned, old), exact(llama.NewNet(weights, nil, 2), old)
			t.Logf("%s: %d → %d of %d held out; base tasks %d → %d of %d; %d steps, %d tokens in %s", task.name, before, after, len(held), knew, kept, len(old),
				result.Steps, result.Tokens, took.Round(100*time.Millisecond))
			require.Less(t, before, len(held)/8)
			require.GreaterOrEqual(t, after*10, len(held)*9)
			require.GreaterOrEqual(t, kept*10, knew*7)
		})
	}
}

var epochs = func() int { return 8 }

// oldExamples are the first rows of examples/base-tasks.jsonl.
func oldExamples(t *testing.T, n int) []example {
	t.Helper()
	data, err := os.ReadFile("../../../examples/base-tasks.jsonl")
	require.NoError(t, err)
	var out []example
	for line := range strings.Lines(string(data)) {
		var pair struct{ Prompt, Completion string }
		require.NoError(t, json.Unmarshal([]byte(line), &pair))
		out = append(out, example{prompt: pair.Prompt, answer: pair.Completion})
	}
	return out[:n]
}
