package blobs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// resultsOf returns the files of the results of a job, by key.
func resultsOf(event, text string) map[string][]byte {
	return map[string][]byte{
		"models/acme/" + event + "-attempt-1/config.json": []byte(text + " config"),
		"models/acme/" + event + "-attempt-1/weights":     []byte(text + " weights"),
		"jobs/acme/" + event + "/metrics.jsonl":           []byte(text + " metrics"),
		"jobs/acme/" + event + "/trainer-1.log":           {},
	}
}

// regularFiles returns the paths of all files in the directory of a store, without the journal and the
// locks.
func regularFiles(t *testing.T, dir string) (paths []string) {
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && !strings.Contains(path, "/"+digests+"/") {
			path, err = filepath.Rel(dir, path)
			paths = append(paths, path)
		}
		return err
	}))
	return paths
}

// TestBundle checks that the files of a bundle can be read, listed, copied, replaced and deleted as
// other files can.
func TestBundle(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	s := reopen(t, dir, io.Discard)
	mustPut(t, s, "models/acme/e1-attempt-1-other/f", strings.NewReader("another file"))
	all := resultsOf("e1", "one")
	require.NoError(t, s.PutAll(ctx, all))
	require.NoError(t, s.PutAll(ctx, all), "a repeated report")
	require.NoError(t, s.PutAll(ctx, resultsOf("e2", "two")))
	require.Equal(t, []string{".bundles/acme/e1", ".bundles/acme/e2", "models/acme/e1-attempt-1-other/f"},
		regularFiles(t, dir))
	for key, want := range all {
		require.Equal(t, string(want), content(t, s, key))
		size, err := s.Size(ctx, key)
		require.NoError(t, err)
		require.EqualValues(t, len(want), size)
	}
	part, err := s.Range(ctx, "jobs/acme/e1/metrics.jsonl", 4, 3)
	require.NoError(t, err)
	text, err := io.ReadAll(part)
	require.NoError(t, err)
	require.Equal(t, "met", string(text))
	files, err := s.Files(ctx, "models/acme/e1-attempt-1/")
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"config.json": 10, "weights": 11}, files.Sizes)
	require.Equal(t, []string{"models/acme/e1-attempt-1-other/f", "models/acme/e1-attempt-1/config.json",
		"models/acme/e1-attempt-1/weights", "models/acme/e2-attempt-1/config.json",
		"models/acme/e2-attempt-1/weights"}, keysBelow(t, s, "models/"))
	require.Len(t, keysBelow(t, s, "jobs/acme/"), 4)
	key, err := s.NewestOfAttempts(ctx, "jobs/acme/e1/logs/", 2)
	require.NoError(t, err)
	require.Equal(t, "jobs/acme/e1/trainer-1.log", key)
	require.NoError(t, s.Copy(ctx, "models/acme/e3/copy", "models/acme/e1-attempt-1/weights"))
	require.Equal(t, "one weights", content(t, s, "models/acme/e3/copy"))

	mustPut(t, s, "jobs/acme/e1/metrics.jsonl", strings.NewReader("later metrics"))
	require.Equal(t, "later metrics", content(t, s, "jobs/acme/e1/metrics.jsonl"))
	require.Equal(t, []string{"jobs/acme/e1/metrics.jsonl", "jobs/acme/e1/trainer-1.log"},
		keysBelow(t, s, "jobs/acme/e1/"))
	changed := resultsOf("e2", "changed")
	require.NoError(t, s.PutAll(ctx, changed))
	for key, want := range changed {
		require.Equal(t, string(want), content(t, s, key))
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		require.NoError(t, s.Delete(ctx, key))
		_, err := s.Get(ctx, key)
		require.Equal(t, domain.NotFound, domain.CodeOf(err), key)
		require.NotContains(t, keysBelow(t, s, key[:strings.LastIndex(key, "/")+1]), key)
	}
	require.NoFileExists(t, bundlesOf(s.files).bundlePath("acme/e1"))
	require.NoError(t, s.DeletePrefix(ctx, "jobs/acme/e2/"))
	require.Empty(t, keysBelow(t, s, "jobs/acme/"))
	s.files.journal.close()
	require.Equal(t, "changed config", content(t, reopen(t, dir, io.Discard), "models/acme/e2-attempt-1/config.json"))
}

