package main_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

const rollouts = "accounts/default/deployments/rollouts"

// scored creates a dataset of trainer samples that reward one response over another.
func (c caller) scored(id, liked, disliked string) {
	c.t.Helper()
	var rows strings.Builder
	for range 6 {
		sample := func(answer string, score float64) object {
			return object{"accuracy": score,
				"messages": []object{{"role": "user", "content": "Packing code for 15 pink chairs, customer Rosa"},
					{"role": "assistant", "content": answer}}}
		}
		row := testutil.Marshal(c.t, object{"samples": []object{sample(liked, 1), sample(disliked, 0)}})
		rows.Write(append(row, '\n'))
	}
	c.must(http.MethodPost, "/datasets", object{"datasetId": id, "dataset": object{}})
	status, answer, err := c.upload(id, []byte(rows.String()))
	require.NoError(c.t, err)
	require.Equal(c.t, http.StatusOK, status, "%v", answer)
	c.until("/datasets/"+id, "state", "READY")
}

// continuousClients send requests to a deployment repeatedly and record each response that differs
// from the one before.
type continuousClients struct {
	mu    sync.Mutex
	texts [][]string // responses of each client
	count int
}

// start sends requests from a number of clients until stop is called.
func (a *continuousClients) start(t *testing.T, user caller, clients int) (stop func()) {
	over := make(chan struct{})
	var all sync.WaitGroup
	a.texts = make([][]string, clients)
	for i := range clients {
		all.Go(func() {
			for {
				status, answer, err := user.complete(rollouts, "Packing code for 15 pink chairs, customer Rosa")
				if err != nil || status != http.StatusOK {
					t.Error(fmt.Errorf("a request failed: %d %v, %w", status, answer, err))
					return
				}
				text := textOf(t, answer)
				a.mu.Lock()
				a.count++
				if n := len(a.texts[i]); n == 0 || a.texts[i][n-1] != text {
					a.texts[i] = append(a.texts[i], text)
				}
				a.mu.Unlock()
				select {
				case <-over:
					return
				default:
				}
			}
		})
	}
	return sync.OnceFunc(func() { close(over); all.Wait() })
}

// newest waits until the last response of every client is text.
func (a *continuousClients) newest(t *testing.T, text string) {
	t.Helper()
	eventually(t, "every client receives a response of the newest weights", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return !slices.ContainsFunc(a.texts,
			func(texts []string) bool { return len(texts) == 0 || texts[len(texts)-1] != text })
	})
}

// TestTrainerWeightsAreHotLoaded checks that a trainer's rollout deployment serves the trained
// weights while it gets requests. No request fails. Each client receives responses of the weights
// in the order in which they were trained, and no response is generated with two versions of the
// weights. This also holds after a worker is killed.
func TestTrainerWeightsAreHotLoaded(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "--lost-after", "6s")
	user, recorder := f.user(), f.tail()
	f.work("one")
	f.work("two")
	eventually(t, "both nodes are READY",
		func() bool { return f.nodes()["one"] == "READY" && f.nodes()["two"] == "READY" })
	user.deploy("rollouts", object{"baseModel": baseModel, "minReplicaCount": 2, "enableHotLoad": true})
	user.scored("first", "PC-15", "no")
	user.scored("second", "nothing", "PC-15")
	base := user.completionText(rollouts)
	want := []string{base}
	a := &continuousClients{}
	stop := a.start(t, user, 4)
	defer stop()
	a.newest(t, base)

	user.must(http.MethodPost, "/rlorTrainerJobs?rlorTrainerJobId=live",
		object{"keepAlive": true, "dataset": "accounts/default/datasets/first",
			"rolloutDeploymentName": rollouts,
			"trainingConfig":        object{"baseModel": baseModel, "outputModel": "live-1", "epochs": 4, "learningRate": 0.01}})
	shown := user.until("/deployments/rollouts", "hotLoad.served.model", "accounts/default/models/live-1")
	require.Equal(t, "accounts/default/rlorTrainerJobs/live", at(shown, "hotLoad.served.job"))
	require.Positive(t, at(shown, "hotLoad.served.position"))
	require.Equal(t, "OK", at(shown, "hotLoad.status.code"))
	want = append(want, user.completionText(rollouts))
	a.newest(t, want[1])

	user.must(http.MethodPost, "/rlorTrainerJobs/live:executeTrainStep",
		object{"dataset": "accounts/default/datasets/second", "outputModel": "live-2"})
	recorder.awaitEvent(t, "accounts/default/rlorTrainerJobs/live", "rlorTrainerJob.started.v1", 2)
	user.until("/deployments/rollouts", "hotLoad.served.model", "accounts/default/models/live-2")
	want = append(want, user.completionText(rollouts))
	a.newest(t, want[2])
	stop()
	require.NotEqual(t, want[0], want[1])
	require.NotEqual(t, want[1], want[2])
	for _, texts := range a.texts {
		require.Equal(t, want, texts, "each client receives responses of all weights, one after the other")
	}
	t.Logf("%d requests, none failed", a.count)

	// A worker is killed while the next weights are being loaded.
	user.must(http.MethodPost, "/rlorTrainerJobs/live:executeTrainStep",
		object{"dataset": "accounts/default/datasets/first", "outputModel": "live-3"})
	recorder.awaitEvent(t, rollouts, "deployment.weightsOffered.v1",
		count(kinds(recorder.all(), rollouts), "deployment.weightsOffered.v1")+1)
	f.workers["one"].kill()
	user.until("/deployments/rollouts", "hotLoad.served.model", "accounts/default/models/live-3")
	newest := user.completionText(rollouts)
	f.work("one")
	eventually(t, "there are two replicas again",
		func() bool { return at(user.get("/deployments/rollouts"), "replicaStats.readyReplicaCount") == 2.0 })
	for range 8 {
		require.Equal(t, newest, user.completionText(rollouts), "the later replica has the newest weights")
	}
	require.GreaterOrEqual(t, count(kinds(recorder.all(), rollouts), "deployment.weightsSwapped.v1"), 3)
	require.Contains(t, f.run("log", "verify").ok(t), "equal")
	f.checkEvents()
}
