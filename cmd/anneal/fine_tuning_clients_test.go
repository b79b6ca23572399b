package main_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestUnmodifiedClientsFineTune checks that programs written for OpenAI's fine-tuning upload rows,
// train on them, and send requests to the result, without any other request to the server.
func TestUnmodifiedClientsFineTune(t *testing.T) {
	t.Parallel()
	s := serve(t, filepath.Join(t.TempDir(), "data"))
	user := s.user()
	user.deploy("base", object{"baseModel": baseModel, "enableAddons": true})
	conversations := strings.Repeat(`{"messages": [{"role": "user", "content": "`+clientsPrompt+
		`"}, {"role": "assistant", "content": "PC-15"}]}`+"\n", 8)

	t.Run("openai for JavaScript", func(t *testing.T) {
		output := s.driveAt(t, "/v1", baseModel, nodeClientsDir(t), "node", "openai-fine-tuning.mjs",
			rowsFile(t, "my conversations.jsonl", conversations), rowsFile(t, "wrong.jsonl", "{\"messages\": 5}\n"))
		require.Equal(t, "my conversations.jsonl", at(output, "file.filename"))
		require.Equal(t, "processed", at(output, "processed.status"))
		require.Equal(t, conversations, output["content"])
		require.Equal(t, "BadRequestError", at(output, "rejected.kind"))
		require.Contains(t, at(output, "rejected.message"), "wrong.jsonl:1")
		require.Equal(t, "purpose", at(output, "purpose.param"))

		require.Equal(t, "succeeded", at(output, "job.status"), "%v", at(output, "job.error"))
		require.Equal(t, object{"n_epochs": 2.0, "batch_size": 4.0, "learning_rate_multiplier": "auto"},
			at(output, "job.method.supervised.hyperparameters"))
		require.EqualValues(t, 42, at(output, "job.seed"))
		require.Regexp(t, `^ft-anneal-base-packing-[0-9a-f]{8}$`, at(output, "job.fine_tuned_model"))
		require.Greater(t, at(output, "job.trained_tokens"), 0.0)
		var messages []string
		for _, one := range output["events"].([]any) {
			messages = append(messages, at(one.(object), "message").(string))
		}
		require.Contains(t, strings.Join(messages, "\n"), "training loss=")
		require.Contains(t, messages[0], "successfully completed")
		require.Equal(t, "Created fine-tuning job: "+at(output, "job.id").(string), messages[len(messages)-1])
		checkpoints := output["checkpoints"].([]any)
		require.NotEmpty(t, checkpoints)
		require.Equal(t, at(output, "job.fine_tuned_model"), at(checkpoints[0].(object), "fine_tuned_model_checkpoint"))
		require.NotEmpty(t, output["chat"])
		require.Equal(t, object{"id": at(output, "job.fine_tuned_model"), "object": "model", "deleted": true},
			output["removed"])
		require.Equal(t, "NotFoundError", at(output, "gone.kind"))

		require.Contains(t, output["jobs"], at(output, "job.id"))
		require.Contains(t, []any{"running", "paused"}, output["paused"])
		require.Equal(t, "cancelled", output["cancelled"])
		require.Equal(t, "BadRequestError", at(output, "refused.kind"))
		require.Contains(t, at(output, "refused.message"), "method.reinforcement.grader.type")
		require.Contains(t, at(output, "refused.message"), "eval_samples")
		require.Equal(t, true, at(output, "deleted.deleted"))
		require.Equal(t, "NotFoundError", at(output, "missing.kind"))
		require.Equal(t, []any{at(output, "file.id")}, output["files"])
	})
	t.Run("openai for Go", func(t *testing.T) {
		rows := strings.Repeat(`{"input": {"messages": [{"role": "user", "content": "`+clientsPrompt+
			`"}]}, "preferred_output": [{"role": "assistant", "content": "PC-15"}], "non_preferred_output": `+
			`[{"role": "assistant", "content": "?"}]}`+"\n", 4)
		output := s.driveAt(t, "/v1", "base", ".", goClient(t, "./finetune"), rowsFile(t, "pairs.jsonl", rows))
		require.Equal(t, rows, output["content"])
		require.Equal(t, "succeeded", at(output, "job.status"))
		require.EqualValues(t, 0.2, at(output, "job.method.dpo.hyperparameters.beta"))
		require.NotEmpty(t, output["steps"])
		require.NotEmpty(t, output["chat"])
		require.EqualValues(t, http.StatusNotFound, output["missing"])
		require.Greater(t, len(output["messages"].([]any)), 4, "several pages")
	})
	s.checkEvents()
}

// rowsFile writes rows to a file with a name.
func rowsFile(t *testing.T, name, rows string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, []byte(rows), 0o600))
	return file
}
