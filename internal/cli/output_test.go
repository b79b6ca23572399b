package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"anneal/internal/datadir"
)

// runAgainst runs a command against a handler, with a context of account a, and returns the command
// and its error.
func runAgainst(t *testing.T, handler http.HandlerFunc, args ...string) (*cobra.Command, error) {
	t.Helper()
	return execute(t, io.Discard, io.Discard, handler, args...)
}

// runOutput runs a command against a handler, and returns what it prints to both outputs.
func runOutput(t *testing.T, handler http.HandlerFunc, args ...string) (out, output string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	_, err = execute(t, &stdout, &stderr, handler, args...)
	return stdout.String(), stderr.String(), err
}

func execute(t *testing.T, stdout, stderr io.Writer, handler http.HandlerFunc, args ...string) (*cobra.Command, error) {
	t.Helper()
	c := NewRoot("test")
	c.SetOut(stdout)
	c.SetErr(stderr)
	c.SetArgs(append(args, "--context", contextFileOf(t, handler)))
	return c.ExecuteC()
}

// contextFileOf returns the context file of account a for a server with a handler.
func contextFileOf(t *testing.T, handler http.Handler) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	text, err := json.Marshal(datadir.Context{Address: server.URL, Account: "a", APIKey: "k"})
	require.NoError(t, err)
	dir := t.TempDir()
	for _, name := range []string{"context.json", "operator.json"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	return filepath.Join(dir, "context.json")
}

// clientOfHandler returns a client of a server with a handler, and a command for its output.
func clientOfHandler(t *testing.T, handler http.HandlerFunc) (*client, *cobra.Command) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	c := &cobra.Command{Use: "test"}
	c.Flags().String("output", "table", "")
	c.SetContext(t.Context())
	return &client{Context: datadir.Context{Address: server.URL, Account: "a", APIKey: "k"}}, c
}

// printed returns what a command prints to both outputs when the server responds to every request
// with item and a warning.
func printed(t *testing.T, item map[string]any, warning string, args ...string) (out, output string) {
	t.Helper()
	out, output, err := runOutput(t, func(w http.ResponseWriter, _ *http.Request) {
		if warning != "" {
			w.Header().Add("anneal-warning", warning)
		}
		_ = json.NewEncoder(w).Encode(item)
	}, args...)
	require.NoError(t, err)
	return out, output
}

// TestWarningsArePrinted checks that warnings of the server are printed unchanged.
func TestWarningsArePrinted(t *testing.T) {
	_, output := printed(t, map[string]any{"name": "accounts/a/rlorTrainerJobs/j"},
		"rolloutDeploymentName names d, which has enableHotLoad turned off",
		"rlor", "create", "--keep-alive", "--rollout-deployment", "d")
	require.Equal(t, "anneal: warning: rolloutDeploymentName names d, which has enableHotLoad turned off\n", output)
}

// TestDeploymentDetails checks that a deployment shows its aliases and the job whose weights it
// serves.
func TestDeploymentDetails(t *testing.T) {
	item := map[string]any{"name": "accounts/a/deployments/d", "aliases": []string{"speech-v3", "speech-v3-turbo"},
		"precision": "FP8", "hotLoad": map[string]any{
			"served":  map[string]any{"job": "accounts/a/rlorTrainerJobs/j", "trainStep": 3, "model": "accounts/a/models/m"},
			"refused": map[string]any{"job": "accounts/a/rlorTrainerJobs/k"},
			"status":  map[string]any{"message": "another base"}}}
	out, _ := printed(t, item, "", "deployment", "get", "d")
	for _, line := range []string{`Aliases: +speech-v3, speech-v3-turbo`, `Precision: +FP8`,
		`Weights from job: +accounts/a/rlorTrainerJobs/j`,
		`Train step: +3`, `Weights model: +accounts/a/models/m`, `Rejected weights from job: +accounts/a/rlorTrainerJobs/k`,
		`Hot load: +another base`} {
		require.Regexp(t, "(?m)^"+line+"$", out)
	}
}