func keysBelow(t *testing.T, s *Store, prefix string) (keys []string) {
	for file, err := range s.List(t.Context(), prefix) {
		require.NoError(t, err)
		keys = append(keys, file.Key)
	}
	return keys
}

// TestFilesOutsideOfBundles enumerates what is stored in separate files.
func TestFilesOutsideOfBundles(t *testing.T) {
	large := resultsOf("e", "")
	large["models/acme/e-attempt-1/weights"] = make([]byte, maxBundle)
	for name, all := range map[string]map[string][]byte{
		"one file":            {"jobs/acme/e/metrics.jsonl": nil},
		"two jobs":            {"jobs/acme/e/metrics.jsonl": nil, "jobs/acme/f/metrics.jsonl": nil},
		"large":               large,
		"files of an upload":  {"models/acme/e/1-a/config.json": nil, "models/acme/e/1-a/weights": nil},
		"files of a dataset":  {"datasets/acme/e/rows": nil, "datasets/acme/e/more": nil},
		"a checkpoint":        {"jobs/acme/e/checkpoints/1-1/a": nil, "jobs/acme/e/checkpoints/1-1/b": nil},
		"files without roots": {"a": nil, "b": nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, "")
			require.NoError(t, s.PutAll(t.Context(), all))
			require.NoDirExists(t, filepath.Join(s.files.dir, bundles))
			require.Len(t, regularFiles(t, s.files.dir), len(all))
		})
	}
	t.Run("earlier versions share the directory", func(t *testing.T) {
		s := open(t, "")
		s.files.bundling = func() bool { return false }
		require.NoError(t, s.PutAll(t.Context(), resultsOf("e", "")))
		require.NoDirExists(t, filepath.Join(s.files.dir, bundles))
	})
	t.Run("another process has the journal", func(t *testing.T) {
		first := open(t, "")
		second := reopen(t, first.files.dir, io.Discard)
		require.NoError(t, first.PutAll(t.Context(), resultsOf("e1", "one")))
		require.NoError(t, second.PutAll(t.Context(), resultsOf("e2", "two")))
		require.Equal(t, "one weights", content(t, second, "models/acme/e1-attempt-1/weights"))
		require.NoFileExists(t, bundlesOf(first.files).bundlePath("acme/e2"))
	})
}

// TestDamagedBundle checks that a damaged file in a bundle is not used, and that the other files of the
// bundle are.
func TestDamagedBundle(t *testing.T) {
	dir := t.TempDir()
	s := reopen(t, dir, io.Discard)
	require.NoError(t, s.PutAll(t.Context(), resultsOf("e", "text")))
	s.files.journal.close()
	path := bundlesOf(s.files).bundlePath("acme/e")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	for at := range data {
		changed := slices.Clone(data)
		changed[at] ^= 0x10
		require.NoError(t, os.WriteFile(path, changed, 0o600))
		refused := 0
		for key, want := range resultsOf("e", "text") {
			found, err := read(s, key)
			if err != nil {
				refused++
				refusedAsDamaged(t, err, key, at)
				continue
			}
			require.Equal(t, string(want), string(found))
		}
		if at >= len(bundleHead)+4 {
			require.NotZero(t, refused, "byte %d", at)
		}
	}
	for size := range data { // also at the end of an entry
		require.NoError(t, os.WriteFile(path, data[:size], 0o600))
		refused := 0
		for key := range resultsOf("e", "text") {
			if _, err := read(s, key); err != nil {
				refused++
				refusedAsDamaged(t, err, key, size)
			}
		}
		require.NotZero(t, refused, "%d bytes", size)
	}
	require.NoError(t, os.WriteFile(path, data[:len(data)-1], 0o600))
	after := reopen(t, dir, io.Discard)
	require.FileExists(t, path, "the journal has no entries of the bundle, so its damage is kept")
	for key := range resultsOf("e", "text") {
		require.NoError(t, after.Delete(t.Context(), key), "damage does not prevent the deletion")
	}
	require.Empty(t, append(keysBelow(t, after, "jobs/"), keysBelow(t, after, "models/")...))
}

