package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/workers/protocol"
)

// TestFailedSyncOfStartedAttempts checks that the file of started attempts is written again after a
// failed fdatasync, because the kernel may have dropped what was not written.
func TestFailedSyncOfStartedAttempts(t *testing.T) {
	dir := t.TempDir()
	s := &startedAttempts{path: filepath.Join(dir, "begun.jsonl"), earlierDir: filepath.Join(dir, "begun")}
	require.NoError(t, s.open())
	t.Cleanup(s.close)
	require.NoError(t, s.add(protocol.TrainAssignment{Job: "accounts/a/jobs/j", Attempt: 1}))
	unsynced, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // /dev/null accepts writes, but fdatasync fails on it
	require.NoError(t, err)
	require.NoError(t, s.file.Close())
	s.file = unsynced
	require.Error(t, s.add(protocol.TrainAssignment{Job: "accounts/a/jobs/j", Attempt: 2}))
	require.NoError(t, s.add(protocol.TrainAssignment{Job: "accounts/a/jobs/j", Attempt: 3}))
	after := &startedAttempts{path: s.path, earlierDir: s.earlierDir}
	require.NoError(t, after.open())
	t.Cleanup(after.close)
	require.True(t, after.has(protocol.TrainAssignment{Job: "accounts/a/jobs/j", Attempt: 1}.ID()))
	require.True(t, after.has(protocol.TrainAssignment{Job: "accounts/a/jobs/j", Attempt: 3}.ID()))
}
