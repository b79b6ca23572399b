package disk_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/disk"
)

func TestWriteNew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	text := strings.Repeat("content", 100_000)
	require.NoError(t, disk.WriteNew(path, []byte(text)))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, text, string(data))
	require.ErrorIs(t, disk.WriteNew(path, nil), os.ErrExist)
	require.ErrorIs(t, disk.WriteNew(filepath.Join(path, "below"), nil), syscall.ENOTDIR)
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, disk.WriteNew(empty, nil))
	require.FileExists(t, empty)
}

func TestRename(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	require.ErrorIs(t, disk.Rename(from, to), os.ErrNotExist)
	for _, text := range []string{"new", "replaced"} {
		require.NoError(t, disk.WriteNew(from, []byte(text)))
		require.NoError(t, disk.Rename(from, to))
		data, err := os.ReadFile(to)
		require.NoError(t, err)
		require.Equal(t, text, string(data))
		require.NoFileExists(t, from)
	}
	require.NoError(t, disk.WriteNew(from, nil))
	require.ErrorIs(t, disk.Rename(from, t.TempDir()), syscall.EISDIR)
}
