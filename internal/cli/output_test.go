package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"anneal/internal/datadir"
)

// runAgainst runs a command against a handler, with a context of account a, and returns the command
// that was run and its error.
func runAgainst(t *testing.T, handler http.HandlerFunc, args ...string) (*cobra.Command, error) {
	t.Helper()
	return execute(t, io.Discard, io.Discard, handler, args...)
}

// rehearse runs a command against a handler, and returns what it prints to both outputs.
func rehearse(t *testing.T, handler http.HandlerFunc, args ...string) (out, told string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	_, err = execute(t, &stdout, &stderr, handler, args...)
	return stdout.String(), stderr.String(), err
}

func execute(t *testing.T, stdout, stderr io.Writer, handler http.HandlerFunc, args ...string) (*cobra.Command, error) {
	t.Helper()
	server := httptest.NewServer(handler)
	defer server.Close()
	text, err := json.Marshal(datadir.Context{Address: server.URL, Account: "a", APIKey: "k"})
	require.NoError(t, err)
	dir := t.TempDir()
	for _, name := range []string{"context.json", "operator.json"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	c := NewRoot("test")
	c.SetOut(stdout)
	c.SetErr(stderr)
	c.SetArgs(append(args, "--context", filepath.Join(dir, "context.json")))
	return c.ExecuteC()
}

// printed is what a command prints on both sides where a server answers
// everything with item and warns of something.
func printed(t *testing.T, item map[string]any, warning string, args ...string) (out, told string) {
	t.Helper()
	out, told, err := rehearse(t, func(w http.ResponseWriter, _ *http.Request) {
		if warning != "" {
			w.Header().Add("anneal-warning", warning)
		}
		_ = json.NewEncoder(w).Encode(item)
	}, args...)
	require.NoError(t, err)
	return out, told
}

// What the server warns of is told to who types, unchanged.
func TestWarningsAreTold(t *testing.T) {
	_, told := printed(t, map[string]any{"name": "accounts/a/rlorTrainerJobs/j"}, "rolloutDeploymentName names d, which has enableHotLoad turned off",
		"rlor", "create", "--keep-alive", "--rollout-deployment", "d")
	require.Equal(t, "anneal: warning: rolloutDeploymentName names d, which has enableHotLoad turned off\n", told)
}

// A deployment shows the names that it is bound to, and whose weights answer.
func TestWhatADeploymentShows(t *testing.T) {
	item := map[string]any{"name": "accounts/a/deployments/d", "aliases": []string{"speech-v3", "speech-v3-turbo"}, "precision": "FP8", "hotLoad": map[string]any{
		"served":  map[string]any{"job": "accounts/a/rlorTrainerJobs/j", "trainStep": 3, "model": "accounts/a/models/m"},
		"refused": map[string]any{"job": "accounts/a/rlorTrainerJobs/k"}, "status": map[string]any{"message": "another base"}}}
	out, _ := printed(t, item, "", "deployment", "get", "d")
	for _, line := range []string{`Aliases: +speech-v3, speech-v3-turbo`, `Precision: +FP8`, `Weights from job: +accounts/a/rlorTrainerJobs/j`,
		`Train step: +3`, `Weights model: +accounts/a/models/m`, `Rejected weights from job: +accounts/a/rlorTrainerJobs/k`, `Hot load: +another base`} {
		require.Regexp(t, "(?m)^"+line+"$", out)
	}
}

// Events that are followed stand in columns, whatever their states and times.
func TestFollowedEventsStandInColumns(t *testing.T) {
	var out bytes.Buffer
	for _, event := range []map[string]any{
		{"position": "9", "time": "2026-11-22T05:34:28.84Z", "type": "model.created.v1", "subject": "accounts/a/models/m"},
		{"position": "12345678", "time": "2026-11-22T05:34:28.488152136Z", "type": "reinforcementFineTuningJob.checkpointed.v1", "state": "JOB_STATE_CREATING_INPUT_DATASET", "subject": "accounts/a/models/m"},
	} {
		require.NoError(t, printEvent(&out, false, event, nil))
	}
	first, second, _ := strings.Cut(out.String(), "\n")
	require.Equal(t, strings.Index(first, "accounts/"), strings.Index(second, "accounts/"), out.String())
	require.Equal(t, strings.Index(first, "model."), strings.Index(second, "reinforcement"), out.String())
}

// A node is seldom gone for good: what is told then is tried here.
func TestDeletedNodeInJSON(t *testing.T) {
	out, _ := printed(t, map[string]any{}, "", "node", "delete", "away", "-o", "json")
	require.Equal(t, "{}\n", out)
}

// A whole number is shown as one, however great it is.
func TestNumbersInCells(t *testing.T) {
	for value, shown := range map[float64]string{0: "0", 1048576: "1048576", -3: "-3", 0.5: "0.5", 0.123456789: "0.123457", 1e20: "1e+20"} {
		require.Equal(t, shown, cell(map[string]any{"x": value}, "x"))
	}
}

// What is heard stands on lines of its own, and how much was transcribed on
// the next, whether text came in parts, at once or not at all.
func TestWhatIsHeardEndsItsLine(t *testing.T) {
	const end = `{"type":"transcript.text.done","text":"go on","usage":{"seconds":1.5}}`
	part := func(text string) string { return `{"type":"transcript.text.delta","delta":"` + text + `"}` }
	for name, test := range map[string]struct {
		events []string
		both   string
	}{
		"in parts":   {[]string{part("go"), part(" on"), end}, "go on\ntranscribed 1.5s of audio\n"},
		"at once":    {[]string{end}, "go on\ntranscribed 1.5s of audio\n"},
		"with lines": {[]string{part(`1\n\n`), end}, "1\n\ntranscribed 1.5s of audio\n"},
		"silence":    {[]string{`{"type":"transcript.text.done","usage":{"seconds":4}}`}, "transcribed 4s of audio\n"},
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

// Who watches is not left alone when the server starts again in between; who
// begins to watch where none answers, or asks for what is not there, is told.
func TestAWatchOutlivesTheServer(t *testing.T) {
	broken := func(w http.ResponseWriter) {
		connection, _, err := w.(http.Hijacker).Hijack()
		require.NoError(t, err)
		_ = connection.Close()
	}
	asked := 0
	out, told, err := rehearse(t, func(w http.ResponseWriter, _ *http.Request) {
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
	require.Equal(t, 1, strings.Count(told, "does not respond, retrying for a minute"), told)

	_, told, err = rehearse(t, func(w http.ResponseWriter, _ *http.Request) { broken(w) }, "sft", "watch", "j")
	require.ErrorContains(t, err, "does not respond")
	require.Empty(t, told)
}
