package blobs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// TestCreate checks that of several concurrent creates of a key one succeeds, for small and large
// contents, and that the others change nothing.
func TestCreate(t *testing.T) {
	for _, url := range []string{"", "mem://"} {
		for _, size := range []int{10, maxSmall + 1} {
			t.Run(fmt.Sprintf("bucket %s %d bytes", url, size), func(t *testing.T) {
				s := open(t, url)
				var wg sync.WaitGroup
				var won atomic.Int64
				for i := range 8 {
					wg.Go(func() {
						err := s.Create(t.Context(), "jobs/a/e/journal/x", bytes.Repeat([]byte{byte('a' + i)}, size))
						if err == nil {
							won.Add(int64(i) + 100)
							return
						}
						if domain.CodeOf(err) != domain.AlreadyExists {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				require.GreaterOrEqual(t, won.Load(), int64(100))
				require.Less(t, won.Load(), int64(200), "one create succeeds")
				require.Equal(t, strings.Repeat(string(rune('a'+won.Load()-100)), size), content(t, s, "jobs/a/e/journal/x"))
			})
		}
	}
}

// TestDeleteAll checks that files are deleted together with their records and empty directories,
// also after a restart.
func TestDeleteAll(t *testing.T) {
	for _, url := range []string{"", "mem://"} {
		s := open(t, url)
		var keys []string
		for i := range 300 {
			keys = append(keys, fmt.Sprintf("jobs/a/e/journal/%d/op", i%3*1000+i))
			require.NoError(t, s.Create(t.Context(), keys[i], []byte("x")))
		}
		kept := keys[299]
		require.NoError(t, s.DeleteAll(t.Context(), append(keys[:299:299], "jobs/a/e/journal/none")))
		files, err := s.Files(t.Context(), "jobs/")
		require.NoError(t, err)
		require.Len(t, files.Sizes, 1)
		require.Equal(t, "x", content(t, s, kept))
		require.NoError(t, s.Create(t.Context(), keys[0], []byte("new")))
		require.Equal(t, "new", content(t, s, keys[0]))
		require.Error(t, s.DeleteAll(t.Context(), []string{"../x"}))
		if s.files == nil {
			continue
		}
		copied := filepath.Join(t.TempDir(), "copy") // a crash: the journal still has all entries
		require.NoError(t, os.CopyFS(copied, os.DirFS(s.files.dir)))
		again := reopen(t, copied, new(bytes.Buffer))
		files, err = again.Files(t.Context(), "jobs/")
		require.NoError(t, err)
		require.Len(t, files.Sizes, 2, "recovery stores no deleted file again")
		require.Equal(t, "new", content(t, again, keys[0]))
	}
}
