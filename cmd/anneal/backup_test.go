package main_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRestoreToAnotherCluster backs up an installation whose log is in a NATS cluster, while its control
// plane runs, and restores it to another cluster, in another process: resources, keys and secrets are
// there, and the state is the one of the backup. After the first, interrupted attempt no control plane
// starts, and the second one continues it.
func TestRestoreToAnotherCluster(t *testing.T) {
	c := startNATS(t)
	first := c.serve(t.TempDir(), "--worker=false", "--lame-duck", "0s")
	user := first.user()
	user.must(http.MethodPost, "/datasets", object{"datasetId": "kept", "dataset": object{}})
	user.must(http.MethodPost, "/secrets", object{"name": "accounts/default/secrets/s", "keyName": "K", "value": "v"})
	target, key := filepath.Join(t.TempDir(), "backups"), filepath.Join(t.TempDir(), "backup.key")
	var created struct{ Recipient string }
	require.NoError(t, json.Unmarshal([]byte(first.run("backup", "key", key, "-o", "json").ok(t)), &created))
	out := first.run("backup", "create", target, "--recipient", created.Recipient, "-o", "json").ok(t)
	require.Contains(t, out, `"state": "COMPLETED"`)
	state := first.as("system", first.operator().APIKey).get("//v1/system/digest")["sha256"]
	bundle, standby := filepath.Join(t.TempDir(), "bundle"), t.TempDir()
	first.run("server", "bundle", bundle).ok(t)
	commandIn(t, c.env, t.TempDir(), "server", "join", bundle, "--data", standby).ok(t)
	first.end()
	c.stop(0)
	c.stop(1)
	c.stop(2)

	other := startNATS(t)
	dir := filepath.Join(t.TempDir(), "data")
	restore := []string{"restore", target, "--identity", key, "--data", dir, "--nats-url", other.url(0), "-o", "json"}
	var restored struct {
		Position int64
		SHA256   string
		Missing  []string
	}
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	failed := commandIn(t, other.env, t.TempDir(), append(restore, "--blobs", "file://"+file)...)
	require.NotZero(t, failed.code, "the restore is interrupted after the data keys")
	for _, half := range []string{standby, dir + ".restoring"} { // a control plane with the keys
		serving := commandIn(t, other.env, t.TempDir(), "serve", "--data", half, "--nats-url", other.url(0), "--listen",
			"127.0.0.1:0")
		require.NotZero(t, serving.code)
		require.Contains(t, serving.stderr, "run the same `anneal restore` command again")
	}
	require.NoError(t, json.Unmarshal([]byte(commandIn(t, other.env, t.TempDir(), restore...).ok(t)), &restored))
	require.Empty(t, restored.Missing)
	require.Equal(t, state, restored.SHA256)

	again := commandIn(t, other.env, t.TempDir(), "restore", target, "--identity", key, "--data", dir+"2", "--nats-url",
		other.url(0), "--at", "3")
	require.NotZero(t, again.code)
	require.Contains(t, again.stderr, "restore to an empty NATS cluster")

	second := other.serve(dir, "--worker=false", "--lame-duck", "0s")
	require.Equal(t, first.context.APIKey, second.context.APIKey)
	second.user().must(http.MethodGet, "/datasets/kept", nil)
	second.user().must(http.MethodPatch, "/secrets/s", object{"value": "w"})
	require.Contains(t, command(t, dir, "log", "verify", "--data", dir).ok(t), "equal")
}
