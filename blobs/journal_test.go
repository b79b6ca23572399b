package blobs

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/disk"
	"anneal/domain"
)

// A powerFailure is a file store of which nothing is on disk but what was synced: the journal, and the
// files that were stored outside of it.
type powerFailure struct {
	*fileStore
	contents map[string]string // that were acknowledged; "" after the key was deleted
	unsynced map[string]bool   // keys whose file and record are not on disk
}

// strike copies the directory as a power failure leaves it, and opens the copy. Of a file that is not
// synced, nothing may be left, or another content of the same or another length, or all.
func (p *powerFailure) strike(t *testing.T, random *rand.Rand) *Store {
	dir := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.CopyFS(dir, os.DirFS(p.dir)))
	for _, key := range slices.Sorted(maps.Keys(p.unsynced)) {
		damaged := fileStore{dir: dir}
		for _, path := range []string{damaged.path(key), damaged.recordPath(key)} {
			content, err := os.ReadFile(path)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			require.NoError(t, err)
			switch random.IntN(5) {
			case 0:
				require.NoError(t, os.Remove(path))
			case 1:
				require.NoError(t, os.Truncate(path, 0))
			case 2:
				require.NoError(t, os.WriteFile(path, make([]byte, len(content)), 0o600))
			case 3:
				require.NoError(t, os.WriteFile(path, content[:len(content)/2], 0o600))
			}
		}
	}
	return reopen(t, dir, io.Discard)
}

// change makes a random change of a random key.
func (p *powerFailure) change(t *testing.T, random *rand.Rand) {
	key := fmt.Sprintf("a/%d/f", random.IntN(6))
	text := fmt.Sprint("content ", random.IntN(3))
	switch random.IntN(8) {
	case 0:
		require.NoError(t, p.delete(key))
		delete(p.unsynced, key)
		p.contents[key] = ""
		return
	case 1:
		text = strings.Repeat(text, maxSmall/len(text)+1)
	case 2:
		_, err := p.put(t.Context(), key, strings.NewReader(text), p.commit)
		require.NoError(t, err)
		delete(p.unsynced, key)
		p.contents[key] = text
		return
	case 3:
		source := fmt.Sprintf("a/%d/f", random.IntN(6))
		if p.contents[source] == "" || source == key {
			return
		}
		require.NoError(t, p.link(key, source))
		delete(p.unsynced, key)
		p.contents[key] = p.contents[source]
		return
	case 4:
		all := map[string][]byte{key: []byte(text)}
		for range 3 {
			all[fmt.Sprintf("a/%d/f", random.IntN(6))] = []byte(text)
		}
		require.NoError(t, journaled{p.fileStore}.storeAll(t.Context(), all))
		for key := range all {
			p.unsynced[key], p.contents[key] = true, text
		}
		return
	}
	_, err := journaled{p.fileStore}.store(t.Context(), key, strings.NewReader(text))
	require.NoError(t, err)
	if p.contents[key] = text; len(text) <= maxSmall {
		p.unsynced[key] = true
	} else {
		delete(p.unsynced, key)
	}
}

// TestPowerFailureKeepsSmallFiles checks that no acknowledged content is lost, and no deleted file is
// back, whatever a power failure leaves of the files that only the journal has.
func TestPowerFailureKeepsSmallFiles(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 0))
		f, err := openFileStore(t.TempDir(), time.Now(), nil)
		require.NoError(t, err)
		p := &powerFailure{fileStore: f, contents: map[string]string{}, unsynced: map[string]bool{}}
		for range 5 + random.IntN(30) {
			p.change(t, random)
		}
		s := p.strike(t, random)
		for key, want := range p.contents {
			data, err := read(s, key)
			if want == "" {
				require.Equal(t, domain.NotFound, domain.CodeOf(err), "seed %d: %s", seed, key)
				continue
			}
			require.NoError(t, err, "seed %d: %s", seed, key)
			require.Equal(t, want, string(data), "seed %d: %s", seed, key)
		}
		left, err := segments(filepath.Join(s.files.dir, digests))
		require.NoError(t, err)
		require.Empty(t, left, "the journal is removed")
	}
}

// TestJournalSharesSyncs checks that one fdatasync makes the files of many callers durable.
func TestJournalSharesSyncs(t *testing.T) {
	f, err := openFileStore(t.TempDir(), time.Now(), nil)
	require.NoError(t, err)
	var syncs atomic.Int64
	begun, goOn := make(chan struct{}), make(chan struct{})
	f.journal.sync = func(file *os.File) error {
		if syncs.Add(1) == 1 {
			close(begun)
			<-goOn
		}
		return disk.Fdatasync(file)
	}
	var all sync.WaitGroup
	all.Go(func() { assert.NoError(t, journaled{f}.putSmall(smallFile{key: "first", content: []byte("text")})) })
	<-begun
	var entries []entry
	for i := range 30 {
		entries = append(entries, entry{key: fmt.Sprint("f", i), content: []byte("text")})
	}
	for _, e := range entries {
		all.Go(func() {
			applied, err := f.journal.append(nil, e)
			if assert.NoError(t, err) {
				applied()
			}
		})
	}
	for waiting := 0; waiting < len(entries); {
		f.journal.mu.Lock()
		if f.journal.next != nil {
			waiting = len(f.journal.next.keys)
		}
		f.journal.mu.Unlock()
	}
	close(goOn)
	all.Wait()
	require.EqualValues(t, 2, syncs.Load())
}

