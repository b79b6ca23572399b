package main_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// completionLoad sends completions to a deployment from several clients until it ends.
type completionLoad struct {
	user     caller
	model    string
	answered atomic.Int64 // complete responses
	cut      atomic.Int64 // streams that ended after their first chunk
	clients  sync.WaitGroup
	stop     context.CancelFunc
}

func loadCompletions(user caller, deployment string, clients int) *completionLoad {
	ctx, stop := context.WithCancel(user.t.Context())
	l := &completionLoad{user: user, model: "accounts/default/deployments/" + deployment, stop: stop}
	for i := range clients {
		l.clients.Go(func() {
			for n := 0; ctx.Err() == nil && !user.t.Failed(); n++ {
				l.send(i%2 == 0, fmt.Sprintf("Packing code %d for customer %d", n, i))
			}
		})
	}
	return l
}

func (l *completionLoad) end() {
	l.stop()
	l.clients.Wait()
}

// send sends one completion. A response that is not streamed must succeed. A stream may end with an
// error after its first chunk only.
func (l *completionLoad) send(stream bool, prompt string) {
	t := l.user.t
	res, err := l.user.send(http.MethodPost, "//inference/v1/completions", object{"model": l.model, "prompt": prompt,
		"max_tokens": 40, "temperature": 0, "ignore_eos": true, "stream": stream})
	if !assert.NoError(t, err) {
		return
	}
	defer res.Body.Close()
	chunks, last := 0, ""
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if data, found := strings.CutPrefix(lines.Text(), "data: "); found || !stream {
			chunks, last = chunks+1, data
			if !stream {
				last = lines.Text()
			}
		}
	}
	switch {
	case !assert.NoError(t, lines.Err()), !assert.Equal(t, http.StatusOK, res.StatusCode, "%s", last):
	case !stream, last == "[DONE]":
		l.answered.Add(1)
	case assert.Greater(t, chunks, 1, "a stream fails only after its first chunk: %s", last):
		l.cut.Add(1)
	}
}

// more waits for n further complete responses.
func (l *completionLoad) more(n int64) {
	l.user.t.Helper()
	want := l.answered.Load() + n
	eventually(l.user.t, "more requests are answered", func() bool {
		return l.answered.Load() >= want || l.user.t.Failed()
	})
}

// TestKilledWorkerFailsNoRequest kills one of two workers with a replica each under a steady load:
// only streams that have begun fail, and other requests succeed long before the node is marked as
// lost. Then it kills the other worker: requests wait until the replica is placed on a new worker.
func TestKilledWorkerFailsNoRequest(t *testing.T) {
	f := newFleet(t, "--lost-after", "15s")
	user, recorder := f.user(), f.tail()
	const device = "VENDOR_A_L4_24GB"
	f.work("one", "--accelerators", device+"=1")
	f.work("two", "--accelerators", device+"=1")
	user.must(http.MethodPost, "/deployments?deploymentId=d", object{"baseModel": baseModel, "minReplicaCount": 2,
		"maxReplicaCount": 2, "acceleratorType": device, "acceleratorCount": 1})
	eventually(t, "both replicas are ready", func() bool {
		return at(user.get("/deployments/d"), "replicaStats.readyReplicaCount") == 2.0
	})
	load := loadCompletions(user, "d", 6)
	defer load.end()
	load.more(20)
	f.workers["one"].kill()
	load.more(60)
	require.NotContains(t, kinds(recorder.all(), "accounts/system/nodes/one"), "node.lost.v1",
		"requests do not wait until the node is lost")
	recorder.awaitEvent(t, "accounts/system/nodes/one", "node.lost.v1", 1)
	load.more(20)
	require.LessOrEqual(t, load.cut.Load(), int64(3), "the streams of the killed worker")

	f.workers["two"].kill()
	f.work("three", "--accelerators", device+"=1")
	load.more(20)
	load.end()
	require.Zero(t, f.workers["three"].end())
	require.Zero(t, f.end())
}
