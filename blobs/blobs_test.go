package blobs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/internal/testutil"
)

var epoch = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// open opens a store on the bucket at url, or on a temporary directory if url is "".
func open(t *testing.T, url string) *Store {
	s, err := Open(t.Context(),
		Options{URL: url, Dir: t.TempDir(), BaseURL: "http://127.0.0.1:1/blobs", Key: []byte("0123456789abcdef"),
			Now: func() time.Time { return epoch }})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func content(t *testing.T, s *Store, key string) string {
	r, err := s.Get(t.Context(), key)
	require.NoError(t, err)
	defer r.Close()
	data := testutil.ReadAll(t, r)
	return string(data)
}

func TestStore(t *testing.T) {
	for _, url := range []string{"", "mem://"} {
		t.Run("bucket "+url, func(t *testing.T) {
			ctx, s := t.Context(), open(t, url)
			for key, text := range map[string]string{"models/a/m/config.json": "{}", "models/a/m/deep/w": "weights",
				"models/a/mm/w": "other"} {
				n := mustPut(t, s, key, strings.NewReader(text))
				require.Equal(t, int64(len(text)), n)
			}
			mustPut(t, s, "models/a/m/config.json", strings.NewReader(`{"v":2}`))
			require.Equal(t, `{"v":2}`, content(t, s, "models/a/m/config.json"), "reads return the newest content")

			files, err := s.Files(ctx, "models/a/m/")
			require.NoError(t, err)
			require.Equal(t, domain.Files{Prefix: "models/a/m/", Sizes: map[string]int64{"config.json": 7, "deep/w": 7}}, files)

			require.NoError(t, s.DeletePrefix(ctx, "models/a/m/"))
			require.NoError(t, s.DeletePrefix(ctx, "models/a/m/"), "deleting nothing is no error")
			_, err = s.Get(ctx, "models/a/m/config.json")
			require.Equal(t, domain.NotFound, domain.CodeOf(err))
			_, err = s.Size(ctx, "models/a/m/deep/w")
			require.Equal(t, domain.NotFound, domain.CodeOf(err))
			require.Equal(t, "other", content(t, s, "models/a/mm/w"), "a longer name is another prefix")
		})
	}
}

func TestKeys(t *testing.T) {
	s := open(t, "")
	for _, key := range []string{"", "/", "a/", "/a", "a//b", ".", "..", "a/../b", "a/.hidden", staging + "/x", "a\\b",
		"a\nb", "a\x00b", "x.attrs",
		"a__0x2f__b", strings.Repeat("a", MaxPart+1), strings.Repeat("a/", MaxKey/2) + "a", "a\xff"} {
		_, err := s.Put(t.Context(), key, strings.NewReader("x"))
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), "%q", key)
		require.NotEmpty(t, err.Error())
		_, err = s.SignPut(t.Context(), key, 0, time.Hour)
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), "%q", key)
	}
	for _, key := range []string{"a", "a b/ü 東.json", "models/acme/m1/model-00001-of-00002.safetensors", "a%2Fb?c#d"} {
		mustPut(t, s, key, strings.NewReader(key))
		require.Equal(t, key, content(t, s, key))
	}
	_, err := s.Put(t.Context(), "a/b", strings.NewReader("a is a file"))
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
	require.Error(t, s.DeletePrefix(t.Context(), "a"), "a prefix ends in a slash")
	require.Error(t, s.DeletePrefix(t.Context(), "/"), "the whole bucket cannot be deleted")
}

// TestBrokenPut checks that a failed Put keeps the old content and leaves no temporary file.
func TestBrokenPut(t *testing.T) {
	broken := errors.New("the connection was closed")
	for name, one := range map[string]struct {
		err  error
		code domain.Code
	}{"cut": {broken, domain.Unknown}, "disk full": {syscall.ENOSPC, domain.ResourceExhausted},
		"over the quota": {syscall.EDQUOT, domain.ResourceExhausted}} {
		t.Run(name, func(t *testing.T) {
			for _, url := range []string{"", "mem://"} {
				s := open(t, url)
				mustPut(t, s, "d/f", strings.NewReader("old"))
				_, err := s.Put(t.Context(), "d/f", io.MultiReader(bytes.NewReader(make([]byte, 1<<20)), iotest.ErrReader(one.err)))
				require.Error(t, err)
				require.Equal(t, one.code, domain.CodeOf(err))
				require.Equal(t, "old", content(t, s, "d/f"))
				if s.files != nil {
					left := testutil.ReadDir(t, filepath.Join(s.files.dir, staging))
					require.Empty(t, left)
				}
			}
		})
	}
}

func TestStaleUnfinishedFilesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, staging), 0o700))
	for name, age := range map[string]time.Duration{"old": 50 * time.Hour, "young": time.Hour} {
		path := filepath.Join(dir, staging, name)
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		require.NoError(t, os.Chtimes(path, epoch.Add(-age), epoch.Add(-age)))
	}
	_, err := openFileStore(dir, epoch, nil)
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(dir, staging, "old"))
	require.FileExists(t, filepath.Join(dir, staging, "young"))
}

// TestDelete checks that Delete also removes the directories that become empty, even while other
// files are stored in the same directory.
func TestDelete(t *testing.T) {
	s := open(t, "")
	var all sync.WaitGroup
	for client := range 4 {
		all.Go(func() {
			for range 200 {
				key := fmt.Sprintf("models/acme/%d/x", client)
				_, err := s.Put(t.Context(), key, strings.NewReader("x"))
				assert.NoError(t, err)
				assert.NoError(t, s.Delete(t.Context(), key))
			}
		})
	}
	all.Wait()
	require.NoError(t, s.Delete(t.Context(), "models/acme/0/x"), "deleting nothing is no error")
	require.NoDirExists(t, filepath.Join(s.files.dir, "models"))
}

func TestOpenRefuses(t *testing.T) {
	key := []byte("0123456789abcdef")
	for name, o := range map[string]Options{
		"no place":         {BaseURL: "http://h/b", Key: key},
		"unknown scheme":   {URL: "gs://b", BaseURL: "http://h/b", Key: key},
		"unreadable":       {URL: "://", BaseURL: "http://h/b", Key: key},
		"short key":        {URL: "mem://", BaseURL: "http://h/b", Key: key[:15]},
		"relative address": {URL: "mem://", BaseURL: "/blobs", Key: key},
	} {
		_, err := Open(t.Context(), o)
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), name)
	}
}

func mustPut(t testing.TB, s *Store, key string, content io.Reader) int64 {
	t.Helper()
	size, err := s.Put(t.Context(), key, content)
	require.NoError(t, err)
	return size
}

func mustSignPut(t testing.TB, s *Store, key string, limit int64, ttl time.Duration) string {
	t.Helper()
	url, err := s.SignPut(t.Context(), key, limit, ttl)
	require.NoError(t, err)
	return url
}
