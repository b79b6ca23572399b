package main_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestContributing applies the changes that CONTRIBUTING.md shows, in an overlay of the source, and
// runs their test. A block with the path of an existing file is inserted after the line with the
// first event of its kind; any other is a new file.
func TestContributing(t *testing.T) {
	t.Parallel()
	const firstEvent = `"apiKey.created.v1":`
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for _, b := range blocksOf(readPage(t, "CONTRIBUTING.md")) {
		path, found := strings.CutPrefix(b.info, "go ")
		if !found {
			continue
		}
		text := b.text
		source, err := os.ReadFile(filepath.Join(root, path))
		if !errors.Is(err, fs.ErrNotExist) {
			require.NoError(t, err)
			before, after, found := strings.Cut(string(source), firstEvent)
			require.True(t, found, "%s has no line with %s", path, firstEvent)
			text = before + strings.TrimSpace(b.text) + "\n" + firstEvent + after
		}
		changed := filepath.Join(t.TempDir(), filepath.Base(path))
		require.NoError(t, os.WriteFile(changed, []byte(text), 0o600))
		overlay.Replace[filepath.Join(root, path)] = changed
	}
	require.Len(t, overlay.Replace, 3)
	data, err := json.Marshal(overlay)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "overlay.json")
	require.NoError(t, os.WriteFile(file, data, 0o600))
	cmd := exec.Command("go", "test", "-count=1", "-v", "-overlay", file, "-run", "^TestAPIKeyIsRenamed$", "./domain")
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestAPIKeyIsRenamed")
}