// TestFollowedEventsAreAligned checks that followed events are aligned in columns, for any states
// and times.
func TestFollowedEventsAreAligned(t *testing.T) {
	var out bytes.Buffer
	for _, event := range []map[string]any{
		{"position": "9", "time": "2026-11-22T05:34:28.84Z", "type": "model.created.v1", "subject": "accounts/a/models/m"},
		{"position": "12345678", "time": "2026-11-22T05:34:28.488152136Z",
			"type": "reinforcementFineTuningJob.checkpointed.v1", "state": "JOB_STATE_CREATING_INPUT_DATASET",
			"subject": "accounts/a/models/m"},
	} {
		require.NoError(t, printEvent(&out, false, event, nil))
	}
	first, second, _ := strings.Cut(out.String(), "\n")
	require.Equal(t, strings.Index(first, "accounts/"), strings.Index(second, "accounts/"), out.String())
	require.Equal(t, strings.Index(first, "model."), strings.Index(second, "reinforcement"), out.String())
}

// TestVerbsInJSON checks the JSON output of commands that change a resource.
func TestVerbsInJSON(t *testing.T) {
	for _, verb := range []string{"delete", "revoke"} {
		out, _ := printed(t, map[string]any{}, "", "node", verb, "away", "-o", "json")
		require.Equal(t, "{}\n", out)
	}
	for _, verb := range []string{"import", "export"} {
		dataset := map[string]any{"name": "accounts/a/datasets/rows", "state": "READY",
			"export": map[string]any{"state": "COMPLETED"}}
		out, _ := printed(t, dataset, "", "dataset", verb, "rows", "s3://bucket/rows/", "--secret", "s", "-o", "json")
		require.Contains(t, out, `"name": "accounts/a/datasets/rows"`)
	}
	out, _ := printed(t, map[string]any{"id": "b", "status": "cancelling"}, "", "batch", "cancel", "b", "-o", "json")
	require.JSONEq(t, `{"id": "b", "status": "cancelling"}`, out)
}

// TestNumbersInCells checks that integers below 2^53 are printed in full, and other numbers with
// six significant digits.
func TestNumbersInCells(t *testing.T) {
	for value, shown := range map[float64]string{0: "0", 1048576: "1048576", -3: "-3", 0.5: "0.5", 0.123456789: "0.123457",
		1e20: "1e+20"} {
		require.Equal(t, shown, cell(map[string]any{"x": value}, "x"))
	}
}

// TestTranscriptsEndTheirLine checks that a transcript ends with a newline, and that the duration
// of the recording is on the next line, whether the text arrives in parts, all together or not at
// all.
func TestTranscriptsEndTheirLine(t *testing.T) {
	const end = `{"type":"transcript.text.done","text":"go on","usage":{"seconds":1.5}}`
	part := func(text string) string { return `{"type":"transcript.text.delta","delta":"` + text + `"}` }
	for name, test := range map[string]struct {
		events []string
		both   string
	}{
		"in parts":     {[]string{part("go"), part(" on"), end}, "go on\ntranscribed 1.5s of audio\n"},
		"all together": {[]string{end}, "go on\ntranscribed 1.5s of audio\n"},
		"with lines":   {[]string{part(`1\n\n`), end}, "1\n\ntranscribed 1.5s of audio\n"},
		"silence":      {[]string{`{"type":"transcript.text.done","usage":{"seconds":4}}`}, "transcribed 4s of audio\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var both bytes.Buffer
			shown := &transcript{out: &both, progress: &both}
			for _, event := range test.events {
				require.NoError(t, shown.event([]byte(event)))
			}
			require.Equal(t, test.both, both.String())
		})
	}
}

