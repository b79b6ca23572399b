package main_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/eventlog/transparency"
	"anneal/internal/testutil"
)

// A checkedBundle is the output of `anneal log check -o json`.
type checkedBundle struct {
	Account string
	Events  []struct {
		Resource, Payload string
		Attributes        map[string]string
	}
	OnlyGrewSince struct{ Size string }
}

// TestAuditor checks what an auditor can prove who kept a checkpoint of last week, and later gets bundles
// with the creation events of a deployment and of the API key that created it. Offline, with only the
// checkpoint, the bundles and the public key of the log, the auditor proves who created the deployment,
// with which key and from which address, and that nothing was rewritten since the checkpoint. Changed
// bundles, and bundles of a rewritten log with the same keys, are refused.
func TestAuditor(t *testing.T) {
	t.Parallel()
	s := serve(t, filepath.Join(t.TempDir(), "data"), "--worker=false", "--lame-duck", "0s")
	s.user().must(http.MethodPost, "/datasets", object{"datasetId": "early"})
	require.Zero(t, s.end())
	fork := &plane{t: t, dir: filepath.Join(t.TempDir(), "data"), args: s.args, log: logFor(t, "fork")}
	require.NoError(t, exec.Command("cp", "-a", s.dir, fork.dir).Run())

	s.start()
	logKey := strings.TrimSpace(s.run("log", "key").ok(t))
	for _, id := range []string{"a", "b", "c"} {
		s.user().must(http.MethodPost, "/datasets", object{"datasetId": id})
	}
	auditor := t.TempDir() // what the auditor has
	file := func(name string) string { return filepath.Join(auditor, name) }
	s.run("log", "prove", "datasets/c").ok(t) // returns when a checkpoint covers the event
	checkpoint := file("checkpoint")          // of last week
	require.NoError(t, os.WriteFile(checkpoint, []byte(s.run("log", "checkpoint").ok(t)), 0o600))

	madeBy(s, "alice")
	s.user().must(http.MethodPost, "/datasets", object{"datasetId": "late"})
	s.run("log", "prove", "deployments/polite", "--since", checkpoint, "--file", file("deployment.proof")).ok(t)
	s.run("log", "prove", "apiKeys/alice", "--since", checkpoint, "--file", file("key.proof")).ok(t)
	s.user().must(http.MethodPost, "/datasets", object{"datasetId": "later"})
	s.run("log", "prove", "datasets/later").ok(t) // so that the checkpoint is larger than those of the proofs
	require.NoError(t, os.WriteFile(file("checkpoint-of-today"), []byte(s.run("log", "checkpoint").ok(t)), 0o600))
	admin := s.user().list("/apiKeys", "apiKeys")[0]["name"]
	require.Zero(t, s.end())
	signer, err := transparency.NewSigner([]byte("another operator"))
	require.NoError(t, err)
	otherKey, random := signer.Key(), testutil.Random(t)

	fork.start() // the operator restores the log of last week, and creates the deployment with another key
	for _, id := range []string{"a", "x", "c"} {
		fork.user().must(http.MethodPost, "/datasets", object{"datasetId": id})
	}
	madeBy(fork, "mallory")
	fork.run("log", "prove", "deployments/polite", "--since", checkpoint, "--file", file("rewritten.proof")).ok(t)
	fork.run("log", "prove", "deployments/polite", "--file", file("mallory.proof")).ok(t)
	require.Zero(t, fork.end())

	check := func(name, since, key string) outcome {
		return command(t, t.TempDir(), // in a directory without a context, while no server runs
			"log", "check", file(name), "--key", key, "--since", file(since), "-o", "json")
	}
	var made checkedBundle
	require.NoError(t, json.Unmarshal([]byte(check("deployment.proof", "checkpoint", logKey).ok(t)), &made))
	require.Equal(t, "default", made.Account)
	require.Equal(t, sizeOf(t, checkpoint), made.OnlyGrewSince.Size)
	require.Len(t, made.Events, 1)
	require.Equal(t, "accounts/default/deployments/polite", made.Events[0].Resource)
	require.Contains(t, made.Events[0].Payload, "anneal-base")
	requireAttributes(t, made, object{"ce-type": "deployment.created.v1", "ce-clientaddress": "127.0.0.1",
		"ce-actor": "accounts/default/apiKeys/alice"})
	require.NoError(t, json.Unmarshal([]byte(check("key.proof", "checkpoint", logKey).ok(t)), &made))
	require.Equal(t, "accounts/default/apiKeys/alice", made.Events[0].Resource)
	requireAttributes(t, made, object{"ce-type": "apiKey.created.v1", "ce-clientaddress": "127.0.0.1",
		"ce-actor": admin})

	refused := func(why, bundle, since, key string) {
		t.Helper()
		o := check(bundle, since, key)
		require.NotZero(t, o.code, "%s\n%s", why, o.stdout)
		require.Empty(t, o.stdout)
		require.Contains(t, o.stderr, why)
	}
	refused("REWRITTEN", "rewritten.proof", "checkpoint", logKey)
	refused("does not prove that the log still has", "mallory.proof", "checkpoint", logKey)
	refused("does not prove that the log still has", "deployment.proof", "checkpoint-of-today", logKey)
	refused("verify the checkpoint", "deployment.proof", "checkpoint", otherKey)
	change := func(name, from, to string) string {
		data := string(testutil.ReadFile(t, file(name)))
		require.Contains(t, data, from)
		require.NoError(t, os.WriteFile(file("changed"), []byte(strings.ReplaceAll(data, from, to)), 0o600))
		return "changed"
	}
	for from, to := range map[string]string{"apiKeys/alice": "apiKeys/bruce", "127.0.0.1": "127.0.0.2",
		"deployments.polite": "deployments.rudely", "anneal-base": "other-base", `"value":"20`: `"value":"19`} {
		refused("NOT valid", change("deployment.proof", from, to), "checkpoint", logKey)
	}
	refused("verify the checkpoint", "deployment.proof", change("checkpoint", "\n"+sizeOf(t, checkpoint)+"\n", "\n1\n"),
		logKey)
	refusesOtherParts(t, file, func(bundle string) { refused("NOT valid", bundle, "checkpoint", logKey) })
	for range 20 {
		data := testutil.ReadFile(t, file("deployment.proof"))
		data[random.IntN(len(data)-1)] ^= 1 << random.IntN(7)
		require.NoError(t, os.WriteFile(file("changed"), data, 0o600))
		refused("NOT valid", "changed", "checkpoint", logKey)
	}
}

