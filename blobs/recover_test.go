package blobs

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/disk"
	"anneal/domain"
)

func storeSmall(t *testing.T, f *fileStore, key, text string) {
	t.Helper()
	_, err := journaled{f}.store(t.Context(), key, strings.NewReader(text))
	require.NoError(t, err)
}

// kill releases the locks of a store as the death of its process does.
func kill(t *testing.T, f *fileStore) { require.NoError(t, f.journal.lock.Close()) }

// TestChangesAfterAFailureOfTheJournal checks that the entries of a failed journal do not undo what
// changed after the failure.
func TestChangesAfterAFailureOfTheJournal(t *testing.T) {
	failed := errors.New("the disk failed")
	for name, breakJournal := range map[string]func(*fileStore){
		"sync": func(f *fileStore) {
			f.journal.sync = func(*os.File) error { return failed }
			_, err := journaled{f}.store(t.Context(), "x", strings.NewReader("text"))
			require.ErrorIs(t, err, failed)
		},
		"supersede": func(f *fileStore) { f.journal.sync = func(*os.File) error { return failed } },
		"checkpoint": func(f *fileStore) {
			f.journal.checkpoint = func() error { return failed }
			f.journal.retire(f.journal.segment, make(chan struct{}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			dir := t.TempDir()
			s := reopen(t, dir, &log)
			f := s.files
			storeSmall(t, f, "deleted", "one")
			storeSmall(t, f, "removed/all", "one")
			storeSmall(t, f, "restored", "one")
			storeSmall(t, f, "restored", "two")
			storeSmall(t, f, "kept", "one")
			breakJournal(f)
			require.NoError(t, f.delete("deleted"))
			require.NoError(t, f.removeAll("removed/"))
			storeSmall(t, f, "restored", "one")
			require.Contains(t, log.String(), "the journal of small files failed")
			kill(t, f)
			require.NoError(t, os.Remove(f.path("kept"))) // a power failure
			after := reopen(t, dir, io.Discard)
			for _, key := range []string{"deleted", "removed/all"} {
				_, err := read(after, key)
				require.Equal(t, domain.NotFound, domain.CodeOf(err), key)
			}
			require.Equal(t, "one", content(t, after, "restored"))
			require.Equal(t, "one", content(t, after, "kept"))
			left, err := segments(filepath.Join(dir, digests))
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

// TestFailedJournalKeepsSegments checks that no segment is removed after a failure: it may supersede
// entries of the segment that could not be removed.
func TestFailedJournalKeepsSegments(t *testing.T) {
	f, err := openFileStore(t.TempDir(), time.Now(), nil)
	require.NoError(t, err)
	storeSmall(t, f, "a", "text")
	f.journal.fail(errors.New("the disk failed"))
	f.journal.retire(f.journal.segment, make(chan struct{}))
	require.FileExists(t, f.journal.segment.file.Name())
}

// TestDamagedJournal checks that a damaged entry does not hide the entries that follow it, and that the
// operator gets to know it.
func TestDamagedJournal(t *testing.T) {
	var log bytes.Buffer
	dir := t.TempDir()
	f, err := openFileStore(dir, time.Now(), nil)
	require.NoError(t, err)
	storeSmall(t, f, "b", "one")
	storeSmall(t, f, "a", "damaged in the journal")
	require.NoError(t, f.delete("b"))
	storeSmall(t, f, "c", "two")
	kill(t, f)
	path := filepath.Join(dir, digests, segmentName(1))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	data[bytes.Index(data, []byte("damaged"))] ^= 1
	require.NoError(t, os.WriteFile(path, data, 0o600))
	require.NoError(t, os.Remove(f.path("c"))) // a power failure
	after := reopen(t, dir, &log)
	require.Equal(t, "two", content(t, after, "c"))
	_, err = read(after, "b")
	require.Equal(t, domain.NotFound, domain.CodeOf(err))
	require.Contains(t, log.String(), "the journal of small files is damaged")
	kept, err := os.ReadFile(path + damagedSuffix)
	require.NoError(t, err)
	require.Equal(t, data, kept)
}

// TestIncompleteJournal checks that an incomplete last entry, which was not acknowledged, is no damage,
// unless another segment follows.
func TestIncompleteJournal(t *testing.T) {
	for _, followed := range []bool{false, true} {
		var log bytes.Buffer
		dir := t.TempDir()
		f, err := openFileStore(dir, time.Now(), nil)
		require.NoError(t, err)
		storeSmall(t, f, "a", "one")
		kill(t, f)
		path := filepath.Join(dir, digests, segmentName(1))
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, append(data, data[:len(data)-1]...), 0o600))
		if followed {
			require.NoError(t, os.WriteFile(filepath.Join(dir, digests, segmentName(2)), nil, 0o600))
		}
		require.Equal(t, "one", content(t, reopen(t, dir, &log), "a"))
		if followed {
			require.Contains(t, log.String(), "is damaged")
			require.FileExists(t, path+damagedSuffix)
		} else {
			require.Contains(t, log.String(), "incomplete entries")
			require.NoFileExists(t, path+damagedSuffix)
		}
	}
}

// TestCloseWaitsForAFailingChange checks that a change that fails while the store closes does not
// block it.
func TestCloseWaitsForAFailingChange(t *testing.T) {
	f, err := openFileStore(t.TempDir(), time.Now(), nil)
	require.NoError(t, err)
	var once sync.Once
	closed := make(chan struct{})
	f.step = func() {
		once.Do(func() {
			assert.NoError(t, os.MkdirAll(filepath.Join(f.path("a"), "b"), 0o700)) // so that the rename fails
			go func() {
				defer close(closed)
				f.journal.close()
			}()
			for f.journal.users.TryRLock() { // until close waits for the change
				f.journal.users.RUnlock()
			}
		})
	}
	failed := make(chan error, 1)
	go func() { failed <- journaled{f}.putSmall(smallFile{key: "a", content: []byte("text")}) }()
	for _, done := range []func() bool{
		func() bool { return <-failed != nil },
		func() bool { <-closed; return true },
	} {
		ended := make(chan bool, 1)
		go func() { ended <- done() }()
		select {
		case ok := <-ended:
			require.True(t, ok)
		case <-time.After(10 * time.Second):
			t.Fatal("the change and close wait for each other")
		}
	}
}

// TestRemoveAllKeepsLaterFiles checks that a removal of a prefix does not void the entry of a file that
// is stored again meanwhile.
func TestRemoveAllKeepsLaterFiles(t *testing.T) {
	dir := t.TempDir()
	f, err := openFileStore(dir, time.Now(), nil)
	require.NoError(t, err)
	storeSmall(t, f, "p/a", "one")
	f.step = func() {
		f.step = func() {}
		storeSmall(t, f, "p/a", "two")
	}
	require.NoError(t, f.removeAll("p/"))
	kill(t, f)
	for _, path := range []string{f.path("p/a"), f.recordPath("p/a")} {
		require.NoError(t, os.Remove(path)) // a power failure
	}
	require.Equal(t, "two", content(t, reopen(t, dir, io.Discard), "p/a"))
}

// TestRecoverKeepsContentOfAnotherProcess checks that a start does not replace what another process
// stores at the same time.
func TestRecoverKeepsContentOfAnotherProcess(t *testing.T) {
	f, err := openFileStore(t.TempDir(), time.Now(), nil)
	require.NoError(t, err)
	other, err := openFileStore(f.dir, time.Now(), nil)
	require.NoError(t, err)
	storeSmall(t, f, "a", "one")
	f.step = func() {
		f.step = func() {}
		storeSmall(t, other, "a", "three")
	}
	change := entry{key: "a", before: []digest{smallDigest([]byte("one"))}, content: []byte("two")}
	require.NoError(t, journaled{f}.repeat(change))
	data, err := os.ReadFile(f.path("a"))
	require.NoError(t, err)
	require.Equal(t, "three", string(data))
}

// TestRemovalsAreDurable checks that the directory of a removed file is synced separately: a content that a power
// failure brings back would take the place of a later small one.
func TestRemovalsAreDurable(t *testing.T) {
	f, err := openFileStore(t.TempDir(), time.Now(), nil)
	require.NoError(t, err)
	storeSmall(t, f, "p/a/f", "one")
	storeSmall(t, f, "p/b/f", "one")
	synced := map[string]bool{}
	f.syncDir = func(path string) error { synced[path] = true; return disk.Sync(path) }
	require.NoError(t, f.delete("p/a/f"))
	require.Contains(t, synced, f.path("p/a"))
	require.NoError(t, f.removeAll("p/b/"))
	require.Contains(t, synced, f.path("p"))
}
