package main_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

// TestWatchPrintsWhyADeploymentWaits checks that a watch of a deployment that cannot be placed
// prints the cause once. When the watch is interrupted, it prints how to watch the deployment
// again.
func TestWatchPrintsWhyADeploymentWaits(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir())
	s.joined() // a missing node would be the first cause
	log := logFor(t, "anneal deployment create")
	watch := launch(t, log, "deployment", "create", "afar", "--model", "anneal-base", "--accelerator-type",
		"VENDOR_A_H100_80GB",
		"--precision", "BF16", "--watch", "--context", filepath.Join(s.dir, "context.json"))
	log.awaits(watch, "1 of 1 replicas are waiting for a node: ")
	require.NotZero(t, watch.end())
	require.Equal(t, 1, strings.Count(log.output(), "waiting for a node: "))
	require.Contains(t, log.output(),
		"The deployment continues. Run `anneal deployment watch afar` to show its progress again, "+
			"or `anneal deployment delete afar` to delete it.")
	require.Equal(t, "BF16", s.user().get("/deployments/afar")["precision"])
}

// awaits waits until a process has written a line that begins with prefix.
func (l *transcript) awaits(p *process, prefix string) {
	p.t.Helper()
	deadline := time.After(patience)
	for {
		_, found, grown := l.line(prefix)
		if found {
			return
		}
		select {
		case <-grown:
		case <-p.exited:
			if _, found, _ := l.line(prefix); found {
				return
			}
			require.FailNow(p.t, "the process ended before it wrote "+prefix)
		case <-deadline:
			p.stuck("wrote " + prefix)
		}
	}
}

// TestWorkerReportsAnUnreachableServer checks that a worker that cannot reach the server reports
// the failure immediately, and that it retries.
func TestWorkerReportsAnUnreachableServer(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "node.token")
	require.NoError(t, os.WriteFile(token, []byte("ant__"+strings.Repeat("0", 64)), 0o600))
	log := logFor(t, "anneal work")
	worker := launch(t, log, "work", "--join", "nats://"+freePort(t), "--token-file", token, "--data", t.TempDir())
	log.awaits(worker, "time=") // long before the worker gives up
	require.Contains(t, log.output(), "cannot reach the server; retrying")
	require.NotZero(t, worker.end())
}

// TestFollowingEventsBeginsNow checks that following events shows new events, and where the stream
// begins and ends.
func TestFollowingEventsBeginsNow(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir())
	s.joined() // the worker's joining is also an event
	context := filepath.Join(s.dir, "context.json")
	log := logFor(t, "anneal events")
	follow := launch(t, log, "events", "--follow", "--context", context)
	log.awaits(follow, "following from position ")
	s.run("dataset", "create", "seen").ok(t)
	eventually(t, "the dataset's event is shown",
		func() bool { return strings.Contains(follow.stdout.output(), "dataset.created.v1") })
	require.Zero(t, follow.end())

	first, _, _ := log.line("following from position ")
	from, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(first, "following from position "),
		"; --from begin also shows earlier events"))
	require.NoError(t, err)
	require.Greater(t, from, 1)
	require.Regexp(t, fmt.Sprintf("^%d ", from), follow.stdout.output(), "no earlier events")
	require.Regexp(t, `(?m)^the last event has position \d+; --from \d+ continues after it$`, log.output())

	all := launch(t, logFor(t, "anneal events --from begin"), "events", "--follow", "--from", "begin", "--context",
		context)
	all.waitForLine("3 ") // earlier events are of another account
	require.Zero(t, all.end())
}

// TestInterruptedWatches checks that an interrupted watch prints that the operation continues, also
// while a request is in progress.
func TestInterruptedWatches(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args    []string
		item    object
		closing string
	}{
		"a job": {[]string{"sft", "watch", "j"},
			object{"name": "accounts/a/supervisedFineTuningJobs/j", "state": "JOB_STATE_RUNNING"},
			"The job continues. Run `anneal sft watch j` to show its progress again, or `anneal sft cancel j` to stop it."},
		"a DPO job": {[]string{"dpo", "watch", "j"}, object{"name": "accounts/a/dpoJobs/j", "state": "JOB_STATE_RUNNING"},
			"The job continues. Run `anneal dpo watch j`"},
		"a deployment": {[]string{"deployment", "watch", "d"},
			object{"name": "accounts/a/deployments/d", "state": "CREATING"},
			"The deployment continues. Run `anneal deployment watch d`"},
		"an addon": {[]string{"addon", "load", "x", "--model", "x", "--deployment", "d", "--watch"},
			object{"name": "accounts/a/deployedModels/x", "state": "DEPLOYING"},
			"The addon is still being loaded. Run `anneal addon get x`"},
		"a copy": {[]string{"model", "prepare", "m", "--precision", "BF16", "--watch"},
			object{"name": "accounts/a/models/m", "precision": "F32"},
			"The copy is still being written. To wait for it again, run `anneal model prepare m --precision BF16 --watch`"},
	} {
		t.Run(name, func(t *testing.T) {
			held := make(chan struct{}, 1)
			var gets atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet && gets.Add(1) == 2 { // the first read gets a response, the second never
					held <- struct{}{}
					<-r.Context().Done()
					return
				}
				_ = json.NewEncoder(w).Encode(test.item) // the client reports what is missing
			}))
			defer server.Close()
			file := filepath.Join(t.TempDir(), "context.json")
			text := testutil.Marshal(t, contextFile{Address: server.URL, Account: "a", APIKey: "k"})
			require.NoError(t, os.WriteFile(file, text, 0o600))
			log := logFor(t, "anneal "+name)
			watch := launch(t, log, append(test.args, "--context", file)...)
			select {
			case <-held:
			case <-watch.exited:
			case <-time.After(patience):
				watch.stuck("sent a second request")
			}
			require.Equal(t, 130, watch.end())
			require.Contains(t, log.output(), test.closing)
			require.NotContains(t, log.output(), "anneal: ", "the exit code reports the interruption")
		})
	}
}
