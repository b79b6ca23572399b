package blobs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/internal/testutil"
)

// reopen opens a store on a directory, and returns when the background work of Open is done.
func reopen(t *testing.T, dir string, log io.Writer) *Store {
	s, err := Open(t.Context(), Options{Dir: dir, BaseURL: "http://127.0.0.1:1/blobs", Key: []byte("0123456789abcdef"),
		Logger: slog.New(slog.NewTextHandler(log, nil))})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	<-s.ready
	return s
}

func read(s *Store, key string) ([]byte, error) {
	r, err := s.Get(context.Background(), key)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	return data, errors.Join(err, r.Close())
}

func random(size int) []byte {
	content := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(content)
	return content
}

func records(t *testing.T, s *Store) (names []string) {
	entries := testutil.ReadDir(t, filepath.Join(s.files.dir, digests))
	for _, entry := range entries {
		if isRecord(entry.Name()) {
			names = append(names, entry.Name())
		}
	}
	return names
}

func refusedAsDamaged(t *testing.T, err error, key string, what ...any) {
	t.Helper()
	require.Equal(t, domain.DataLoss, domain.CodeOf(err), what...)
	require.ErrorContains(t, err, "file "+key+" is damaged", what...)
}

// TestDamagedFiles checks that reading a file whose content or record is damaged returns no wrong
// byte.
func TestDamagedFiles(t *testing.T) {
	const key = "datasets/acme/d/rows.jsonl"
	flip := func(at int) func([]byte) []byte {
		return func(b []byte) []byte { b[at] ^= 4; return b }
	}
	for _, size := range []int{0, 1, 10, blockSize - 1, blockSize, blockSize + 1, 2*blockSize + 5} {
		want := random(size)
		damages := map[string]func([]byte) []byte{
			"longer": func(b []byte) []byte { return append(b, 0) },
		}
		if size > 0 {
			damages["first byte"], damages["last byte"], damages["shorter"] = flip(0), flip(size-1),
				func(b []byte) []byte { return b[:len(b)-1] }
			damages["empty"] = func([]byte) []byte { return nil }
			damages["zero"] = func(b []byte) []byte { clear(b[len(b)/2:]); return b }
		}
		for name, damage := range damages {
			for _, record := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s of %d, record %v", name, size, record), func(t *testing.T) {
					s := open(t, "")
					mustPut(t, s, key, bytes.NewReader(want))
					path := s.files.path(key)
					if record {
						path = s.files.recordPath(key)
					}
					data := testutil.ReadFile(t, path)
					if record && strings.Contains(name, "byte") {
						damage = flip(len(data) / 2)
					}
					require.NoError(t, os.WriteFile(path, damage(data), 0o600))
					got, err := read(s, key)
					refusedAsDamaged(t, err, key)
					require.True(t, bytes.HasPrefix(want, got), "bytes before the damage are correct")
					_, err = s.Get(t.Context(), key)
					refusedAsDamaged(t, err, key, "the next reader gets the error immediately")
					if err = s.Copy(t.Context(), "copy", key); err == nil {
						_, err = read(s, "copy")
						require.ErrorContains(t, err, "file copy is damaged")
					}
					require.Equal(t, domain.DataLoss, domain.CodeOf(err))
					mustPut(t, s, key, bytes.NewReader(want))
					got, err = read(s, key)
					require.NoError(t, err, "new content is valid")
					require.Equal(t, want, got)
				})
			}
		}
	}
}

// TestDamagedRanges checks that Range verifies the blocks that contain the range, and no other
// blocks.
func TestDamagedRanges(t *testing.T) {
	s, want := open(t, ""), random(3*blockSize+7)
	mustPut(t, s, "models/w", bytes.NewReader(want))
	damaged := bytes.Clone(want)
	damaged[blockSize+9] ^= 1
	require.NoError(t, os.WriteFile(s.files.path("models/w"), damaged, 0o600))
	for _, c := range []struct {
		offset, length int64
		damaged        bool
	}{{0, 8, false}, {0, blockSize, false}, {2 * blockSize, -1, false}, {3*blockSize + 6, 100, false},
		{0, blockSize + 1, true}, {2*blockSize - 1, 1, true}, {blockSize - 1, 2 * blockSize, true}} {
		s.files.clearState("models/w") // forget the damage that an earlier read found
		r, err := s.Range(t.Context(), "models/w", c.offset, c.length)
		require.NoError(t, err)
		data, err := io.ReadAll(r)
		require.NoError(t, r.Close())
		if c.damaged {
			refusedAsDamaged(t, err, "models/w", "%v", c)
			continue
		}
		require.NoError(t, err)
		end := int64(len(want))
		if c.length >= 0 {
			end = min(end, c.offset+c.length)
		}
		require.Equal(t, want[c.offset:end], data)
	}
}

