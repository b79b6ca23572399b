package main_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

// A fleet is a control plane without a local worker, and separate workers.
type fleet struct {
	*plane
	token   string // path of the token file
	workers map[string]*process
	dirs    map[string]string
}

// newFleet starts a control plane at a fixed address, from which workers download data also after a
// restart.
func newFleet(t *testing.T, args ...string) *fleet {
	t.Helper()
	s := serve(t, t.TempDir(), append([]string{"--worker=false", "--listen", freePort(t), "--nats-listen", freePort(t)},
		args...)...)
	token := filepath.Join(t.TempDir(), "node.token")
	require.NoError(t, os.WriteFile(token, []byte(s.run("node", "token", "--data", s.dir).ok(t)), 0o600))
	return &fleet{plane: s, token: token, workers: map[string]*process{}, dirs: map[string]string{}}
}

// work starts a worker (again) in its directory.
func (f *fleet) work(id string, args ...string) {
	f.t.Helper()
	f.workIn(nil, id, args...)
}

// workIn is like work, with environment variables in addition to those of the tests.
func (f *fleet) workIn(env []string, id string, args ...string) {
	f.t.Helper()
	if f.dirs[id] == "" {
		f.dirs[id] = f.t.TempDir()
	}
	args = append([]string{"work", "--join", f.context.NATSURL, "--token-file", f.token, "--node-id", id, "--data",
		f.dirs[id]}, args...)
	f.workers[id] = launchIn(f.t, logFor(f.t, "anneal work "+id), env, args...)
	f.workers[id].waitForLine("node " + id + " joined ")
	// Until the first heartbeat is recorded, work that names no accelerator type gets the default type.
	require.Eventually(f.t, func() bool { return f.nodes()[id] == "READY" }, patience, 10*time.Millisecond)
}

// nodes returns the state of every node, by ID, as the operator reads it.
func (f *fleet) nodes() map[string]string {
	f.t.Helper()
	states := map[string]string{}
	table := f.run("node", "list", "--data", f.dir).ok(f.t)
	for i, line := range strings.Split(strings.TrimSpace(table), "\n") {
		if fields := strings.Fields(line); i > 0 && len(fields) > 1 {
			states[fields[0]] = fields[1]
		}
	}
	return states
}

// TestWorkerIsKilledWhileItTrains checks that a job survives the loss of the machine that trains
// it, and that its loss curve has no gap.
func TestWorkerIsKilledWhileItTrains(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "--lost-after", "6s")
	user := f.user()
	recorder := f.tail()
	f.work("one")
	f.work("two")
	eventually(t, "both nodes are READY",
		func() bool { return f.nodes()["one"] == "READY" && f.nodes()["two"] == "READY" })
	user.dataset("codes", 100)

	const epochs, steps = 24, 24 * 25
	user.job("long", "codes", epochs)
	const name = "accounts/default/supervisedFineTuningJobs/long"
	saved := recorder.awaitEvent(t, name, "supervisedFineTuningJob.checkpointed.v1", 1)
	started := recorder.awaitEvent(t, name, "supervisedFineTuningJob.started.v1", 1)
	first := nodeOf(t, started)
	f.workers[first].kill()
	killed := time.Now()

	requeued := recorder.awaitEvent(t, name, "supervisedFineTuningJob.requeued.v1", 1)
	require.EqualValues(t, 1, requeued.data["attempt"])
	again := recorder.awaitEvent(t, name, "supervisedFineTuningJob.started.v1", 2)
	require.EqualValues(t, 2, again.data["attempt"])
	second := nodeOf(t, again)
	require.NotEqual(t, first, second, "it continues on the other node")
	user.until("/supervisedFineTuningJobs/long", "state", "JOB_STATE_COMPLETED")
	require.Equal(t, "LOST", f.nodes()[first])

	rows := user.lossCurve("long")
	requireCompleteCurve(t, rows, steps)
	checkpoint, _ := saved.data["step"].(float64)
	require.Positive(t, checkpoint)
	require.True(t, timeOf(t, rows[int(checkpoint)-1]).Before(killed), "steps before the checkpoint are not trained again")
	require.True(t, timeOf(t, rows[steps-1]).After(killed))
	states := kinds(recorder.all(), name)
	require.Less(t, slices.Index(states, "supervisedFineTuningJob.requeued.v1"),
		slices.Index(states, "supervisedFineTuningJob.completed.v1"))
	require.Equal(t, 1, count(states, "supervisedFineTuningJob.completed.v1"))

	// The lost worker restarts with its directory, and is READY again.
	f.work(first)
	eventually(t, "the killed worker is back", func() bool { return f.nodes()[first] == "READY" })
	require.Zero(t, f.workers[second].end(), "a worker ends cleanly")
	eventually(t, "a worker that deregisters is not waited for", func() bool { return f.nodes()[second] == "LOST" })
	user.job("short", "codes", 1)
	user.until("/supervisedFineTuningJobs/short", "state", "JOB_STATE_COMPLETED")
	user.deploy("long", object{"baseModel": "accounts/default/models/long"})
	streamsTheSame(t, user, "accounts/default/models/long")
	require.Contains(t, f.run("log", "verify").ok(t), "equal")
	require.Zero(t, f.end())
}

