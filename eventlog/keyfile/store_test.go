package keyfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

func mustOpen(t *testing.T, path string, opts Options) *Store {
	t.Helper()
	s, err := Open(path, opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func mustPut(t *testing.T, s *Store, key, value string, revision uint64) uint64 {
	t.Helper()
	next, err := s.Put(t.Context(), key, []byte(value), revision)
	require.NoError(t, err)
	return next
}

// content returns the values of a store by key.
func content(t testing.TB, s *Store) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, key := range s.Keys() {
		value, revision, err := s.Get(t.Context(), key)
		require.NoError(t, err)
		require.NotZero(t, revision)
		all[key] = string(value)
	}
	return all
}

func TestPutValuesAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := mustOpen(t, path, Options{Wipe: true})
	first := mustPut(t, s, "a", "1", 0)
	_, err := s.Put(t.Context(), "a", nil, 0)
	require.ErrorIs(t, err, ErrConflict)
	_, err = s.Put(t.Context(), "b", nil, 7)
	require.ErrorIs(t, err, ErrConflict)
	second := mustPut(t, s, "a", "2", first)
	require.Greater(t, second, first)
	mustPut(t, s, "b", "", 0)
	mustPut(t, s, "c", "3", 0)
	require.NoError(t, s.Erase(t.Context(), "c", "none"))
	require.NoError(t, s.Erase(t.Context(), "c"))
	want := map[string]string{"a": "2", "b": ""}
	require.Equal(t, want, content(t, s))
	require.NoError(t, s.Close())
	_, err = s.Put(t.Context(), "d", nil, 0)
	require.ErrorIs(t, err, errClosed)

	again := mustOpen(t, path, Options{Wipe: true, Exists: true, OnWarning: func(what string) { t.Error(what) }})
	require.Equal(t, want, content(t, again))
	_, revision, err := again.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, second, revision)
	require.Greater(t, mustPut(t, again, "c", "", 0), second+2, "a revision is not reused")
	_, err = again.Put(t.Context(), strings.Repeat("k", maxKey+1), nil, 0)
	require.ErrorIs(t, err, ErrTooLarge)
}

func TestConcurrentWritersShareTheSyncs(t *testing.T) {
	s := mustOpen(t, t.TempDir(), Options{Wipe: true})
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			for i := range 40 {
				key := fmt.Sprintf("%d-%d", w, i)
				revision, err := s.Put(context.Background(), key, []byte(key), 0)
				assert.NoError(t, err)
				switch i % 4 {
				case 1:
					_, err = s.Put(context.Background(), key, []byte("new"), revision)
					assert.NoError(t, err)
				case 2:
					assert.NoError(t, s.Erase(context.Background(), key, "shared"))
				case 3:
					_, err = s.Put(context.Background(), "shared", nil, 0)
					assert.True(t, err == nil || errors.Is(err, ErrConflict), err)
				}
				value, _, err := s.Get(context.Background(), key)
				assert.NoError(t, err)
				if i%4 == 0 {
					assert.Equal(t, key, string(value))
				}
			}
		})
	}
	all.Wait()
	require.NoError(t, s.Erase(t.Context(), "shared"))
	want := content(t, s)
	require.Len(t, want, 8*30)
	require.NoError(t, s.Close())
	require.Equal(t, want, content(t,
		mustOpen(t, s.path, Options{Wipe: true, OnWarning: func(what string) { t.Error(what) }})))
}

func TestErasedValuesAreInNeitherCopy(t *testing.T) {
	path := t.TempDir()
	s := mustOpen(t, path, Options{Wipe: true})
	has := func(needle string) (n int) {
		for i := range copies {
			data := testutil.ReadFile(t, filepath.Join(path, copyName(i)))
			n += bytes.Count(data, []byte(needle))
		}
		return n
	}
	revision := mustPut(t, s, "a", "canary-1", 0)
	require.Equal(t, 2, has("canary-1"))
	mustPut(t, s, "a", "canary-2", revision)
	assert.Zero(t, has("canary-1"), "replaced")
	require.NoError(t, s.Erase(t.Context(), "a"))
	assert.Zero(t, has("canary-2"), "erased")
}

