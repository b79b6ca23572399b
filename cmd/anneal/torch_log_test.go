package main_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines/sandbox"
	"anneal/internal/testutil"
)

// TestLogOfATorchJob checks that the log of a job has the lines that PyTorch's script writes, without
// secrets and paths of the node, that it keeps them when the agent is killed, and that it continues with
// the lines of the next attempt.
func TestLogOfATorchJob(t *testing.T) {
	t.Parallel()
	if err := sandbox.New(sandbox.Options{}).Check(t.Context()); err != nil {
		t.Skip(err)
	}
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed: apt install python3")
	}
	const secret = "s3cret-of-the-evaluator"
	python := t.TempDir()
	require.NoError(t, os.CopyFS(python, os.DirFS(filepath.Join("testdata", "torch"))))
	require.NoError(t, os.WriteFile(filepath.Join(python, "torch", "prints"), []byte("a token "+secret+"!"), 0o644))
	f := newFleet(t)
	f.dirs["gpu"] = t.TempDir()
	work := func() {
		f.workers["gpu"] = launchIn(t, logFor(t, "anneal work gpu"), []string{"PYTHONPATH=" + python}, "work", "--join",
			f.context.NATSURL, "--token-file", f.token, "--node-id", "gpu", "--data", f.dirs["gpu"], "--trainer", "torch")
		f.workers["gpu"].waitForLine("node gpu joined ")
		eventually(t, "the node is READY", func() bool { return f.nodes()["gpu"] == "READY" })
	}
	work()
	user := f.user()
	user.rows("rows", strings.Repeat(`{"messages":[{"role":"user","content":"a"}]}`+"\n", 10))
	user.must(http.MethodPost, "/secrets", object{"name": "accounts/default/secrets/token", "keyName": "TOKEN",
		"value": secret})
	user.must(http.MethodPost, "/evaluators", object{"evaluatorId": "e", "evaluator": object{
		"secrets": []string{"accounts/default/secrets/token"}, "criteria": []object{{"type": "CODE_SNIPPETS", "name": "e",
			"codeSnippets": object{"language": "python", "entryFile": "main.py", "entryFunc": "evaluate",
				"fileContents": object{"main.py": "def evaluate(messages, **kwargs): return 1"}}}}}})
	user.until("/evaluators/e", "state", "ACTIVE")

	const job = "/reinforcementFineTuningJobs/logged"
	res, err := user.send(http.MethodPost, "/reinforcementFineTuningJobs?reinforcementFineTuningJobId=logged",
		object{"dataset": "accounts/default/datasets/rows", "evaluator": "accounts/default/evaluators/e", "chunkSize": 4,
			"trainingConfig": object{"baseModel": baseModel, "loraRank": 0}})
	require.NoError(t, err)
	answer := testutil.ReadAll(t, res.Body)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode, "%s", answer)
	require.Equal(t, []string{"chunkSize: accepted, but has no effect on nodes with the engine torch: each training " +
		"step generates the rollouts of its own rows"}, res.Header.Values("anneal-warning"))

	log := func() string {
		url, _ := user.get(job)["trainerLogsSignedUrl"].(string)
		if url == "" {
			return ""
		}
		res, err := http.Get(url) //nolint:noctx // a test
		require.NoError(t, err)
		defer res.Body.Close()
		text := testutil.ReadAll(t, res.Body)
		return string(text)
	}
	eventually(t, "the log has the steps", func() bool { return strings.Contains(log(), "step 3 of 3") })
	first := log()
	f.workers["gpu"].kill()
	require.NoError(t, os.WriteFile(filepath.Join(python, "torch", "finish"), nil, 0o600))
	work()
	user.until(job, "state", "JOB_STATE_COMPLETED")
	eventually(t, "the log has its end", func() bool { return strings.Contains(log(), "the training is complete") })
	whole := log()
	require.True(t, strings.HasPrefix(whole, first), "the lines of the first attempt are kept:\n%s\n%s", first, whole)
	for _, attempt := range []string{first, strings.TrimPrefix(whole, first)} {
		for _, line := range []string{" started, continuing after step ", "loading the model for ", "a token [redacted]!",
			"1 tokens, reward/mean 0.5"} {
			require.Equal(t, 1, strings.Count(attempt, line), "%s:\n%s", line, whole)
		}
	}
	require.NotContains(t, whole, secret)
	require.NotContains(t, whole, f.dirs["gpu"])
	require.Zero(t, f.workers["gpu"].end())
}