// refusesOtherParts replaces each part of the auditor's bundle with that of another bundle of the same
// log, and with that of a rewritten log.
func refusesOtherParts(t *testing.T, file func(string) string, refused func(bundle string)) {
	read := func(name string) (parts map[string]json.RawMessage) {
		require.NoError(t, json.Unmarshal(testutil.ReadFile(t, file(name)), &parts))
		return parts
	}
	for _, other := range []string{"key.proof", "rewritten.proof"} {
		for part, content := range read(other) {
			own := read("deployment.proof")
			if string(own[part]) == string(content) {
				continue
			}
			bundle := func() string {
				return fmt.Sprintf(`{"format":%s,"event":%s,"growth":%s,"proof":%s}`, own["format"], own["event"], own["growth"],
					own["proof"])
			}
			require.JSONEq(t, string(testutil.ReadFile(t, file("deployment.proof"))), bundle())
			own[part] = content
			require.NoError(t, os.WriteFile(file("changed"), []byte(bundle()), 0o600))
			refused("changed")
		}
	}
}

// madeBy creates an API key and, with it, the deployment polite.
func madeBy(s *plane, key string) {
	made := s.user().must(http.MethodPost, "/apiKeys", object{"apiKeyId": key,
		"apiKey": object{"displayName": key, "role": "user"}})
	s.as("default", made["key"].(string)).must(http.MethodPost, "/deployments?deploymentId=polite",
		object{"baseModel": baseModel})
}

// sizeOf returns the number of events of a checkpoint.
func sizeOf(t *testing.T, checkpoint string) string {
	return strings.Split(string(testutil.ReadFile(t, checkpoint)), "\n")[1]
}

func requireAttributes(t *testing.T, made checkedBundle, attributes object) {
	t.Helper()
	for name, value := range attributes {
		require.Equal(t, value, made.Events[0].Attributes[name], name)
	}
}
