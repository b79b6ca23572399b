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
	user.must(http.MethodPost, "/deployments?deploymentId=base",
		object{"baseModel": baseModel, "minReplicaCount": 1, "enableAddons": true})
	user.until("/deployments/base", "state", "READY")
	conversations := strings.Repeat(`{"messages": [{"role": "user", "content": "`+clientsPrompt+
		`"}, {"role": "assistant", "content": "PC-15"}]}`+"\n", 8)

	t.Run("openai for JavaScript", func(t *testing.T) {
		said := s.driveAt(t, "/v1", baseModel, nodeClientsDir(t), "node", "openai-fine-tuning.mjs",
			rowsFile(t, "my conversations.jsonl", conversations), rowsFile(t, "wrong.jsonl", "{\"messages\": 5}\n"))
		require.Equal(t, "my conversations.jsonl", at(said, "file.filename"))
		require.Equal(t, "processed", at(said, "processed.status"))
		require.Equal(t, conversations, said["content"])
		require.Equal(t, "BadRequestError", at(said, "rejected.kind"))
		require.Contains(t, at(said, "rejected.message"), "wrong.jsonl:1")
		require.Equal(t, "purpose", at(said, "purpose.param"))

		require.Equal(t, "succeeded", at(said, "job.status"), "%v", at(said, "job.error"))
		require.Equal(t, object{"n_epochs": 2.0, "batch_size": 4.0, "learning_rate_multiplier": "auto"},
			at(said, "job.method.supervised.hyperparameters"))
		require.EqualValues(t, 42, at(said, "job.seed"))
		require.Regexp(t, `^ft-anneal-base-packing-[0-9a-f]{8}$`, at(said, "job.fine_tuned_model"))
		require.Greater(t, at(said, "job.trained_tokens"), 0.0)
		var messages []string
		for _, one := range said["events"].([]any) {
			messages = append(messages, at(one.(object), "message").(string))
		}
		require.Contains(t, strings.Join(messages, "\n"), "training loss=")
		require.Contains(t, messages[0], "successfully completed")
		require.Equal(t, "Created fine-tuning job: "+at(said, "job.id").(string), messages[len(messages)-1])
		checkpoints := said["checkpoints"].([]any)
		require.NotEmpty(t, checkpoints)
		require.Equal(t, at(said, "job.fine_tuned_model"), at(checkpoints[0].(object), "fine_tuned_model_checkpoint"))
		require.NotEmpty(t, said["chat"])

		require.Contains(t, said["jobs"], at(said, "job.id"))
		require.Contains(t, []any{"running", "paused"}, said["paused"])
		require.Equal(t, "cancelled", said["cancelled"])
		require.Equal(t, "BadRequestError", at(said, "refused.kind"))
		require.Contains(t, at(said, "refused.message"), "method.reinforcement.grader.type")
		require.Contains(t, at(said, "refused.message"), "eval_samples")
		require.Equal(t, true, at(said, "deleted.deleted"))
		require.Equal(t, "NotFoundError", at(said, "missing.kind"))
		require.Equal(t, []any{at(said, "file.id")}, said["files"])
	})
	t.Run("openai for Go", func(t *testing.T) {
		rows := strings.Repeat(`{"input": {"messages": [{"role": "user", "content": "`+clientsPrompt+
			`"}]}, "preferred_output": [{"role": "assistant", "content": "PC-15"}], "non_preferred_output": `+
			`[{"role": "assistant", "content": "?"}]}`+"\n", 4)
		said := s.driveAt(t, "/v1", "base", ".", goClient(t, "./finetune"), rowsFile(t, "pairs.jsonl", rows))
		require.Equal(t, rows, said["content"])
		require.Equal(t, "succeeded", at(said, "job.status"))
		require.EqualValues(t, 0.2, at(said, "job.method.dpo.hyperparameters.beta"))
		require.NotEmpty(t, said["steps"])
		require.NotEmpty(t, said["chat"])
		require.EqualValues(t, http.StatusNotFound, said["missing"])
		require.Greater(t, len(said["messages"].([]any)), 4, "several pages")
	})
}

// rowsFile writes rows to a file with a name.
func rowsFile(t *testing.T, name, rows string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, []byte(rows), 0o600))
	return file
}
