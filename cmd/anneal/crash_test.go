package main_test

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"strconv"
	"testing"
	"time"

	"anneal/internal/testutil"

	"github.com/stretchr/testify/require"
)

// Each job of the crash tests takes crashSteps steps: long enough to be interrupted.
const (
	crashRows   = 60
	crashEpochs = 4
	crashSteps  = crashRows / 4 * crashEpochs
)

// crashes returns how often the control plane is killed: ANNEAL_CRASHES, 10, or 4 with -short.
func crashes(t *testing.T) int {
	t.Helper()
	otherwise := 10
	if testing.Short() {
		otherwise = 4
	}
	return testutil.Variable(t, "ANNEAL_CRASHES", otherwise)
}

// TestControlPlaneIsKilled kills the control plane at random points, together with its local
// worker. It checks that every change that the control plane acknowledged exists after every
// restart, and that all work completes.
func TestControlPlaneIsKilled(t *testing.T) {
	t.Parallel()
	// Fixed addresses let subscribers reconnect after a restart.
	s := serve(t, t.TempDir(), "--listen", freePort(t), "--nats-listen", freePort(t))
	killed := crashes(t)
	l := underLoad(t, s, killed, 3+killed/5)
	checkComplete(t, s, l)
	require.Zero(t, s.end())
	require.Contains(t, s.run("log", "verify").ok(t), "snapshot")
}

// TestControlPlaneIsKilledButNotTheWorker checks that a worker on another machine survives a crash
// of the control plane: its training is not interrupted, and the reports that it makes during the
// crash are not lost.
func TestControlPlaneIsKilledButNotTheWorker(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.work("survivor")
	killed := (crashes(t) + 2) / 3
	l := underLoad(t, f.plane, killed, 3+killed/5)
	checkComplete(t, f.plane, l)
	for _, id := range l.jobIDs() {
		for _, h := range f.user().list("/supervisedFineTuningJobs/"+id+"/events", "events") {
			require.NotEqual(t, "supervisedFineTuningJob.requeued.v1", h["type"], "%s was interrupted: %v", id, h["data"])
		}
	}
	select {
	case <-f.workers["survivor"].exited:
		require.Fail(t, "the worker did not survive")
	default:
	}
	require.Zero(t, f.workers["survivor"].end())
	require.Zero(t, f.end())
}

// underLoad kills the control plane a number of times while clients send requests, and leaves it
// running. It returns the ended load.
func underLoad(t *testing.T, s *plane, times, jobs int) *load {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	user := s.user()
	user.dataset("shared", crashRows)
	user.must(http.MethodPost, "/deployments?deploymentId=awake", object{"baseModel": baseModel, "minReplicaCount": 1})
	l := startLoad(t, user, jobs)
	l.resume()
	for n := range times {
		if random.IntN(4) == 0 {
			killStarting(s, random)
		} else {
			l.awaitAcks(t, s, 1+random.IntN(40))
			s.kill()
		}
		l.pause()
		s.start()
		l.check(t, user, "after crash "+strconv.Itoa(n+1))
		l.resume()
	}
	l.awaitAcks(t, s, 10)
	l.end()
	acks, _ := l.count()
	t.Logf("killed %d times, %d operations acknowledged, %d jobs", times, acks, len(l.jobIDs()))
	return l
}

// killStarting kills the control plane, starts it, and kills it again at a random point of the
// start.
func killStarting(s *plane, random *rand.Rand) {
	s.kill()
	s.launch()
	select {
	case <-time.After(time.Duration(random.IntN(400)) * time.Millisecond):
	case <-s.exited:
	}
	s.kill()
}

// awaitAcks waits until the server has acknowledged a number of further operations.
func (l *load) awaitAcks(t *testing.T, s *plane, more int) {
	t.Helper()
	begin, grown := l.count()
	deadline := time.After(patience)
	for now := begin; now < begin+more; now, grown = l.count() {
		select {
		case <-grown:
		case <-s.exited:
			require.FailNow(t, "the server ended by itself", "exit %d\n%s", s.code, s.log)
		case <-deadline:
			s.stuck("acknowledged anything more")
		}
	}
}

// checkComplete waits until all work is complete, and checks that nothing is missing, stuck or executed
// twice.
func checkComplete(t *testing.T, s *plane, l *load) {
	t.Helper()
	user := s.user()
	l.check(t, user, "at the end")
	require.NotEmpty(t, l.jobIDs())
	for _, id := range l.jobIDs() {
		user.until("/supervisedFineTuningJobs/"+id, "state", "JOB_STATE_COMPLETED")
		requireCompleteCurve(t, user.lossCurve(id), crashSteps)
		require.Equal(t, "READY", user.get("/models/" + id)["state"])
	}
	for _, item := range user.list("/deployments", "deployments") {
		require.Equal(t, "READY", item["state"], "%v", item)
	}
	user.until("/deployments/awake", "replicaStats.readyReplicaCount", 1.0)
	streamsTheSame(t, user, baseModel)
	eventually(t, "allocations of finished work are released", func() bool {
		var nodes []struct{ Allocations []any }
		require.NoError(t, json.Unmarshal([]byte(s.run("node", "list", "-o", "json").ok(t)), &nodes))
		held := 0
		for _, node := range nodes {
			held += len(node.Allocations)
		}
		return held == 1
	})
	history := user.history()
	t.Logf("%d events", len(history))
	checkInvariants(t, s.tail().upTo(t, positionOf(t, history[len(history)-1])))
	require.Contains(t, s.run("log", "verify").ok(t), "running server")
}
