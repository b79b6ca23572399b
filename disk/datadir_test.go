package disk

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/internal/testutil"
)

func TestLockDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "data")
	release, err := LockDir(dir)
	require.NoError(t, err)
	_, err = LockDir(dir)
	require.ErrorContains(t, err, "in use by process "+strconv.Itoa(os.Getpid()))
	assert.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	release()
	release, err = LockDir(dir)
	require.NoError(t, err, "unlocked, and of a supported version")
	release()
}

func TestLockDirAgainstAnotherProcess(t *testing.T) {
	if dir := os.Getenv("ANNEAL_TEST_LOCK"); dir != "" {
		_, err := LockDir(dir)
		require.ErrorContains(t, err, "in use by process "+os.Getenv("ANNEAL_TEST_OWNER"))
		return
	}
	dir := t.TempDir()
	release, err := LockDir(dir)
	require.NoError(t, err)
	defer release()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLockDirAgainstAnotherProcess$")
	child.Env = append(os.Environ(), "ANNEAL_TEST_LOCK="+dir, "ANNEAL_TEST_OWNER="+strconv.Itoa(os.Getpid()))
	output, err := child.CombinedOutput()
	require.NoError(t, err, string(output))
}

func TestLockDirVersions(t *testing.T) {
	tests := map[string]struct{ content, want string }{
		"current": {"3\n", ""},
		"older":   {"1\n", ""},
		"newer":   {"4\n", "newer program"},
		"a word":  {"hello", "does not contain a version"},
		"nothing": {"", "does not contain a version"},
		"zero":    {"0", "does not contain a version"},
	}
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "version"), []byte(test.content), 0o600))
			release, err := LockDir(dir)
			if test.want == "" {
				require.NoError(t, err)
				release()
				now := testutil.ReadFile(t, filepath.Join(dir, "version"))
				require.Equal(t, "3\n", string(now))
				return
			}
			require.ErrorContains(t, err, test.want)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "version"), []byte("1"), 0o600))
			release, err = LockDir(dir)
			require.NoError(t, err, "an error leaves no lock")
			release()
		})
	}
}
