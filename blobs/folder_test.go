package blobs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/disk"
	"anneal/domain"
)

// A disk that runs full in the middle of a file takes nothing of it, and takes
// it whole when there is room again.
func TestFolderLeavesRoom(t *testing.T) {
	f, err := openFolder(t.TempDir(), time.Now())
	require.NoError(t, err)
	looks, full := 0, true
	f.space = disk.New(func() (uint64, error) {
		if looks++; full && looks > 1 {
			return uint64(disk.Files), nil
		}
		return 1 << 40, nil
	})
	content := bytes.Repeat([]byte("x"), 3<<20)
	_, err = f.put(t.Context(), "a/b", bytes.NewReader(content))
	require.Equal(t, domain.ResourceExhausted, domain.CodeOf(explain(err, "a/b")))
	require.NoFileExists(t, filepath.Join(f.dir, "a", "b"))
	unfinished, err := os.ReadDir(filepath.Join(f.dir, arriving))
	require.NoError(t, err)
	require.Empty(t, unfinished)

	full = false
	n, err := f.put(t.Context(), "a/b", bytes.NewReader(content))
	require.NoError(t, err)
	require.EqualValues(t, len(content), n)
	stored, err := os.ReadFile(filepath.Join(f.dir, "a", "b"))
	require.NoError(t, err)
	require.Equal(t, content, stored)
}

// A folder goes also while somebody still writes into it.
func TestFolderGoesWhileItIsWritten(t *testing.T) {
	store, written := open(t, ""), make(chan struct{})
	go func() {
		defer close(written)
		for i := range 40 { // one that loses its folder meanwhile is refused
			_, _ = store.Put(t.Context(), fmt.Sprintf("evaluators/e/%d/code/main.py", i), strings.NewReader("code"))
		}
	}()
	for writing := true; writing; {
		select {
		case <-written:
			writing = false
		default:
		}
		require.NoError(t, store.DeleteFolder(t.Context(), "evaluators/e/"))
	}
	left, err := store.Files(t.Context(), "evaluators/e/")
	require.NoError(t, err)
	require.Empty(t, left.Sizes)
}
