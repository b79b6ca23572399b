package datadir

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestLockOfDeletedFile checks that a lock is the one of the present lock file, if the former
// holder has deleted the file.
func TestLockOfDeletedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "context.json")
	release, err := LockFile(path)
	require.NoError(t, err)
	next := make(chan func(), 1)
	go func() {
		release, err := LockFile(path) // may begin before or after the file is deleted
		if err == nil {
			next <- release
		}
		close(next)
	}()
	require.NoError(t, os.Remove(path+".lock"))
	release()
	release = <-next
	require.NotNil(t, release)
	file, err := os.Open(path + ".lock")
	require.NoError(t, err)
	defer file.Close()
	require.ErrorIs(t, unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
	release()
	require.NoError(t, unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB))
}
