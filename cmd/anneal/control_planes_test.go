package main_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/internal/testutil"
)

// join gives the data directory dir the keys of another control plane, as docs/operations.md says.
func (s *plane) join(dir string) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "control-plane.bundle")
	// the program of the control plane, because an earlier one does not read the directory of a later one
	bundled := programIn(s.t, s.program, nil, s.dir, "server", "bundle", file)
	require.Contains(s.t, bundled.ok(s.t), "anneal server join")
	out := programIn(s.t, s.program, nil, dir, "server", "join", file, "--data", dir).ok(s.t)
	require.Contains(s.t, out, "has the keys of the installation")
}

// TestSecondControlPlane adds a control plane to an installation: it is refused without the keys and
// with another bucket, and places replicas when the first one is killed.
func TestSecondControlPlane(t *testing.T) {
	c := startNATS(t)
	shared := "file://" + filepath.ToSlash(t.TempDir())
	args := func(name, blobs string) []string {
		return []string{"--blobs", blobs, "--worker=false", "--name", name, "--lame-duck", "0s"}
	}
	first := c.serve(t.TempDir(), args("a", shared)...)
	refused := func(dir, blobs string) string {
		out := commandIn(t, c.env, dir, append([]string{"serve", "--data", dir, "--listen", "127.0.0.1:0", "--nats-url",
			c.url(0)}, args("b", blobs)...)...)
		require.NotZero(t, out.code)
		return out.stderr
	}
	dir := t.TempDir()
	require.Contains(t, refused(dir, shared),
		"it has no key named blobs, nodes, pepper, ring: run `anneal server bundle FILE`")
	require.NoFileExists(t, filepath.Join(dir, "keys", "pepper"), "it creates no keys of its own")
	first.join(dir)
	require.Contains(t, refused(dir, "file://"+filepath.ToSlash(t.TempDir())), "is not the one of the installation")
	second := c.serve(dir, args("b", shared)...)

	list := commandIn(t, c.env, dir, "server", "list", "--nats-url", c.url(0)).ok(t)
	require.Regexp(t, fmt.Sprintf(`(?m)^ID +VERSION +EVENTS\na +\S+ +%[1]d\nb +\S+ +%[1]d\n$`, domain.EventVersion), list)
	first.user().must(http.MethodPost, "/datasets", object{"datasetId": "seen", "dataset": object{}})
	status, _ := second.as("default", first.context.APIKey).status(http.MethodGet, "/datasets/seen", nil)
	require.Equal(t, http.StatusOK, status, "keys of the first control plane are valid at the second one")

	token := filepath.Join(t.TempDir(), "node.token")
	require.NoError(t, os.WriteFile(token, []byte(second.run("node", "token", "--data", dir).ok(t)), 0o600))
	worker := launch(t, logFor(t, "anneal work"), "work", "--join", c.url(0), "--token-file", token, "--node-id", "w",
		"--data", t.TempDir())
	worker.waitForLine("node w joined ")
	operator := second.as("system", second.operator().APIKey)
	eventually(t, "the second control plane has seen the worker", func() bool {
		nodes := operator.list("/nodes", "nodes")
		return len(nodes) == 1 && nodes[0]["state"] == "READY"
	})
	first.kill()
	second.user().must(http.MethodPost, "/deployments?deploymentId=d",
		object{"baseModel": baseModel, "minReplicaCount": 1})
	eventually(t, "the second control plane places the replica", func() bool {
		_, found, err := second.user().do(http.MethodGet, "/deployments/d", nil)
		return err == nil && found["state"] == "READY"
	})
	members := commandIn(t, c.env, dir, "server", "list", "--nats-url", c.url(0), "-o", "json").ok(t)
	require.Contains(t, members, fmt.Sprintf(`"eventVersion": %d`, domain.EventVersion))
	require.Zero(t, worker.end())
	require.Zero(t, second.end())
	list = commandIn(t, c.env, dir, "server", "list", "--nats-url", c.url(0)).ok(t)
	require.NotContains(t, list, "\nb ", "it has left")
}

// copyWithoutLog copies the data directory of a control plane without its embedded log, so that the
// copy is like that of a control plane whose log is in a cluster.
func copyWithoutLog(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, os.CopyFS(filepath.Join(to, "keys"), os.DirFS(filepath.Join(from, "keys"))))
	for _, name := range []string{"version", "context.json", "operator.json"} {
		content := testutil.ReadFile(t, filepath.Join(from, name))
		require.NoError(t, os.WriteFile(filepath.Join(to, name), content, 0o600))
	}
}

// TestServerBundles checks in which cases `anneal server bundle` and `anneal server join` return an
// error.
func TestServerBundles(t *testing.T) {
	s, file := serve(t, t.TempDir(), "--worker=false"), filepath.Join(t.TempDir(), "bundle")
	clustered := t.TempDir()
	copyWithoutLog(t, s.dir, clustered)
	fails := func(want string, args ...string) {
		t.Helper()
		out := command(t, s.dir, args...)
		require.NotZero(t, out.code)
		require.Contains(t, out.stderr, want)
	}
	fails("is not a server's data directory", "server", "bundle", file, "--data", t.TempDir())
	fails("has the log of an embedded NATS server, which only one control plane can use: for several, "+
		"start an installation in a new directory with `anneal serve --nats-url URL`", "server", "bundle", file)
	require.NoFileExists(t, file)
	s.run("server", "bundle", file, "--data", clustered).ok(t)
	info := testutil.Stat(t, file)
	require.EqualValues(t, 0o600, info.Mode().Perm())
	written := testutil.ReadFile(t, file)
	fails(file+" already exists\nhint: choose another name, or delete it first: nothing is overwritten",
		"server", "bundle", file, "--data", clustered)
	kept := testutil.ReadFile(t, file)
	require.Equal(t, string(written), string(kept))
	fails("no such file", "server", "join", file+"2", "--data", t.TempDir())
	fails("is in use by process", "server", "join", file, "--data", s.dir)

	dir := t.TempDir()
	for range 2 { // it can be repeated
		s.run("server", "join", file, "--data", dir).ok(t)
	}
	for _, name := range []string{"pepper", "nodes", "blobs", "ring"} {
		want := testutil.ReadFile(t, filepath.Join(s.dir, "keys", name))
		got := testutil.ReadFile(t, filepath.Join(dir, "keys", name))
		require.Equal(t, want, got)
	}
	content := testutil.ReadFile(t, file)
	for want, edit := range map[string][2]string{
		"is not a bundle of format 1":       {`"format":1`, `"format":2`},
		`the unknown file "../evil"`:        {"keys/nodes", "../evil"},
		"does not match its .sum":           {`keys/nodes.sum":"`, `keys/nodes.sum":"0`},
		"lacks operator.json":               {"operator.json", "context.json"},
		"keys/ring: line 1 of the key ring": {`keys/ring":"`, `keys/ring":"x y `},
	} {
		path := filepath.Join(t.TempDir(), "damaged")
		text := strings.Replace(string(content), edit[0], edit[1], 1)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		fails(want, "server", "join", path, "--data", t.TempDir())
	}
	require.Zero(t, s.end())
	fails("has the log of another installation", "server", "join", file, "--data", s.dir)
}