func TestCompactionKeepsLiveRecords(t *testing.T) {
	path, now := t.TempDir(), time.Unix(1_800_000_000, 0)
	s := mustOpen(t, path, Options{Wipe: true, Keep: time.Hour, Now: func() time.Time { return now }})
	mustPut(t, s, "old", "x", 0)
	now = now.Add(time.Hour)
	kept := mustPut(t, s, "kept", "y", 0)
	revision, generation := uint64(0), s.header.generation
	for range 12 {
		revision = mustPut(t, s, "big", strings.Repeat("z", 300<<10), revision)
	}
	require.NoError(t, s.Close())
	require.Greater(t, s.header.generation, generation)
	again := mustOpen(t, path, Options{Wipe: true, OnWarning: func(what string) { t.Error(what) }})
	require.Equal(t, []string{"big", "kept"}, again.Keys())
	_, same, err := again.Get(t.Context(), "kept")
	require.NoError(t, err)
	require.Equal(t, kept, same)
	require.Less(t, again.mark.end, uint64(3<<20))
}

// sample creates and closes a store in which every kind of operation was done, and returns its
// directory and content.
func sample(t *testing.T) (path string, want map[string]string) {
	path = t.TempDir()
	s := mustOpen(t, path, Options{Wipe: true})
	for i := range 4 {
		mustPut(t, s, fmt.Sprint("key-", i), fmt.Sprint("value-", i), 0)
	}
	require.NoError(t, s.Erase(t.Context(), "key-1"))
	_, revision, _ := s.Get(t.Context(), "key-2")
	mustPut(t, s, "key-2", "replaced", revision)
	want = content(t, s)
	require.NoError(t, s.Close())
	return path, want
}

func readCopies(t *testing.T, path string) (data [copies][]byte) {
	for i := range data {
		data[i] = testutil.ReadFile(t, filepath.Join(path, copyName(i)))
	}
	return data
}

func copiesIn(t testing.TB, data [copies][]byte) string {
	path := t.TempDir()
	for i, d := range data {
		if d != nil {
			require.NoError(t, os.WriteFile(filepath.Join(path, copyName(i)), d, 0o600))
		}
	}
	return path
}

// TestDamageToOneCopyIsRepaired checks that Open repairs any damage to one copy from the other.
func TestDamageToOneCopyIsRepaired(t *testing.T) {
	path, want := sample(t)
	data := readCopies(t, path)
	require.Equal(t, data[0], data[1])
	check := func(what string, damaged [copies][]byte) {
		t.Helper()
		d := newMemoryDisk(damaged)
		s, err := open(d, "memory", Options{Wipe: true, Exists: true})
		require.NoError(t, err, what)
		require.Equal(t, want, content(t, s), what)
		mustPut(t, s, "new", "x", 0)
		require.NoError(t, s.Close())
		again, err := open(d, "memory", Options{Wipe: true, Exists: true, OnWarning: func(why string) { t.Error(what, why) }})
		require.NoError(t, err, what)
		require.Len(t, content(t, again), len(want)+1)
		require.NoError(t, again.Close())
	}
	for i := range copies {
		other := data
		other[i] = nil
		check("missing", other)
		for at := range data[i] {
			other[i] = bytes.Clone(data[i])
			other[i][at] ^= 0x41
			check(fmt.Sprintf("copy %d flipped at %d", i, at), other)
			other[i] = data[i][:at]
			check(fmt.Sprintf("copy %d cut at %d", i, at), other)
		}
	}
}

// TestDamageToBothCopiesIsNamed checks that when both copies are damaged at the same offset, Open
// either returns a LossError that names the damaged records, or opens the store with its whole
// content.
func TestDamageToBothCopiesIsNamed(t *testing.T) {
	path, want := sample(t)
	data := readCopies(t, path)
	named := map[string]bool{}
	check := func(what string, damaged []byte) {
		t.Helper()
		s, err := open(newMemoryDisk([copies][]byte{damaged, bytes.Clone(damaged)}), "memory",
			Options{Wipe: true, Exists: true})
		var loss *LossError
		if errors.As(err, &loss) {
			require.NotEmpty(t, loss.Error())
			for _, lost := range loss.Lost {
				named[lost.Key] = true
			}
			return
		}
		require.NoError(t, err, what)
		require.Equal(t, want, content(t, s), what)
		require.NoError(t, s.Close())
	}
	for at := range data[0] {
		flipped := bytes.Clone(data[0])
		flipped[at] ^= 0x41
		check(fmt.Sprint("flipped at ", at), flipped)
		check(fmt.Sprint("cut at ", at), bytes.Clone(data[0][:at]))
	}
	for _, key := range []string{"key-0", "key-2", "key-3"} {
		assert.True(t, named[key], key)
	}
	_, err := open(newMemoryDisk([copies][]byte{}), "memory", Options{Exists: true})
	require.ErrorContains(t, err, "missing")
}