// TestLostDigests checks that a file without a digest cannot be read, even when the list of files
// that earlier versions of anneal wrote is lost or damaged.
func TestLostDigests(t *testing.T) {
	dir, log := t.TempDir(), &bytes.Buffer{}
	s := reopen(t, dir, log)
	for _, key := range []string{"a/b", "a/c"} {
		mustPut(t, s, key, strings.NewReader("text"))
	}
	require.NoError(t, os.Remove(s.files.recordPath("a/b")))
	_, err := read(s, "a/b")
	refusedAsDamaged(t, err, "a/b")
	for _, damage := range []func(string) error{os.Remove,
		func(path string) error { return os.WriteFile(path, []byte("4 a/b\n"), 0o600) }} {
		require.NotContains(t, log.String(), "refused")
		require.NoError(t, damage(filepath.Join(dir, digests, marker)))
		again := reopen(t, dir, log)
		_, err = read(again, "a/b")
		refusedAsDamaged(t, err, "a/b")
		require.Equal(t, "text", content(t, again, "a/c"))
		require.Contains(t, log.String(), "damaged or missing: reads of these files fail")
		log.Reset()
	}
}

// TestFilesOfAnEarlierVersion checks that files of earlier versions, which have no record, stay
// readable, and that Open adds records with which later reads verify the files.
func TestFilesOfAnEarlierVersion(t *testing.T) {
	dir, log := t.TempDir(), &bytes.Buffer{}
	f := &fileStore{dir: dir}
	for _, key := range []string{"models/m/w", "models/m/x y ü", "models/m/z"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(f.path(key)), 0o700))
		require.NoError(t, os.WriteFile(f.path(key), []byte(key), 0o600))
	}
	f, err := openFileStore(dir, epoch, nil)
	require.NoError(t, err)
	before := &Store{files: f}
	require.Equal(t, "models/m/w", content(t, before, "models/m/w"), "readable before it has a digest")
	require.NoError(t, f.link("copy", "models/m/x y ü"))
	require.Equal(t, "models/m/x y ü", content(t, before, "copy"))

	s := reopen(t, dir, log)
	require.Contains(t, log.String(), "files=2", "the copied file already has a digest")
	require.Len(t, records(t, s), 4)
	require.Empty(t, s.files.earlier)
	log.Reset()
	s = reopen(t, dir, log)
	require.Empty(t, log.String(), "it is logged once")
	require.NoError(t, os.WriteFile(s.files.path("models/m/z"), []byte("models/m/Z"), 0o600))
	_, err = read(s, "models/m/z")
	refusedAsDamaged(t, err, "models/m/z")
	require.NoError(t, os.Remove(s.files.recordPath("models/m/w")))
	_, err = read(s, "models/m/w")
	refusedAsDamaged(t, err, "models/m/w", "its digest existed before")
}

// TestCrashes checks that a crash at any point of a change leaves a file with the old content or
// the new content, or no file, but never a file that counts as damaged.
func TestCrashes(t *testing.T) {
	const key, other = "a/f", "a/other"
	contents := map[string]string{"none": "", "old": "the old one", "same length": "THE NEW ONE"}
	for name, old := range contents {
		for _, earlier := range []bool{false, true} {
			for _, change := range []string{"put", "put small", "put two small", "copy", "delete"} {
				t.Run(fmt.Sprintf("%s over %s, earlier %v", change, name, earlier), func(t *testing.T) {
					dir := t.TempDir()
					if earlier && old != "" {
						require.NoError(t, os.MkdirAll(filepath.Join(dir, "a"), 0o700))
						require.NoError(t, os.WriteFile(filepath.Join(dir, "a", "f"), []byte(old), 0o600))
					}
					f, err := openFileStore(dir, time.Now(), nil)
					require.NoError(t, err)
					if !earlier && old != "" {
						_, err = f.put(t.Context(), key, strings.NewReader(old), f.commit)
						require.NoError(t, err)
					}
					_, err = f.put(t.Context(), other, strings.NewReader("the new one"), f.commit)
					require.NoError(t, err)
					var crashes []string
					f.step = func() {
						crashes = append(crashes, filepath.Join(t.TempDir(), "crash"))
						require.NoError(t, os.CopyFS(crashes[len(crashes)-1], os.DirFS(dir)))
					}
					f.step()
					switch change {
					case "put":
						_, err = f.put(t.Context(), key, strings.NewReader("the new one"), f.commit)
					case "put small":
						err = journaled{f}.putSmall(smallFile{key: key, content: []byte("the new one")})
					case "put two small":
						err = journaled{f}.storeAll(t.Context(), map[string][]byte{key: []byte("the new one"),
							other: []byte("the new one")})
					case "copy":
						err = f.link(key, other)
					case "delete":
						err = f.delete(key)
					}
					require.NoError(t, err)
					f.step()
					require.Greater(t, len(crashes), 3)
					for i, crash := range crashes {
						s := reopen(t, crash, io.Discard)
						data, err := read(s, key)
						switch {
						case err != nil && domain.CodeOf(err) == domain.NotFound:
							require.True(t, old == "" && i < len(crashes)-1 || change == "delete", "%d", i)
						case change == "delete" && domain.CodeOf(err) == domain.DataLoss:
							t.Fatalf("%d: %v", i, err)
						default:
							require.NoError(t, err, "%d", i)
							require.Contains(t, []string{old, "the new one"}, string(data))
						}
						require.Equal(t, "the new one", content(t, s, other))
						found, err := s.files.lengths("")
						require.NoError(t, err)
						require.Len(t, records(t, s), len(found), "each file has one record")
					}
				})
			}
		}
	}
}