// TestAWatchSurvivesAServerRestart checks that a watch waits for a server that restarts in between,
// and that a watch whose first request fails is not retried.
func TestAWatchSurvivesAServerRestart(t *testing.T) {
	broken := func(w http.ResponseWriter) {
		connection, _, err := w.(http.Hijacker).Hijack()
		require.NoError(t, err)
		_ = connection.Close()
	}
	asked := 0
	out, output, err := runOutput(t, func(w http.ResponseWriter, _ *http.Request) {
		asked++
		switch asked {
		case 1:
			_, _ = w.Write([]byte(`{"name":"accounts/a/deployments/d","state":"CREATING"}`))
		case 2:
			broken(w)
		case 3:
			http.Error(w, "{}", http.StatusServiceUnavailable)
		default:
			_, _ = w.Write([]byte(`{"name":"accounts/a/deployments/d","state":"READY"}`))
		}
	}, "deployment", "watch", "d")
	require.NoError(t, err)
	require.Contains(t, out, "READY")
	require.Equal(t, 1, strings.Count(output, "failed; retrying for a minute"), output)
	require.Regexp(t, `(?s)retrying for a minute\n.*connected to http://127[^ ]+ again\n.*READY`, output)

	_, output, err = runOutput(t, func(w http.ResponseWriter, _ *http.Request) { broken(w) }, "sft", "watch", "j")
	require.ErrorContains(t, err, "failed: check that the server runs")
	require.Empty(t, output)
}

// TestTablesFitTheTerminal checks that no line of a table is wider than the terminal, that the first
// column stays complete, and that the output for programs is never narrowed.
func TestTablesFitTheTerminal(t *testing.T) {
	rows := [][]string{{"ID", "STATE", "MODEL", "CREATED"},
		{"a-long-deployment-id-that-users-copy", "READY", "a-model-with-a-very-long-name-of-many-words",
			"2026-11-23 07:12:09"},
		{"b", "UPDATING", "m\u001b[2J", "2026-11-23 07:12:09"}}
	for width := 20; width < 140; width++ {
		var shown bytes.Buffer
		require.NoError(t, printTable(&terminal{out: &shown, width: width}, rows))
		require.Contains(t, shown.String(), "a-long-deployment-id-that-users-copy", width)
		lines := strings.Split(strings.TrimSuffix(shown.String(), "\n"), "\n")
		require.Len(t, lines, len(rows))
		for _, line := range lines {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, " ")), max(width, 36), line)
		}
	}
	var wide bytes.Buffer
	require.NoError(t, printTable(&terminal{out: &wide}, rows))
	require.Contains(t, wide.String(), "a-model-with-a-very-long-name-of-many-words   2026-11-23 07:12:09\n")
	var narrowed bytes.Buffer
	require.NoError(t, printTable(&terminal{out: &narrowed, width: 90}, rows))
	require.Contains(t, narrowed.String(), "a-model-w", "columns are shortened before any is left out")
	require.Contains(t, narrowed.String(), "…")
	require.Contains(t, narrowed.String(), "CREATED")
}