// TestLossIsAccepted checks that Open with the file accept-loss opens the store with the other
// records and returns the lost ones from Lost, and that the next Open finds no loss.
func TestLossIsAccepted(t *testing.T) {
	path, want := sample(t)
	data := readCopies(t, path)
	at := bytes.Index(data[0], []byte("value-3"))
	for i := range data {
		data[i][at]++
	}
	path = copiesIn(t, data)
	_, err := Open(path, Options{Wipe: true})
	require.ErrorContains(t, err, "key-3")
	require.ErrorContains(t, err, "accept-loss")
	require.NoError(t, os.WriteFile(filepath.Join(path, acceptFile), nil, 0o600))
	s := mustOpen(t, path, Options{Wipe: true})
	require.Equal(t, []Lost{{Index: 4, Key: "key-3"}}, s.Lost())
	delete(want, "key-3")
	require.Equal(t, want, content(t, s))
	require.NoError(t, s.Close())
	require.Empty(t, mustOpen(t, path, Options{Wipe: true}).Lost())
}

// TestLossIsReportedBeforeTheRewrite checks that Open calls BeforeLoss before it rewrites the
// copies without the lost records. When BeforeLoss fails, the copies stay unchanged, and the next
// Open calls BeforeLoss again.
func TestLossIsReportedBeforeTheRewrite(t *testing.T) {
	path, _ := sample(t)
	isValid := readCopies(t, path)
	full := errors.New("no space left")
	for what, harm := range map[string]func([]byte){
		"a record": func(copy []byte) { copy[bytes.Index(copy, []byte("value-3"))]++ },
		"a header": func(copy []byte) { clear(copy[:recordsAt]) },
	} {
		data := isValid
		for i := range data {
			data[i] = bytes.Clone(data[i])
			harm(data[i])
		}
		path := copiesIn(t, data)
		for range 2 {
			_, err := Open(path, Options{AcceptLoss: true, BeforeLoss: func(lost []Lost) error {
				require.NotEmpty(t, lost, what)
				require.Equal(t, data, readCopies(t, path), what)
				return full
			}})
			require.ErrorIs(t, err, full, what)
			require.Equal(t, data, readCopies(t, path), what)
		}
	}
}

// TestFailedWrites checks that a Put that fails because the disk is full changes nothing and that a
// later Put succeeds, but that all calls fail after a failed sync.
func TestFailedWrites(t *testing.T) {
	d := newMemoryDisk([copies][]byte{})
	s, err := open(d, "memory", Options{Wipe: true})
	require.NoError(t, err)
	mustPut(t, s, "a", "1", 0)
	for _, failing := range []string{"keys.1", "keys.2"} {
		d.fail = func(op, name string) error {
			if op == "write" && strings.HasPrefix(name, failing) {
				return errors.New("no space left on device")
			}
			return nil
		}
		_, err = s.Put(t.Context(), "b", []byte("2"), 0)
		require.ErrorContains(t, err, "nothing was changed")
		d.fail = nil
		require.Equal(t, map[string]string{"a": "1"}, content(t, s))
	}
	revision := mustPut(t, s, "b", "2", 0)
	d.fail = func(op, name string) error {
		if op == "sync" && strings.HasPrefix(name, "keys.2") {
			return errors.New("input/output error")
		}
		return nil
	}
	_, err = s.Put(t.Context(), "b", []byte("3"), revision)
	require.ErrorContains(t, err, "input/output error")
	d.fail = nil
	_, err = s.Put(t.Context(), "c", nil, 0)
	require.ErrorContains(t, err, "input/output error")
	_, _, err = s.Get(t.Context(), "a")
	require.ErrorContains(t, err, "input/output error")
}
