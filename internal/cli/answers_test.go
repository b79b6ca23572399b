package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
)

// TestExistingResourcesHaveAWayOut checks for every kind that a user creates that the error of a used
// ID names the kind, the ID and a command, and no request of the API.
func TestExistingResourcesHaveAWayOut(t *testing.T) {
	shown := 0
	for _, kind := range domain.Kinds {
		command := commandOf[kind.CollectionID()]
		message := `a thing with the ID "x" already exists: choose another ID, or see the existing one with GET /v1/` +
			string(domain.NewName("a", kind.CollectionID(), "x"))
		server := func(w http.ResponseWriter, _ *http.Request) {
			text, _ := json.Marshal(message)
			http.Error(w, `{"message":`+string(text)+`,"details":[{"reason":"ALREADY_EXISTS"}]}`, http.StatusConflict)
		}
		c, err := runAgainst(t, server, "dataset", "create", "x")
		described := describe(c, err)
		require.Contains(t, described, `with the ID "x" already exists`, kind.CollectionID())
		if command == "" {
			continue
		}
		require.NotContains(t, described, "GET /", kind.CollectionID())
		require.Contains(t, described, "choose another ID", kind.CollectionID())
		if _, line, found := strings.Cut(described, "`anneal "); found {
			line, _, _ = strings.Cut(line, "`")
			get, rest, err := NewRoot("test").Find(strings.Fields(line))
			require.NoError(t, err, line)
			require.Equal(t, []string{"x"}, rest, line)
			require.Equal(t, "get", get.Name(), line)
			shown++
		}
	}
	require.Greater(t, shown, 8, "most kinds have a command that shows a resource")
}

// TestHintsHaveTheArguments checks that a hint names the resource of the command line.
func TestHintsHaveTheArguments(t *testing.T) {
	c := &cobra.Command{Use: "scale ID REPLICAS"}
	require.NoError(t, c.Flags().Parse([]string{"accounts/a/deployments/d3", "5"}))
	require.Equal(t, "ID: see `anneal deployment update d3 --max-replicas N`",
		withArguments(c, "ID: see `anneal deployment update ID --max-replicas N`"))
	require.Equal(t, "`anneal deployment update DEPLOYMENT`", withArguments(c, "`anneal deployment update DEPLOYMENT`"))
}

// TestZeroTimesAreNotShown checks that a time that is not set is shown nowhere: in tables, in the
// fields of a resource, and in its changes.
func TestZeroTimesAreNotShown(t *testing.T) {
	item := map[string]any{"failedTime": zeroTime, "since": zeroTime, "life": map[string]any{"time": zeroTime}}
	for _, path := range []string{"failedTime", "since", "life.time"} {
		require.Equal(t, "-", cell(item, path), path)
	}
	fields := map[string]any{}
	collectFields(fields, "", item)
	require.Empty(t, fields)
	made, err := json.Marshal(domain.Deployment{})
	require.NoError(t, err)
	require.Contains(t, string(made), zeroTime, "states have such times")
}

// TestCancelWaits checks that a cancel with --watch succeeds when the work is cancelled, and fails when
// it ends otherwise.
func TestCancelWaits(t *testing.T) {
	for line, states := range map[string][]string{
		"sft cancel j --watch": {"JOB_STATE_CANCELLING", "JOB_STATE_CANCELLED", "JOB_STATE_FAILED"},
		"rft cancel j -w":      {"JOB_STATE_CANCELLING", "JOB_STATE_CANCELLED", "JOB_STATE_FAILED"},
		"batch cancel b -w":    {"cancelling", "cancelled", ""},
	} {
		for _, last := range states[1:] {
			if last == "" {
				continue
			}
			reads := 0
			server := func(w http.ResponseWriter, r *http.Request) {
				state := states[0]
				if r.Method == http.MethodGet {
					if reads++; reads > 1 {
						state = last
					}
				}
				_ = json.NewEncoder(w).Encode(map[string]any{"id": "b", "name": "accounts/a/supervisedFineTuningJobs/j",
					"status": map[bool]any{true: state, false: nil}[strings.HasPrefix(line, "batch")], "state": state})
			}
			out, _, err := runOutput(t, server, strings.Fields(line)...)
			if last == "JOB_STATE_FAILED" {
				require.ErrorContains(t, err, "is FAILED", line)
				continue
			}
			require.NoError(t, err, line)
			require.Contains(t, out, last, line)
		}
	}
}

// TestCommandsThatWait checks that every command that starts something that takes a while has --watch.
func TestCommandsThatWait(t *testing.T) {
	root := NewRoot("test")
	for _, line := range []string{"sft create", "dpo create", "rft create", "rlor create", "rlor step", "sft cancel",
		"dpo cancel", "rft cancel", "rlor cancel", "sft resume", "deployment create", "deployment update",
		"deployment undelete", "batch create", "batch cancel", "model prepare"} {
		c, rest, err := root.Find(strings.Fields(line))
		require.NoError(t, err, line)
		require.Empty(t, rest, line)
		require.NotNil(t, c.Flags().Lookup("watch"), line)
		require.Equal(t, "w", c.Flags().Lookup("watch").Shorthand, line)
	}
}

// TestLoginSaysWhichContextIsUsed checks what login says when $ANNEAL_CONTEXT is set.
func TestLoginSaysWhichContextIsUsed(t *testing.T) {
	key, err := request.MintKey(make([]byte, 32), "accounts/a/apiKeys/k")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "mine.json")
	t.Setenv(contextVariable, path)
	server := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"role":"admin"}`) }
	output := loginAt(t, server, key.Text)
	require.Contains(t, output, "this login is stored in "+path+", the value of $ANNEAL_CONTEXT: commands use it "+
		"while the variable has this value\n")
	t.Setenv(keyVariable, key.Text)
	require.Contains(t, loginAt(t, server, key.Text), "commands will use the API key in $ANNEAL_API_KEY instead")
}

// TestModelsAreListedByID checks that the list of models shows IDs, as the other lists do.
func TestModelsAreListedByID(t *testing.T) {
	for _, k := range []collection{datasets, models, deployments, evaluators, deployedModels, shapes, secrets, apiKeys,
		subscriptions} {
		require.Equal(t, column{"ID", "#name"}, k.columns[0], k.name)
	}
}

// loginAt logs in with a key at a server, and returns what is printed to standard error.
func loginAt(t *testing.T, handler http.HandlerFunc, key string) string {
	t.Helper()
	server := httptest.NewServer(handler)
	defer server.Close()
	var output bytes.Buffer
	c := NewRoot("test")
	c.SetOut(io.Discard)
	c.SetErr(&output)
	c.SetIn(strings.NewReader(key + "\n"))
	c.SetArgs([]string{"login", server.URL})
	require.NoError(t, c.Execute())
	return output.String()
}
