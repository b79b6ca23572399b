package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/engines/embedded"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/tokenizer"
	"anneal/engines/embedded/train"
	"anneal/internal/testutil"
)

// TestDemonstration checks that fine-tuning the base model on the task of examples/ with default
// settings teaches the task, as the answers to held-out prompts show.
func TestDemonstration(t *testing.T) {
	if testing.Short() {
		t.Skip("trains for some ten seconds")
	}
	base := t.TempDir()
	require.NoError(t, embedded.WriteBase(base))
	got, err := tune(t.Context(), base, t.TempDir(), newTasks[0], newRows, oldRows,
		engines.TrainSettings{Epochs: demoEpochs, LoraRank: 8}, heldOutOfBase(100), 1)
	require.NoError(t, err)
	t.Logf("%d → %d of %d; base tasks %d → %d of %d; %s", got.before, got.after, got.prompts,
		got.baseBefore, got.baseAfter, got.basePrompts,
		got.took)
	require.LessOrEqual(t, got.before, 2)
	require.GreaterOrEqual(t, got.after*10, got.prompts*9)
	require.GreaterOrEqual(t, got.baseAfter*10, got.baseBefore*6)
}

// TestCompletionRows checks that a model that was fine-tuned on prompts with completions
// continues such prompts as raw text.
func TestCompletionRows(t *testing.T) {
	base, work := t.TempDir(), t.TempDir()
	require.NoError(t, embedded.WriteBase(base))
	asked := []example{
		{prompt: "alpha:", answer: " first letter"}, {prompt: "omega:", answer: " last letter"},
		{prompt: "pi:", answer: " a number <|end|> too"},
	}
	var rows []string
	for _, e := range asked {
		rows = append(rows, pairRow(e))
	}
	file := filepath.Join(work, "rows.jsonl")
	require.NoError(t, writeLines(file, rows))
	result, err := train.Trainer{}.Train(
		t.Context(), engines.TrainRequest{BaseDir: base, DataFiles: []string{file}, WorkDir: work,
			Settings: engines.TrainSettings{Epochs: 200, LoraRank: 8}}, silent{})
	require.NoError(t, err)
	right, err := exact(t.Context(), engines.ModelFiles{Dir: base, AdapterDir: result.Dir}, asked)
	require.NoError(t, err)
	require.Equal(t, len(asked), right)
}

// TestBaseKnowsItsTasks checks that the shipped model answers at least 160 of the 200 prompts in
// examples/base-tasks.jsonl exactly.
func TestBaseKnowsItsTasks(t *testing.T) {
	base := t.TempDir()
	require.NoError(t, embedded.WriteBase(base))
	var asked []example
	for line := range strings.Lines(read(t, "base-tasks.jsonl")) {
		var pair struct{ Prompt, Completion string }
		require.NoError(t, json.Unmarshal([]byte(line), &pair))
		asked = append(asked, example{prompt: pair.Prompt, answer: pair.Completion})
	}
	require.Len(t, asked, 200)
	right, err := exact(t.Context(), engines.ModelFiles{Dir: base}, asked)
	require.NoError(t, err)
	t.Logf("%d of %d", right, len(asked))
	require.GreaterOrEqual(t, right, 160)
}

func read(t *testing.T, name string) string {
	t.Helper()
	data := testutil.ReadFile(t, filepath.Join("..", "..", "..", "examples", name))
	return string(data)
}

// TestPretrainingIsReproducible checks that training on one core and on three cores gives equal
// bits.
func TestPretrainingIsReproducible(t *testing.T) {
	tokens := tokenizer.NewBytes()
	trained := func(workers int) []float32 {
		w := llama.NewWeights(configuration(tokens))
		w.Initialize(3)
		require.NoError(t, pretrain(t.Context(), options{
			seed: 3, steps: 3, batch: 1024, rate: 1e-2, workers: workers,
		}, tokens, w))
		return w.Flat()
	}
	require.Equal(t, trained(1), trained(3))
}

// TestExamplesAreReproducible checks that writeExamples writes the committed files.
func TestExamplesAreReproducible(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, writeExamples(dir, 1))
	made := testutil.Glob(t, filepath.Join(dir, "*.jsonl"))
	require.Len(t, made, 7)
	for _, path := range made {
		data := testutil.ReadFile(t, path)
		require.Equal(t, read(t, filepath.Base(path)), string(data), filepath.Base(path))
	}
}

// TestHeldOutStaysOut checks that no held-out prompt of the examples is in the training file.
func TestHeldOutStaysOut(t *testing.T) {
	trained := read(t, newTasks[0].name+".jsonl")
	for _, name := range []string{"base-tasks.jsonl", newTasks[0].name + "-heldout.jsonl"} {
		for line := range strings.Lines(read(t, name)) {
			var pair struct{ Prompt, Completion string }
			require.NoError(t, json.Unmarshal([]byte(line), &pair))
			prompt := testutil.Marshal(t, pair.Prompt)
			require.NotContains(t, trained, `"content":`+string(prompt)+"}")
		}
	}
}
