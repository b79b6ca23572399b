package main_test

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

// TestContributing applies the changes that CONTRIBUTING.md shows and adds the kind of job in
// testdata/kind, in an overlay of the source, and runs their tests of package domain. With
// ANNEAL_KIND, which `make kind` sets, it also uses the kind over HTTP. A block of CONTRIBUTING.md with
// the path of an existing file is inserted after the line with the first event of its kind; any
// other is a new file. The kind consists of at most three production files: two new ones and an entry
// in domain.Kinds.
func TestContributing(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	overlay := exampleEvent(t, root)
	require.Len(t, overlay, 3)
	kind := exampleKind(t, root)
	production := slices.DeleteFunc(slices.Collect(maps.Keys(kind)), func(path string) bool {
		return strings.HasSuffix(path, "_test.go")
	})
	require.Len(t, production, 3)
	maps.Copy(overlay, kind)
	testOverlay(t, root, overlay, "./domain", "TestAPIKeyIsRenamed", "TestBatchInferenceJobIsCreated")
	t.Run("over HTTP", func(t *testing.T) {
		if os.Getenv("ANNEAL_KIND") == "" {
			t.Skip("compiles most packages again: set ANNEAL_KIND")
		}
		testOverlay(t, root, kind, "./api", "TestBatchInferenceJobs")
	})
}

// exampleEvent returns an overlay with the changes that CONTRIBUTING.md shows.
func exampleEvent(t *testing.T, root string) map[string]string {
	const firstEvent = `"apiKey.created.v1":`
	overlay := map[string]string{}
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
		overlay[filepath.Join(root, path)] = writeSource(t, text)
	}
	return overlay
}

// exampleKind returns an overlay with the files of testdata/kind, and the kind's entry in
// domain.Kinds.
func exampleKind(t *testing.T, root string) map[string]string {
	const last = "\tTrainerJobs,\n"
	kinds := filepath.Join(root, "domain", "kinds.go")
	source := testutil.ReadFile(t, kinds)
	require.Contains(t, string(source), last)
	overlay := map[string]string{
		kinds: writeSource(t, strings.Replace(string(source), last, last+"\tBatchInferenceJobs,\n", 1)),
	}
	added, err := filepath.Abs(filepath.Join("testdata", "kind"))
	require.NoError(t, err)
	require.NoError(t, filepath.WalkDir(added, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(added, path)
		overlay[filepath.Join(root, name)] = path
		return err
	}))
	return overlay
}

// writeSource writes a Go file and returns its path.
func writeSource(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "source.go")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// testOverlay runs tests of a package with an overlay of the source.
func testOverlay(t *testing.T, root string, overlay map[string]string, pkg string, tests ...string) {
	data := testutil.Marshal(t, map[string]any{"Replace": overlay})
	file := filepath.Join(t.TempDir(), "overlay.json")
	require.NoError(t, os.WriteFile(file, data, 0o600))
	cmd := exec.Command("go", "test", "-count=1", "-v", "-overlay", file, "-run", "^("+strings.Join(tests, "|")+")$", pkg)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, test := range tests {
		require.Contains(t, string(out), "--- PASS: "+test)
	}
}