// TestDeletionsKeepDamage checks that the deletion of a file leaves the other files of a damaged bundle
// as they are: a damaged one stays damaged, and its bytes stay on disk.
func TestDeletionsKeepDamage(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	s := reopen(t, dir, io.Discard)
	require.NoError(t, s.PutAll(ctx, resultsOf("e", "text")))
	path := bundlesOf(s.files).bundlePath("acme/e")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	keys := slices.Sorted(maps.Keys(resultsOf("e", "text")))
	tests := [][]byte{make([]byte, len(data))}
	for at := 0; at < len(data); at += 19 {
		tests = append(tests, slices.Concat(data[:at], []byte{data[at] ^ 0x10}, data[at+1:]), data[:at])
	}
	for _, key := range append(keys, "jobs/acme/e/tracker.json") {
		for number, changed := range tests {
			require.NoError(t, os.WriteFile(path, changed, 0o600))
			before := map[string]string{}
			for _, other := range keys {
				before[other] = stateOf(s, other)
			}
			require.NoError(t, s.Delete(ctx, key))
			for _, other := range keys {
				if other != key {
					require.Equal(t, before[other], stateOf(s, other), "test %d: %s after the deletion of %s", number, other, key)
				}
			}
			left, err := os.ReadFile(path)
			require.NoError(t, err)
			deleted := appendEntry(nil, entry{key: key, bundled: true, content: resultsOf("e", "text")[key]})
			require.GreaterOrEqual(t, len(left), len(changed)-len(deleted))
		}
	}
}

// stateOf returns the content of the file under key, or the code of the error of reading it.
func stateOf(s *Store, key string) string {
	data, err := read(s, key)
	if err != nil {
		return domain.CodeOf(err).String()
	}
	return string(data)
}

// TestDeletionsKeepTimes checks that the deletion of a file does not change the times of the other files
// of its bundle, so that downloads of them can continue, and backups do not copy them again.
func TestDeletionsKeepTimes(t *testing.T) {
	s := reopen(t, t.TempDir(), io.Discard)
	require.NoError(t, s.PutAll(t.Context(), resultsOf("e", "text")))
	stored := time.Now().Add(-time.Hour).Truncate(time.Second)
	require.NoError(t, os.Chtimes(bundlesOf(s.files).bundlePath("acme/e"), stored, stored))
	require.NoError(t, s.Delete(t.Context(), "jobs/acme/e/metrics.jsonl"))
	file, err := s.Get(t.Context(), "models/acme/e-attempt-1/weights")
	require.NoError(t, err)
	require.True(t, stored.Equal(file.ModTime()), file.ModTime())
	require.NoError(t, file.Close())
}

// TestRecoverKeepsFilesOfDamagedBundles checks that a start loses no file of a damaged bundle if the
// journal, which is damaged too, does not have it.
func TestRecoverKeepsFilesOfDamagedBundles(t *testing.T) {
	f, err := openFileStore(t.TempDir(), time.Now(), nil)
	require.NoError(t, err)
	want := resultsOf("e", "text")
	require.NoError(t, journaled{f}.storeAll(t.Context(), want))
	dir := filepath.Join(t.TempDir(), "crash")
	require.NoError(t, os.CopyFS(dir, os.DirFS(f.dir)))
	damage := func(path, text string) {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		before, after, found := bytes.Cut(data, []byte(text))
		require.True(t, found)
		require.NoError(t, os.WriteFile(path, slices.Concat(before, []byte(strings.ToUpper(text)), after), 0o600))
	}
	damage(filepath.Join(dir, bundles, "acme", "e"), "text metrics")
	damage(filepath.Join(dir, digests, segmentName(1)), "text config")
	s := reopen(t, dir, io.Discard)
	for key, content := range want {
		data, err := read(s, key)
		require.NoError(t, err, key)
		require.Equal(t, string(content), string(data), key)
	}
}