// TestReadingWhileWriting checks that each reader of a file that is being overwritten reads one
// complete content.
func TestReadingWhileWriting(t *testing.T) {
	s := open(t, "")
	put := func(i int) {
		_, err := s.Put(t.Context(), "metrics.jsonl", strings.NewReader(strings.Repeat(fmt.Sprint(i%10), 100+i%3)))
		assert.NoError(t, err)
	}
	put(0)
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for i := range 100 {
				put(i)
				assert.NoError(t, s.Copy(t.Context(), "copy", "metrics.jsonl"))
			}
		})
		all.Go(func() {
			for range 400 {
				data, err := read(s, "metrics.jsonl")
				assert.NoError(t, err)
				assert.Equal(t, strings.Repeat(string(data[:1]), len(data)), string(data))
			}
		})
	}
	all.Wait()
	require.NoError(t, s.Delete(t.Context(), "copy"))
	require.Len(t, records(t, s), 1)
	mustPut(t, s, "d/e/f", strings.NewReader("text"))
	require.NoError(t, s.DeletePrefix(t.Context(), "d/"))
	require.Len(t, records(t, s), 1)
}

// TestHardLinkWhileReplaced checks that a file that is being replaced can be linked at any moment.
func TestHardLinkWhileReplaced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(path, []byte("0"), 0o600))
	done := make(chan struct{})
	var replacing sync.WaitGroup
	replacing.Go(func() {
		for next := filepath.Join(dir, "next"); ; {
			select {
			case <-done:
				return
			default:
				assert.NoError(t, os.WriteFile(next, []byte("1"), 0o600))
				assert.NoError(t, os.Rename(next, path))
			}
		}
	})
	for i := range 5000 {
		link := filepath.Join(dir, fmt.Sprint("link", i))
		require.NoError(t, hardLink(path, link))
		require.NoError(t, os.Remove(link))
	}
	close(done)
	replacing.Wait()
	require.ErrorIs(t, hardLink(filepath.Join(dir, "missing"), filepath.Join(dir, "link")), os.ErrNotExist)
	require.ErrorIs(t, hardLink(path, filepath.Join(dir, "missing", "link")), os.ErrNotExist)
}

// TestServingDamage checks that an HTTP client cannot mistake a damaged file for a valid one.
func TestServingDamage(t *testing.T) {
	s, want := serve(t), random(3*blockSize)
	link := func(key string, at int) string {
		mustPut(t, s.Store, key, bytes.NewReader(want))
		damaged := bytes.Clone(want)
		damaged[at] ^= 1
		require.NoError(t, os.WriteFile(s.files.path(key), damaged, 0o600))
		url, err := s.SignGet(t.Context(), key, time.Minute)
		require.NoError(t, err)
		return url
	}
	first, later := link("a/first", 5), link("a/later", 2*blockSize)
	code, message := do(t, http.MethodGet, first, "")
	require.Equal(t, http.StatusInternalServerError, code)
	require.Contains(t, message, "file a/first is damaged")

	fetch := func(url, span string) (int, []byte, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		require.NoError(t, err)
		if span != "" {
			req.Header.Set("Range", span)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, nil, err
		}
		defer res.Body.Close()
		data, err := io.ReadAll(res.Body)
		return res.StatusCode, data, err
	}
	code, data, err := fetch(later, "bytes=10-99")
	require.NoError(t, err)
	require.Equal(t, http.StatusPartialContent, code)
	require.Equal(t, want[10:100], data)
	for _, span := range []string{fmt.Sprintf("bytes=%d-", 2*blockSize-10), "bytes=0-1,2097151-2097155", ""} {
		s.files.clearState("a/later") // forget the damage that an earlier read found
		code, data, err = fetch(later, span)
		if err == nil { // net/http repeats a request whose connection was closed before the response began
			require.Equal(t, http.StatusInternalServerError, code, "%q", span)
			require.Contains(t, string(data), "file a/later is damaged")
		}
	}
	code, message = do(t, http.MethodGet, later, "")
	require.Equal(t, http.StatusInternalServerError, code, "the next request gets an error")
	require.Contains(t, message, "file a/later is damaged")
}
