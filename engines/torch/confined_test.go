package torch

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestScriptCannotReadKeys checks that a script cannot read a file of this process, and does not
// run as root.
func TestScriptCannotReadKeys(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte("canary"), 0o600))
	_, err := fakeTrainer(t).Train(t.Context(), request(t, "peek "+key), &watcher{})
	require.ErrorContains(t, err, "read: ")
	require.NotContains(t, err.Error(), "canary")
	require.NotContains(t, err.Error(), "as 0")
}

// TestLinksInResultsAreRejected checks that a result with a symbolic link to a file of this process
// is rejected.
func TestLinksInResultsAreRejected(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte("canary"), 0o600))
	o := request(t, "link "+key)
	_, err := fakeTrainer(t).Train(t.Context(), o, &watcher{})
	require.ErrorContains(t, err, "model is neither a file nor a directory")
	require.NoDirExists(t, filepath.Join(o.WorkDir, "result"))
}