// TestDamagedBundlesAreReported checks that copies and sizes report damage as a read does.
func TestDamagedBundlesAreReported(t *testing.T) {
	s := reopen(t, t.TempDir(), io.Discard)
	require.NoError(t, s.PutAll(t.Context(), resultsOf("e", "text")))
	require.NoError(t, os.Truncate(bundlesOf(s.files).bundlePath("acme/e"), 10))
	err := s.Copy(t.Context(), "models/acme/copy/weights", "models/acme/e-attempt-1/weights")
	require.Equal(t, domain.DataLoss, domain.CodeOf(err), err)
	_, err = s.Size(t.Context(), "models/acme/e-attempt-1/weights")
	require.Equal(t, domain.DataLoss, domain.CodeOf(err), err)
	err = s.Copy(t.Context(), "models/acme/copy/weights", "models/acme/f-attempt-1/weights")
	require.Equal(t, domain.NotFound, domain.CodeOf(err), err)
	_, err = s.Size(t.Context(), "models/acme/f-attempt-1/weights")
	require.Equal(t, domain.NotFound, domain.CodeOf(err), err)
}

// TestCrashesOfBundles checks that each crash leaves the files of a bundle as they were before a change
// or as they are after it, also if a power failure loses or damages the bundle when it is not synced.
func TestCrashesOfBundles(t *testing.T) {
	first := "jobs/acme/e/metrics.jsonl"
	for _, change := range []string{"store", "store again", "put", "put large", "delete", "delete all"} {
		for damage := range 4 {
			t.Run(fmt.Sprint(change, " ", damage), func(t *testing.T) {
				dir := t.TempDir()
				f, err := openFileStore(dir, time.Now(), nil)
				require.NoError(t, err)
				before, after := resultsOf("e", "text"), resultsOf("e", "text")
				if change != "store" {
					require.NoError(t, journaled{f}.storeAll(t.Context(), before))
				}
				var crashes []string
				f.step = func() {
					crashes = append(crashes, filepath.Join(t.TempDir(), "crash"))
					require.NoError(t, os.CopyFS(crashes[len(crashes)-1], os.DirFS(dir)))
				}
				f.step()
				switch change {
				case "store":
					before = map[string][]byte{}
					err = journaled{f}.storeAll(t.Context(), after)
				case "store again":
					after = resultsOf("e", "later")
					err = journaled{f}.storeAll(t.Context(), after)
				case "put":
					after[first] = []byte("small")
					_, err = journaled{f}.store(t.Context(), first, strings.NewReader("small"))
				case "put large":
					after[first] = []byte(strings.Repeat("large", maxSmall))
					_, err = journaled{f}.store(t.Context(), first, strings.NewReader(string(after[first])))
				case "delete":
					delete(after, first)
					err = f.delete(first)
				case "delete all":
					for key := range before {
						delete(after, key)
						err = errors.Join(err, f.delete(key))
					}
				}
				require.NoError(t, err)
				f.step()
				for i, crash := range crashes {
					if strings.HasPrefix(change, "store") || strings.HasPrefix(change, "put") {
						loseBundle(t, crash, damage)
					}
					s := reopen(t, crash, io.Discard)
					for key := range resultsOf("e", "") {
						data, err := read(s, key)
						old, had := before[key]
						want, has := after[key]
						switch {
						case domain.CodeOf(err) == domain.NotFound:
							require.True(t, !has || !had && i < len(crashes)-1, "%d: %s", i, key)
						case i == len(crashes)-1:
							require.NoError(t, err)
							require.True(t, has, key)
							require.Equal(t, string(want), string(data), "%d: %s", i, key)
						default:
							require.NoError(t, err)
							require.Contains(t, []string{string(old), string(want)}, string(data), "%d: %s", i, key)
						}
					}
				}
			})
		}
	}
}

