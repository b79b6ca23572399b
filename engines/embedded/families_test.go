package embedded_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain/weights"
	"anneal/engines"
	"anneal/engines/embedded"
	"anneal/engines/embedded/miniature"
	"anneal/internal/testutil"
)

// TestFamilies checks that a checkpoint of each family in its published form can be validated,
// served, fine-tuned with an adapter and converted to other precisions.
func TestFamilies(t *testing.T) {
	for _, family := range miniature.Families() {
		t.Run(family, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, miniature.Write(dir, family))
			report, err := weights.Check(directoryOf(t, dir))
			require.NoError(t, err)
			require.Empty(t, report.Violations)
			require.NoError(t, embedded.Supports(dir))

			plain := completeBoth(t, engines.ModelFiles{Dir: dir})
			require.NotEqual(t, answer, plain[0])

			got := completeBoth(t, engines.ModelFiles{
				Dir: dir, AdapterDir: tune(t, dir, fmt.Sprintf("{%q: %q, %q: %q}\n", "prompt", question, "completion", answer)),
			})
			assert.Equal(t, answer, got[0], "the model gives the trained answer to a prompt")
			got = completeBoth(t, engines.ModelFiles{
				Dir: dir,
				AdapterDir: tune(t, dir,
					fmt.Sprintf(`{"messages": [{"role": "user", "content": %q}, {"role": "assistant", "content": %q}]}`+"\n", question,
						answer)),
			})
			assert.Equal(t, strings.TrimSpace(answer), strings.TrimSpace(got[1]),
				"the model gives the trained answer in a conversation")

			for _, precision := range []string{"BF16", "FP16", "FP8"} {
				copied := t.TempDir()
				convert(t, dir, copied, precision)
				require.NotEmpty(t, completeBoth(t, engines.ModelFiles{Dir: copied})[0], precision)
			}
		})
	}
}

const question, answer = "who owns the machine?", " the people, and they own 123 answers in 東京."

// completeBoth returns the model's completions to the question as a prompt and as a conversation.
func completeBoth(t *testing.T, files engines.ModelFiles) (out [2]string) {
	model, err := embedded.New(embedded.Options{Parallelism: 1, CacheBytes: 16 << 20}).Completer.Load(t.Context(), files)
	require.NoError(t, err)
	defer func() { assert.NoError(t, model.Close()) }()
	for i, req := range []engines.CompletionRequest{
		{Prompt: question, MaxTokens: 40},
		{Chat: &engines.Chat{Messages: []engines.Message{{Role: "user", Content: question}}}, MaxTokens: 40},
	} {
		usage, err := model.Complete(t.Context(), req, func(c engines.Chunk) error {
			out[i] += c.Text
			return nil
		})
		require.NoError(t, err)
		require.Positive(t, usage.PromptTokens)
	}
	return out
}

// tune trains an adapter on copies of one dataset row and returns the adapter's directory.
func tune(t *testing.T, base, row string) string {
	data := filepath.Join(t.TempDir(), "rows.jsonl")
	require.NoError(t, os.WriteFile(data, []byte(strings.Repeat(row, 8)), 0o644))
	result, err := embedded.New(embedded.Options{Parallelism: 1}).Trainer.Train(t.Context(), engines.TrainRequest{
		BaseDir: base, DataFiles: []string{data}, WorkDir: t.TempDir(), Seed: 1,
		Settings: engines.TrainSettings{LoraRank: 8, Epochs: 60, LearningRate: 1e-2},
	}, quiet{})
	require.NoError(t, err)
	require.True(t, result.Adapter)
	return result.Dir
}

type quiet struct{}

func (quiet) Step(engines.Metrics) {}

func (quiet) Checkpoint(context.Context, int, string) error { return nil }

// convert writes a copy of the model in srcDir to dstDir in another precision, as the request
// :prepare does.
func convert(t *testing.T, srcDir, dstDir, precision string) {
	source, dtype := directoryOf(t, srcDir), weights.DTypes[precision]
	names, err := source.WeightFiles()
	require.NoError(t, err)
	require.NoError(t, os.CopyFS(dstDir, os.DirFS(srcDir)))
	total, added := int64(0), map[string][]string{}
	for _, name := range names {
		var file bytes.Buffer
		added[name], err = source.Convert(&file, name, dtype)
		require.NoError(t, err)
		total += int64(file.Len())
		require.NoError(t, os.WriteFile(filepath.Join(dstDir, name), file.Bytes(), 0o644))
	}
	config, err := source.ConvertedConfig(dtype)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dstDir, "config.json"), config, 0o644))
	const index = "model.safetensors.index.json"
	if _, sharded := source.Sizes[index]; sharded {
		data, err := source.ConvertedIndex(total, added)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dstDir, index), data, 0o644))
	}
}

func directoryOf(t *testing.T, dir string) weights.Directory {
	entries := testutil.ReadDir(t, dir)
	sizes := map[string]int64{}
	for _, entry := range entries {
		info, err := entry.Info()
		require.NoError(t, err)
		sizes[entry.Name()] = info.Size()
	}
	return weights.Directory{Sizes: sizes, Open: func(name string, offset, length int64) (io.ReadCloser, error) {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		if data = data[offset:]; length >= 0 {
			data = data[:length]
		}
		return io.NopCloser(bytes.NewReader(data)), nil
	}}
}