// TestJournalGathers checks that a round waits for an announced entry, but not for long.
func TestJournalGathers(t *testing.T) {
	f, err := openFileStore(t.TempDir(), time.Now(), nil)
	require.NoError(t, err)
	syncs := 0
	f.journal.sync = func(*os.File) error { syncs++; return nil }
	put := func(key string, arrive func()) {
		applied, err := f.journal.append(arrive, entry{key: key})
		if assert.NoError(t, err) {
			applied()
		}
	}
	put("a", nil)
	f.journal.took = time.Minute
	arrive := f.journal.announce()
	var all sync.WaitGroup
	all.Go(func() { put("b", nil) })
	for gathering := false; !gathering; {
		f.journal.mu.Lock()
		gathering = f.journal.arrived != nil
		f.journal.mu.Unlock()
	}
	put("c", arrive)
	all.Wait()
	require.Equal(t, 2, syncs, "b and c share a sync")
	f.journal.took = time.Millisecond
	arrive = f.journal.announce()
	put("d", nil)
	require.Equal(t, 3, syncs, "the announced entry did not arrive in time")
	arrive()
}

// TestJournalSegments checks that a full segment is removed once its files are on disk, and that
// closing the store removes the last one.
func TestJournalSegments(t *testing.T) {
	s := open(t, "")
	checkpoints := 0
	s.files.journal.checkpoint = func() error { checkpoints++; return nil }
	content := strings.Repeat("x", maxSmall)
	for i := range 2*maxSegment/maxSmall + 20 {
		_, err := s.Put(t.Context(), fmt.Sprint("f/", i%10), strings.NewReader(content))
		require.NoError(t, err)
	}
	s.files.journal.close()
	require.GreaterOrEqual(t, checkpoints, 2)
	left, err := segments(filepath.Join(s.files.dir, digests))
	require.NoError(t, err)
	require.Empty(t, left)
	require.Empty(t, s.files.journal.keys)
}

// TestFailedJournal checks that files are stored without the journal once a sync of it has failed, and
// that a failed sync acknowledges nothing.
func TestFailedJournal(t *testing.T) {
	f, err := openFileStore(t.TempDir(), time.Now(), nil)
	require.NoError(t, err)
	failed := errors.New("the disk failed")
	f.journal.sync = func(*os.File) error { return failed }
	_, err = journaled{f}.store(t.Context(), "a", strings.NewReader("text"))
	require.ErrorIs(t, err, failed)
	require.NoFileExists(t, f.path("a"))
	_, err = journaled{f}.store(t.Context(), "a", strings.NewReader("text"))
	require.NoError(t, err)
	require.FileExists(t, f.path("a"))
	unfinished, err := os.ReadDir(filepath.Join(f.dir, staging))
	require.NoError(t, err)
	require.Empty(t, unfinished)
}

// TestSecondProcessHasNoJournal checks that a second store of one directory syncs each file, and that
// its later content is not replaced by an earlier one in the journal of the first.
func TestSecondProcessHasNoJournal(t *testing.T) {
	dir := t.TempDir()
	first, err := openFileStore(dir, time.Now(), nil)
	require.NoError(t, err)
	second, err := openFileStore(dir, time.Now(), nil)
	require.NoError(t, err)
	require.Nil(t, second.journal)
	_, err = journaled{first}.store(t.Context(), "a", strings.NewReader("one"))
	require.NoError(t, err)
	_, err = journaled{second}.store(t.Context(), "a", strings.NewReader("two"))
	require.NoError(t, err)
	require.NoError(t, first.journal.lock.Close()) // the first process is killed
	third := reopen(t, dir, io.Discard)
	require.NotNil(t, third.files.journal)
	require.Equal(t, "two", content(t, third, "a"))
}

// TestTornJournal checks that an incomplete or damaged entry ends the journal.
func TestTornJournal(t *testing.T) {
	first := appendEntry(nil, entry{key: "a", before: []digest{smallDigest([]byte("b"))}, content: []byte("c")})
	second := appendEntry(nil, entry{key: "d", superseded: true})
	for n := range len(second) {
		e, rest, ok := cutEntry(append(slices.Clone(first), second[:n]...))
		require.True(t, ok)
		require.Equal(t, entry{key: "a", before: []digest{smallDigest([]byte("b"))}, content: []byte("c")}, e)
		_, _, ok = cutEntry(rest)
		require.False(t, ok, "%d bytes", n)
		damaged := slices.Clone(second)
		damaged[n] ^= 1
		_, _, ok = cutEntry(damaged)
		require.False(t, ok, "byte %d", n)
	}
	e, rest, ok := cutEntry(second)
	require.True(t, ok)
	require.Equal(t, entry{key: "d", superseded: true}, e)
	require.Empty(t, rest)
}
