package disk_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/disk"
)

// TestSpread checks that a directory is usable after Spread, also if Spread is repeated, or its
// file system has no such attribute, or there is no directory.
func TestSpread(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		disk.Spread(dir)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "a"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "a", "f"), nil, 0o600))
	}
	disk.Spread(filepath.Join(dir, "missing"))
}