// TestNextCommands checks that the command that usually follows is printed after a success, that it
// is a valid command line, and that it is never printed for programs.
func TestNextCommands(t *testing.T) {
	for _, test := range []struct{ line, item, next string }{
		{"dataset upload d FILE", `{"name":"accounts/a/datasets/d","state":"READY","rowShape":"chat"}`,
			"sft create d --dataset d --watch"},
		{"dataset upload d FILE", `{"name":"accounts/a/datasets/d","state":"READY","rowShape":"preference"}`,
			"dpo create d --dataset d --watch"},
		{"dataset derive d --from e", `{"name":"accounts/a/datasets/d","state":"READY","rowShape":"prompt"}`,
			"rft create d --dataset d --evaluator EVALUATOR --watch"},
		{"dataset derive d --from e", `{"name":"accounts/a/datasets/d","state":"READY","rowShape":"samples"}`,
			"rlor create d --dataset d --watch"},
		{"sft watch j", `{"name":"accounts/a/supervisedFineTuningJobs/j","state":"JOB_STATE_COMPLETED","outputModel":"m"}`,
			"deployment create m --model m --watch"},
		{"dpo watch j", `{"name":"accounts/a/dpoJobs/j","state":"JOB_STATE_COMPLETED","trainingConfig":{"outputModel":"m"}}`,
			"deployment create m --model m --watch"},
		{"rlor watch j", `{"name":"accounts/a/rlorTrainerJobs/j","state":"JOB_STATE_IDLE"}`,
			"rlor step j --dataset DATASET --output-model MODEL --watch"},
		{"sft create j --dataset d", `{"name":"accounts/a/supervisedFineTuningJobs/j","state":"JOB_STATE_PENDING"}`,
			"sft watch j"},
		{"deployment create d --model m",
			`{"name":"accounts/a/deployments/d","state":"CREATING","baseModel":"accounts/a/models/m"}`,
			"deployment watch d"},
		{"deployment watch d", `{"name":"accounts/a/deployments/d","state":"READY","baseModel":"accounts/a/models/m",` +
			`"replicaStats":{"readyReplicaCount":1}}`, "chat --model m"},
		{"addon load x --model m --deployment d --watch", `{"name":"accounts/a/deployedModels/x","state":"DEPLOYED",` +
			`"model":"accounts/a/models/m"}`, "chat --model m"},
		{"sft promote j 1-2 m", `{"name":"accounts/a/models/m","kind":"HF_PEFT_ADDON"}`,
			"addon load m --model m --deployment DEPLOYMENT --watch"},
	} {
		file := filepath.Join(t.TempDir(), "rows.jsonl")
		require.NoError(t, os.WriteFile(file, []byte("{}\n"), 0o600))
		args := strings.Fields(strings.ReplaceAll(test.line, "FILE", file))
		run := func(setting string, further ...string) string {
			t.Setenv(hintsVariable, setting)
			_, output, err := runOutput(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, test.item) },
				append(slices.Clone(args), further...)...)
			require.NoError(t, err, test.line)
			return output
		}
		require.Contains(t, run("always"), "next: anneal "+test.next+"\n", test.line)
		for _, output := range []string{run(""), run("never"), run("always", "-o", "json")} {
			require.NotContains(t, output, "next:", test.line)
		}
		meant, rest, err := NewRoot("test").Find(strings.Fields(test.next))
		require.NoError(t, err)
		require.NoError(t, meant.ParseFlags(rest), test.next)
		require.NoError(t, meant.ValidateArgs(meant.Flags().Args()), test.next)
	}
}

// TestAJobOnUnreadyRowsWarns checks that the create of a job warns when its dataset is not READY.
func TestAJobOnUnreadyRowsWarns(t *testing.T) {
	state := "UPLOADING"
	server := func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/datasets/") {
			_, _ = io.WriteString(w, `{"state":"`+state+`","status":{"message":"waits for an upload"}}`)
			return
		}
		_, _ = io.WriteString(w, `{"name":"accounts/a/supervisedFineTuningJobs/j","dataset":"accounts/a/datasets/d"}`)
	}
	_, output, err := runOutput(t, server, "sft", "create", "j", "--dataset", "d")
	require.NoError(t, err)
	require.Equal(t, "anneal: warning: dataset d is UPLOADING and has no valid rows yet, without which "+
		"the job will fail: `anneal dataset get d` shows why\n", output)
	state = "READY"
	_, output, err = runOutput(t, server, "sft", "create", "j", "--dataset", "d")
	require.NoError(t, err)
	require.Empty(t, output)
}

// TestAnEvaluatorThatFailsItsTrialWarns checks that an ACTIVE evaluator whose status has a message
// is reported.
func TestAnEvaluatorThatFailsItsTrialWarns(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.py"), []byte("x"), 0o600))
	item := map[string]any{"name": "accounts/a/evaluators/e", "state": "ACTIVE",
		"status":               map[string]any{"code": "OK", "message": "the trial call failed: KeyError"},
		"filenameToSignedUrls": map[string]any{}}
	server := func(w http.ResponseWriter, r *http.Request) {
		item["filenameToSignedUrls"] = map[string]any{"main.py": "http://" + r.Host + "/put"}
		_ = json.NewEncoder(w).Encode(item)
	}
	out, output, err := runOutput(t, server, "evaluator", "create", "e", "--dir", dir)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(out+output, "KeyError"), "the reason is printed once: %s", output)
	require.Contains(t, output, "anneal: warning: evaluator e is ACTIVE, but the trial call of its code failed: try "+
		"it on your own rows with `anneal evaluator preview e --file ROWS.jsonl`\n")
}
