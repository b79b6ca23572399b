package torch

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheTrainerReadsNoKeys runs a script in the trainer's place that looks for a key of ours.
func TestTheTrainerReadsNoKeys(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte("canary"), 0o600))
	_, err := standIn(t).Train(t.Context(), order(t, "peek "+key), &watcher{})
	require.ErrorContains(t, err, "saw: ")
	require.NotContains(t, err.Error(), "canary")
	require.NotContains(t, err.Error(), "as 0")
}

// TestNoLinkOfTheTrainerIsFollowed takes results in which a file is a link to a key of ours.
func TestNoLinkOfTheTrainerIsFollowed(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte("canary"), 0o600))
	o := order(t, "link "+key)
	_, err := standIn(t).Train(t.Context(), o, &watcher{})
	require.ErrorContains(t, err, "model is neither a file nor a folder")
	require.NoDirExists(t, filepath.Join(o.WorkDir, "result"))
}