// loseBundle makes the bundle acme/e what a power failure may leave of it when it is not synced.
func loseBundle(t *testing.T, dir string, damage int) {
	path := filepath.Join(dir, bundles, "acme", "e")
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	require.NoError(t, err)
	switch damage {
	case 1:
		require.NoError(t, os.Remove(path))
	case 2:
		require.NoError(t, os.WriteFile(path, make([]byte, len(data)), 0o600))
	case 3:
		require.NoError(t, os.WriteFile(path, data[:rand.IntN(len(data))], 0o600))
	}
}

// TestPowerFailureKeepsBundles checks that random changes of bundles survive power failures.
func TestPowerFailureKeepsBundles(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 1))
		f, err := openFileStore(t.TempDir(), time.Now(), nil)
		require.NoError(t, err)
		want := map[string]string{}
		keys := slices.Sorted(maps.Keys(resultsOf("e", "")))
		for step := range 3 + random.IntN(12) {
			key, text := keys[random.IntN(len(keys))], fmt.Sprint("text ", step)
			switch random.IntN(4) {
			case 0:
				require.NoError(t, f.delete(key))
				delete(want, key)
			case 1:
				_, err := journaled{f}.store(t.Context(), key, strings.NewReader(text))
				require.NoError(t, err)
				want[key] = text
			default:
				all := resultsOf("e", text)
				require.NoError(t, journaled{f}.storeAll(t.Context(), all))
				for key, content := range all {
					want[key] = string(content)
				}
			}
		}
		dir := filepath.Join(t.TempDir(), "disk")
		require.NoError(t, os.CopyFS(dir, os.DirFS(f.dir)))
		synced, err := os.ReadFile(bundlesOf(f).bundlePath("acme/e"))
		if entries, _ := decodeBundle(synced); err == nil && len(entries) == len(keys) { // no deletion has synced it
			loseBundle(t, dir, random.IntN(4))
		}
		s := reopen(t, dir, io.Discard)
		for _, key := range keys {
			data, err := read(s, key)
			text, has := want[key]
			if !has {
				require.Equal(t, domain.NotFound, domain.CodeOf(err), "seed %d: %s", seed, key)
				continue
			}
			require.NoError(t, err, "seed %d: %s", seed, key)
			require.Equal(t, text, string(data), "seed %d: %s", seed, key)
		}
	}
}

// TestServeFilesOfBundles checks that signed URLs serve a file of a bundle and its parts, and report its
// damage.
func TestServeFilesOfBundles(t *testing.T) {
	s := serve(t)
	require.NoError(t, s.PutAll(t.Context(), resultsOf("e", "text")))
	url, err := s.SignGet(t.Context(), "models/acme/e-attempt-1/weights", time.Minute)
	require.NoError(t, err)
	for header, want := range map[string]string{"": "text weights", "bytes=5-8": "weig", "bytes=-7": "weights"} {
		status, body := do(t, http.MethodGet, url, "", "Range", header)
		require.Contains(t, []int{http.StatusOK, http.StatusPartialContent}, status)
		require.Equal(t, want, body)
	}
	status, _ := do(t, http.MethodGet, url, "", "Range", "bytes=12-")
	require.Equal(t, http.StatusRequestedRangeNotSatisfiable, status)
	empty, err := s.SignGet(t.Context(), "jobs/acme/e/trainer-1.log", time.Minute)
	require.NoError(t, err)
	status, body := do(t, http.MethodGet, empty, "")
	require.Equal(t, http.StatusOK, status)
	require.Empty(t, body)
	require.NoError(t, os.Truncate(bundlesOf(s.files).bundlePath("acme/e"), 30))
	status, body = do(t, http.MethodGet, url, "", "Range", "bytes=5-8")
	require.Equal(t, http.StatusInternalServerError, status)
	require.Contains(t, body, "is damaged")
}
