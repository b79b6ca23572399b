// Package testutil has helpers for tests. On an error they fail the test instead of returning the
// error.
package testutil

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"

	"github.com/stretchr/testify/require"
)

// TB has the methods of *testing.T, *testing.B and *rapid.T that the helpers call.
type TB interface {
	require.TestingT
	Helper()
}

// ReadFile returns the content of a file.
func ReadFile(t TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return content
}

// ReadDir returns the entries of a directory, sorted by name.
func ReadDir(t TB, path string) []os.DirEntry {
	t.Helper()
	entries, err := os.ReadDir(path)
	require.NoError(t, err)
	return entries
}

// Stat returns the file information of a file.
func Stat(t TB, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info
}

// Glob returns the files that match a pattern.
func Glob(t TB, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	require.NoError(t, err)
	return paths
}

// ReadAll reads r to its end.
func ReadAll(t TB, r io.Reader) []byte {
	t.Helper()
	content, err := io.ReadAll(r)
	require.NoError(t, err)
	return content
}

// Marshal returns a value as JSON.
func Marshal(t TB, value any) []byte {
	t.Helper()
	text, err := json.Marshal(value)
	require.NoError(t, err)
	return text
}
