package blobs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestListsAreOrderedAndComplete lists more files than a page of a bucket has, with names that come
// in another order than those of their directories.
func TestListsAreOrderedAndComplete(t *testing.T) {
	for _, url := range []string{"", "mem://"} {
		t.Run("bucket "+url, func(t *testing.T) {
			s, want := open(t, url), []string{}
			contents := map[string][]byte{}
			for i := range 1_100 {
				want = append(want, fmt.Sprintf("uploads/x/a/%04d", i))
			}
			want = append(want, "uploads/x/a-b/c", "uploads/x/a.b", "uploads/x/a0/d/e", "uploads/x/a0/d-")
			for _, key := range append(want, "uploads/xx/f", "uploads/w/g") {
				contents[key] = []byte("content")
			}
			require.NoError(t, s.PutAll(t.Context(), contents))
			slices.Sort(want)
			var got []string
			for f, err := range s.List(t.Context(), "uploads/x/") {
				require.NoError(t, err)
				require.Equal(t, int64(len("content")), f.Size)
				got = append(got, f.Key)
			}
			for i := range min(len(want), len(got)) {
				require.Equal(t, want[i], got[i], "file %d", i)
			}
			require.Len(t, got, len(want))
			for _, err := range s.List(t.Context(), "uploads/none/") {
				require.NoError(t, err)
				require.Fail(t, "a file of no directory is listed")
			}
		})
	}
}

// TestUnreadableDirectoriesAreReported checks that a list does not leave out what it cannot read.
func TestUnreadableDirectoriesAreReported(t *testing.T) {
	s := open(t, "")
	mustPut(t, s, "uploads/x/a/b", strings.NewReader("content"))
	path := filepath.Join(s.files.dir, "uploads/x/a")
	require.NoError(t, os.Rename(path, path+"-moved"))
	require.NoError(t, os.Symlink(path, path)) // a loop, which not even root can read
	_, err := s.Files(t.Context(), "uploads/x/a/")
	require.ErrorContains(t, err, "too many levels of symbolic links")
}