// TestSimulatedAccelerators checks that simulated devices are allocated, and that a deployment that
// requires more of them waits.
func TestSimulatedAccelerators(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir(), "--accelerators", "VENDOR_A_H100_80GB=2", "--placement-timeout", "5s")
	s.joined() // otherwise no replica could be placed
	user := s.user()
	wants := func(id string, accelerators int) {
		user.must(http.MethodPost, "/deployments?deploymentId="+id, object{"baseModel": baseModel, "minReplicaCount": 1,
			"acceleratorType": "VENDOR_A_H100_80GB", "acceleratorCount": accelerators})
	}
	wants("fits", 2)
	user.until("/deployments/fits", "state", "READY")
	wants("waits", 1)
	failed := user.get("/deployments/waits")
	eventually(t, "a deployment that cannot be placed fails with the reason", func() bool {
		failed = user.get("/deployments/waits")
		return failed["state"] == "FAILED"
	})
	require.Contains(t, at(failed, "status.message"), "VENDOR_A_H100_80GB")
}

// awaitEvent waits for the nth event of a type on a resource, and returns the event.
func (e *recorder) awaitEvent(t testing.TB, subject, kind string, nth int) (found receivedEvent) {
	t.Helper()
	eventually(t, subject+": event "+strconv.Itoa(nth)+" of type "+kind, func() bool {
		n := 0
		for _, h := range e.all() {
			if h.subject == subject && h.kind == kind {
				if n++; n == nth {
					found = h
					return true
				}
			}
		}
		return false
	})
	return found
}

func nodeOf(t testing.TB, started receivedEvent) string {
	t.Helper()
	nodes, _ := started.data["nodes"].([]any)
	require.Len(t, nodes, 1, "%v", started.data)
	return strings.TrimPrefix(nodes[0].(string), "accounts/system/nodes/")
}

func timeOf(t testing.TB, row object) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, row["time"].(string))
	require.NoError(t, err)
	return at
}

func count(all []string, one string) (n int) {
	for _, s := range all {
		if s == one {
			n++
		}
	}
	return n
}

// TestNodeIsRevoked checks that an enrolled node needs no token, that its name is reserved for it,
// and that its work continues on other nodes when the node is revoked.
func TestNodeIsRevoked(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.work("w1")
	listed := f.run("node", "list", "--data", f.dir).ok(t)
	require.Contains(t, listed, "ENROLLED")
	impostor := command(t, t.TempDir(), "work", "--join", f.context.NATSURL, "--token-file", f.token, "--node-id", "w1",
		"--data", t.TempDir())
	require.NotZero(t, impostor.code)
	require.Contains(t, impostor.stderr, "rejected node w1")

	require.Zero(t, f.workers["w1"].end())
	info := testutil.Stat(t, filepath.Join(f.dirs["w1"], "node.nkey"))
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	f.workers["w1"] = launch(t, logFor(t, "anneal work w1 without a token"), "work", "--join", f.context.NATSURL,
		"--node-id", "w1", "--data", f.dirs["w1"])
	f.workers["w1"].waitForLine("node w1 joined ")

	f.run("deployment", "create", "d", "--model", "anneal-base", "--watch").ok(t)
	f.run("node", "revoke", "w1", "--data", f.dir, "--reason", "sold").ok(t)
	require.Equal(t, map[string]string{"w1": "REVOKED"}, f.nodes())
	again := command(t, t.TempDir(), "work", "--join", f.context.NATSURL, "--node-id", "w1", "--data", t.TempDir())
	require.Contains(t, again.stderr, "has not enrolled yet")
	// The token with which the node enrolled is revoked as well.
	late := command(t, t.TempDir(), "work", "--join", f.context.NATSURL, "--token-file", f.token, "--node-id", "w2",
		"--data", t.TempDir())
	require.NotZero(t, late.code)
	require.NoError(t, os.WriteFile(f.token, []byte(f.run("node", "token", "--data", f.dir, "--expire", "1h").ok(t)),
		0o600))
	f.work("w2")
	f.run("deployment", "watch", "d").ok(t)
	eventually(t, "the replica is on the other node", func() bool {
		return strings.Contains(f.run("node", "get", "w2", "--data", f.dir).ok(t), "deployments/d")
	})
	f.run("complete", "--model", "accounts/default/deployments/d", "hello").ok(t)
	require.Equal(t, "REVOKED", f.nodes()["w1"])
}
