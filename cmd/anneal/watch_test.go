package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Who watches a deployment that finds no place reads why, once, and at the end
// how to see it again.
func TestWatchTellsWhyADeploymentHasNoPlace(t *testing.T) {
	s := serve(t, t.TempDir())
	log := logFor(t, "anneal deployment create")
	watch := launch(t, log, "deployment", "create", "afar", "--model", "anneal-base", "--accelerator-type", "VENDOR_A_H100_80GB",
		"--precision", "BF16", "--watch", "--context", filepath.Join(s.dir, "context.json"))
	log.awaits(watch, "1 of 1 replicas wait for a place on a node: ")
	require.NotZero(t, watch.end())
	require.Equal(t, 1, strings.Count(log.whole(), "wait for a place on a node: "))
	require.Contains(t, log.whole(), "The deployment goes on; `anneal deployment watch afar` shows it again, `anneal deployment delete afar` removes it.")
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
			require.FailNow(p.t, "the process ended before it wrote "+prefix)
		case <-deadline:
			p.stuck("wrote " + prefix)
		}
	}
}

// A worker that nobody answers says so at once, and that it tries again.
func TestWorkerTellsThatItCannotReachTheServer(t *testing.T) {
	token := filepath.Join(t.TempDir(), "node.token")
	require.NoError(t, os.WriteFile(token, []byte("token"), 0o600))
	log := logFor(t, "anneal work")
	worker := launch(t, log, "work", "--join", "nats://"+freePort(t), "--token-file", token, "--data", t.TempDir())
	log.awaits(worker, "time=") // long before it gives up
	require.Contains(t, log.whole(), "cannot reach the server, and tries again")
	require.NotZero(t, worker.end())
}
