package main_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPausedServerLosesNoNodes checks that a server that is paused for longer than --lost-after, as
// when its machine is migrated, does not mark a healthy node as lost when it continues, and still
// marks a node whose worker is killed.
func TestPausedServerLosesNoNodes(t *testing.T) {
	f := newFleet(t, "--lost-after", "3s")
	recorder := f.tail()
	f.work("one")
	f.work("two")
	require.NoError(t, f.cmd.Process.Signal(syscall.SIGSTOP))
	<-time.After(7 * time.Second) // the pause itself
	require.NoError(t, f.cmd.Process.Signal(syscall.SIGCONT))
	eventually(t, "the server responds again", func() bool { return len(f.nodes()) == 2 })
	f.workers["two"].kill()
	recorder.awaitEvent(t, "accounts/system/nodes/two", "node.lost.v1", 1)
	require.NotContains(t, kinds(recorder.all(), "accounts/system/nodes/one"), "node.lost.v1")
	require.Equal(t, "READY", f.nodes()["one"])
	require.Zero(t, f.workers["one"].end())
	require.Zero(t, f.end())
}
