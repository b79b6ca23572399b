package agent

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/internal/testutil"
	"anneal/workers/protocol"
)

// A fileServer serves files of ten bytes and counts the requests.
type fileServer struct {
	*httptest.Server
	mu       sync.Mutex
	requests map[string]int
	// answers a request and returns true, or returns false to serve the file
	reply func(w http.ResponseWriter, name string, times int) bool
}

func newFileServer(t *testing.T) *fileServer {
	s := &fileServer{requests: map[string]int{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/")
		s.mu.Lock()
		s.requests[name]++
		times, reply := s.requests[name], s.reply
		s.mu.Unlock()
		if reply == nil || !reply(w, name, times) {
			_, _ = io.WriteString(w, "0123456789")
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *fileServer) files(key string, names ...string) protocol.FileSet {
	f := protocol.FileSet{Key: key}
	for _, name := range names {
		f.Files = append(f.Files, protocol.File{Name: name, Size: 10, URL: s.URL + "/" + name})
	}
	return f
}

func newCache(t *testing.T, dir string, limit int64) *cache {
	c := &cache{dir: dir, limit: limit, files: newTransfer(nil), entries: map[string]*entry{}}
	require.NoError(t, c.open())
	return c
}

func TestCacheSharesOneDownload(t *testing.T) {
	s, dir := newFileServer(t), t.TempDir()
	c := newCache(t, dir, 1<<20)
	files := s.files("k", "a", "deep/b")
	var wanting sync.WaitGroup
	for range 8 {
		wanting.Go(func() {
			path, release, err := c.acquire(t.Context(), files)
			if err == nil {
				defer release()
				var data []byte
				data, err = os.ReadFile(filepath.Join(path, "deep", "b"))
				if err == nil && string(data) != "0123456789" {
					err = fmt.Errorf("it holds %q", data)
				}
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wanting.Wait()
	require.Equal(t, map[string]int{"a": 1, "deep/b": 1}, s.requests)

	again := newCache(t, dir, 1<<20) // the cache after a restart of the agent
	_, release, err := again.acquire(t.Context(), files)
	require.NoError(t, err)
	release()
	require.Equal(t, 1, s.requests["a"], "a cached file set is not downloaded again")
	_, release, err = again.acquire(t.Context(), s.files("other key", "a"))
	require.NoError(t, err)
	release()
	require.Equal(t, 2, s.requests["a"], "another key has other content")
}

func TestCacheEvictsUnusedFiles(t *testing.T) {
	s := newFileServer(t)
	c := newCache(t, t.TempDir(), 25)
	held, releaseHeld, err := c.acquire(t.Context(), s.files("held", "h1", "h2", "h3"))
	require.NoError(t, err)
	for _, key := range []string{"a", "b", "c"} {
		_, release, err := c.acquire(t.Context(), s.files(key, key))
		require.NoError(t, err)
		release()
	}
	require.FileExists(t, filepath.Join(held, "h1"), "used files stay, whatever the limit")
	_, release, err := c.acquire(t.Context(), s.files("c", "c"))
	require.NoError(t, err)
	release()
	require.Equal(t, 1, s.requests["c"], "the newest is still cached")
	_, release, err = c.acquire(t.Context(), s.files("a", "a"))
	require.NoError(t, err)
	release()
	require.Equal(t, 2, s.requests["a"], "the oldest was evicted")
	releaseHeld()
	require.NoDirExists(t, held, "30 bytes are above the limit")
}

func TestDownload(t *testing.T) {
	type interceptor = func(w http.ResponseWriter, name string, times int) bool
	status := func(code, until int) interceptor {
		return func(w http.ResponseWriter, _ string, times int) bool {
			if times <= until {
				w.WriteHeader(code)
			}
			return times <= until
		}
	}
	for name, one := range map[string]struct {
		reply interceptor
		asked int
		fails string
	}{
		"well":       {nil, 1, ""},
		"busy twice": {status(503, 2), 3, ""},
		"cut once": {func(w http.ResponseWriter, _ string, times int) bool {
			if times == 1 {
				_, _ = io.WriteString(w, "01234")
			}
			return times == 1
		}, 2, ""},
		"forbidden": {status(403, 9), 1, "403"},
		"full":      {status(507, 9), 1, "full"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFileServer(t)
			s.reply = one.reply
			dir := t.TempDir()
			c := newCache(t, dir, 1<<20)
			path, release, err := c.acquire(t.Context(), s.files("k", "f"))
			require.Equal(t, one.asked, s.requests["f"])
			if one.fails == "" {
				require.NoError(t, err)
				data := testutil.ReadFile(t, filepath.Join(path, "f"))
				require.Equal(t, "0123456789", string(data))
				release()
				return
			}
			require.ErrorContains(t, err, one.fails)
			require.NotContains(t, err.Error(), s.URL, "a signed URL is a secret")
			left := testutil.ReadDir(t, dir)
			require.Empty(t, left, "no partial download stays")
		})
	}
}

// TestDownloadContinuesForOtherUsers checks that a caller of acquire downloads the files itself if
// it waits for the download of another caller, and that caller cancels.
func TestDownloadContinuesForOtherUsers(t *testing.T) {
	s := newFileServer(t)
	asked, hold := make(chan struct{}), make(chan struct{})
	s.reply = func(_ http.ResponseWriter, _ string, times int) bool {
		if times == 1 {
			close(asked)
			<-hold
		}
		return false
	}
	c := newCache(t, t.TempDir(), 1<<20)
	first, stop := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, _, err := c.acquire(first, s.files("k", "f"))
		failed <- err
	}()
	<-asked
	done := make(chan error, 1)
	go func() {
		_, release, err := c.acquire(t.Context(), s.files("k", "f"))
		if err == nil {
			release()
		}
		done <- err
	}()
	stop()
	require.ErrorIs(t, <-failed, context.Canceled)
	close(hold)
	require.NoError(t, <-done)
}

func TestDownloadStaysInItsDirectory(t *testing.T) {
	s := newFileServer(t)
	for _, name := range []string{"../x", "/x", "a/../../x"} {
		err := newTransfer(nil).download(t.Context(), s.files("k", name), t.TempDir())
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), name)
	}
	require.Empty(t, s.requests)
}

// TestSumsAreVerified checks that a download refuses a file that was overwritten with other bytes
// of the same size.
func TestSumsAreVerified(t *testing.T) {
	s := newFileServer(t)
	files := s.files("k", "f")
	// SHA-256 of 0123456789, computed with sha256sum
	files.Files[0].Sum = "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882"
	require.NoError(t, newTransfer(nil).download(t.Context(), files, t.TempDir()))

	s.reply = func(w http.ResponseWriter, _ string, _ int) bool {
		_, _ = io.WriteString(w, "0123456780")
		return true
	}
	err := newTransfer(nil).download(t.Context(), files, t.TempDir())
	require.Equal(t, domain.DataLoss, domain.CodeOf(err))
	require.ErrorContains(t, err, "file f is damaged")
	require.Equal(t, 2, s.requests["f"], "the download is not retried")
	files.Files[0].Sum = ""
	require.NoError(t, newTransfer(nil).download(t.Context(), files, t.TempDir()),
		"a file without a sum is not verified")
}

// TestDamageInTheStoreAndInTransit checks that a download is retried after damage in transit, and
// is not retried when the store reports that the file is damaged.
func TestDamageInTheStoreAndInTransit(t *testing.T) {
	s := newFileServer(t)
	s.reply = func(w http.ResponseWriter, _ string, times int) bool {
		// SHA-256 of 0123456789 in base64, computed with sha256sum
		w.Header().Set("Repr-Digest", "sha-256=:hNiYd/DUBB77a/kaFvAkjy/Vc+avBcGflr7bn4gveII=:")
		_, _ = io.WriteString(w, []string{"0123456780", "0123456789"}[min(times-1, 1)])
		return true
	}
	require.NoError(t, newTransfer(nil).download(t.Context(), s.files("k", "f"), t.TempDir()))
	require.Equal(t, 2, s.requests["f"])
	s.reply = func(w http.ResponseWriter, _ string, _ int) bool {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, `{"code":15,"message":"file models/acme/f is damaged"}`)
		return true
	}
	err := newTransfer(nil).download(t.Context(), s.files("k", "g"), t.TempDir())
	require.Equal(t, domain.DataLoss, domain.CodeOf(err))
	require.ErrorContains(t, err, "file g is damaged in the file store")
	require.Equal(t, 1, s.requests["g"])
}
