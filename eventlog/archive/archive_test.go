package archive

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/internal/testutil"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// filled adds n events of a few resources to an archive, and returns the positions of each
// resource's events.
func filled(t *testing.T, a *Archive, n int) map[domain.Name][]uint64 {
	random := rand.New(rand.NewPCG(1, uint64(n)))
	positions := map[domain.Name][]uint64{}
	for position := uint64(1); position <= uint64(n); position++ {
		name := domain.NewName("acme", "datasets", fmt.Sprintf("d%d", random.IntN(9)*random.IntN(9)))
		var previous uint64
		if earlier := positions[name]; len(earlier) > 0 {
			previous = earlier[len(earlier)-1]
		}
		var state []byte
		if previous > 0 && CarriesState(position) {
			state = fmt.Appendf(nil, "state %d", position)
		}
		a.Add(eventAt(position, name), previous, state)
		positions[name] = append(positions[name], position)
	}
	last, newest := a.Last()
	require.Equal(t, uint64(n), last)
	require.Equal(t, eventAt(uint64(n), "").Time, newest)
	return positions
}

func eventAt(position uint64, name domain.Name) eventlog.Event {
	return eventlog.Event{Record: domain.Record{Type: "dataset.updated.v1", Data: fmt.Appendf(nil, `{"n": %d}`, position)},
		Position: position, ID: fmt.Sprintf("event-%d", position), Name: name,
		Time: epoch.Add(time.Duration(position) * time.Second)}
}

// check requires that an archive has all events at the given positions, with their links and their
// chains.
func check(t *testing.T, a *Archive, positions map[domain.Name][]uint64) {
	t.Helper()
	for name, all := range positions {
		for i, position := range all {
			entry, err := a.Get(position)
			require.NoError(t, err)
			want := eventAt(position, name)
			require.Equal(t, want, eventlog.Event{Record: entry.Record, Position: entry.Position, ID: entry.ID,
				Name: entry.Name, Time: entry.Time})
			if i > 0 && CarriesState(position) {
				require.Equal(t, fmt.Sprintf("state %d", position), string(entry.State))
			} else {
				require.Nil(t, entry.State)
			}
			found, err := a.Find(all[len(all)-1], position)
			require.NoError(t, err)
			require.Equal(t, position, found)
			found, err = a.Find(all[len(all)-1], position-1)
			require.NoError(t, err)
			if i == 0 {
				require.Zero(t, found)
			} else {
				require.Equal(t, all[i-1], found)
			}
			chain, err := a.Chain(position)
			require.NoError(t, err)
			require.Equal(t, all[i+1-len(chain):i+1], chain)
			require.True(t, len(chain) == i+1 || CarriesState(chain[0]))
		}
	}
}

// checkWalks requires that Walk finds what Find and Chain find, at positions over the whole
// archive.
func checkWalks(t *testing.T, a *Archive, positions map[domain.Name][]uint64) {
	t.Helper()
	var versions []uint64
	for _, all := range positions {
		versions = append(versions, all[len(all)-1], all[len(all)/2])
	}
	last, _ := a.Last()
	for position := uint64(1); position <= last; position += 61 {
		got := make([][]uint64, len(versions))
		newest := last
		require.NoError(t, a.Walk(versions, position, func(i int, at uint64, oldest bool) error {
			require.LessOrEqual(t, at, newest, "positions descend")
			newest, got[i] = at, append(got[i], at)
			chain, err := a.Chain(got[i][0])
			require.NoError(t, err)
			require.Equal(t, chain[0] == at, oldest)
			return nil
		}))
		for i, version := range versions {
			found, err := a.Find(version, position)
			require.NoError(t, err)
			chain, err := a.Chain(found)
			require.NoError(t, err)
			slices.Reverse(chain)
			require.Equal(t, chain, got[i], "at position %d", position)
		}
	}
	failed := errors.New("failed")
	require.ErrorIs(t, a.Walk(versions, last, func(int, uint64, bool) error { return failed }), failed)
}

// checkFirsts requires that Firsts has the first event of each resource and no other event. All
// events are written.
func checkFirsts(t *testing.T, a *Archive, positions map[domain.Name][]uint64) {
	t.Helper()
	firsts := a.Firsts()
	for _, all := range positions {
		for i, at := range all {
			require.Equal(t, i == 0, firsts.Has(at), "position %d", at)
		}
	}
	last, _ := a.Last()
	require.False(t, firsts.Has(0))
	require.False(t, firsts.Has(last+1))
}

func TestArchive(t *testing.T) {
	for kind, a := range map[string]*Archive{"memory": NewMemory(), "files": opened(t, t.TempDir())} {
		t.Run(kind, func(t *testing.T) {
			positions := filled(t, a, 2_345)
			check(t, a, positions) // at this point, some events are only in memory
			checkWalks(t, a, positions)
			require.NoError(t, a.Flush())
			check(t, a, positions)
			checkWalks(t, a, positions)
			checkFirsts(t, a, positions)
			for _, seconds := range []int{-5, 0, 1, 700, 2_344, 2_345, 9_000} {
				position, err := a.At(epoch.Add(time.Duration(seconds) * time.Second))
				require.NoError(t, err)
				require.Equal(t, uint64(min(max(seconds, 0), 2_345)), position)
			}
			_, err := a.Get(2_346)
			require.Equal(t, domain.Unavailable, domain.CodeOf(err))
			_, err = a.Get(0)
			require.Equal(t, domain.Unavailable, domain.CodeOf(err))
			require.NoError(t, a.Close())
			require.NoError(t, a.Close())
		})
	}
}

func opened(t *testing.T, dir string) *Archive {
	a, err := Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { _ = a.Close() })
	return a
}

// TestKeep checks that an archive continues from a checkpoint, whatever was written after it.
func TestKeep(t *testing.T) {
	dir := t.TempDir()
	a := opened(t, dir)
	positions := filled(t, a, 1_000)
	require.NoError(t, a.Close())
	at := eventlog.Checkpoint{Position: 500, EventID: "event-500"}
	for name, damage := range map[string]func(frames, links *os.File, size int64){
		"none":       func(_, _ *os.File, _ int64) {},
		"cut frames": func(frames, _ *os.File, size int64) { require.NoError(t, frames.Truncate(size-100)) },
		"cut links":  func(_, links *os.File, _ int64) { require.NoError(t, links.Truncate(700*linkBytes)) },
		"zeros": func(frames, _ *os.File, size int64) {
			_, err := frames.WriteAt(make([]byte, 200), size-200)
			require.NoError(t, err)
		},
	} {
		frames, err := os.OpenFile(filepath.Join(dir, framesFile), os.O_RDWR, 0)
		require.NoError(t, err)
		links, err := os.OpenFile(filepath.Join(dir, linksFile), os.O_RDWR, 0)
		require.NoError(t, err)
		info, err := frames.Stat()
		require.NoError(t, err)
		damage(frames, links, info.Size())
		require.NoError(t, frames.Close())
		require.NoError(t, links.Close())

		a := opened(t, dir)
		complete, err := a.Keep(eventlog.Checkpoint{Position: 500, EventID: "another"})
		require.NoError(t, err)
		require.False(t, complete, name)
		complete, err = a.Keep(eventlog.Checkpoint{Position: 5_000, EventID: "event-5000"})
		require.NoError(t, err)
		require.False(t, complete, name)
		complete, err = a.Keep(at)
		require.NoError(t, err)
		require.True(t, complete, name)
		last, newest := a.Last()
		require.Equal(t, at.Position, last, "later events may not be in the log any more")
		require.Equal(t, eventAt(at.Position, "").Time, newest.UTC())
		again(a, positions, 1_000)
		check(t, a, positions)
		checkWalks(t, a, positions)
		require.NoError(t, a.Flush())
		checkFirsts(t, a, positions)
		require.NoError(t, a.Close())
	}
}

// TestKeepRemovesLaterEvents checks that an archive has the events of the log after a power failure
// in which the log has lost those after a checkpoint, and that it keeps those up to the checkpoint
// on disk.
func TestKeepRemovesLaterEvents(t *testing.T) {
	const lost = 20
	for _, last := range []uint64{1, frameEvents - 1, frameEvents, frameEvents + 1, 100} {
		dir := t.TempDir()
		a := opened(t, dir)
		positions := filled(t, a, int(last+lost))
		require.NoError(t, a.Close())
		at := eventlog.Checkpoint{Position: last, EventID: fmt.Sprintf("event-%d", last)}

		complete, err := opened(t, dir).Keep(at)
		require.NoError(t, err)
		require.True(t, complete)
		a = opened(t, dir) // the process was killed, so the archive is opened again without Close
		complete, err = a.Keep(at)
		require.NoError(t, err)
		require.True(t, complete, "it keeps the events up to position %d on disk", last)

		const name = "accounts/acme/datasets/other"
		for n := uint64(1); n <= lost; n++ {
			e := eventAt(last+n, name)
			e.ID = "another-" + e.ID
			a.Add(e, 0, nil)
		}
		for n := uint64(1); n <= lost; n++ {
			entry, err := a.Get(last + n)
			require.NoError(t, err)
			require.Equal(t, domain.Name(name), entry.Name)
			require.Equal(t, fmt.Sprintf("another-event-%d", last+n), entry.ID)
		}
		for name, all := range positions {
			positions[name] = slices.DeleteFunc(all, func(position uint64) bool { return position > last })
			if len(positions[name]) == 0 {
				delete(positions, name)
			}
		}
		check(t, a, positions)
	}
}

// TestDamagedLinks checks that an archive whose links are damaged is not used from there on,
// because a link leads to another state without an error.
func TestDamagedLinks(t *testing.T) {
	dir := t.TempDir()
	a := opened(t, dir)
	filled(t, a, 300)
	require.NoError(t, a.Close())
	path := filepath.Join(dir, linksFile)
	links := testutil.ReadFile(t, path)
	for at := 0; at < len(links); at += 131 {
		links[at] ^= 1
		require.NoError(t, os.WriteFile(path, links, 0o600))
		links[at] ^= 1
		a, position := opened(t, dir), at/linkBytes+1
		last, _ := a.Last()
		require.Less(t, last, uint64(position), "byte %d", at)
		complete, err := a.Keep(eventlog.Checkpoint{Position: uint64(position), EventID: fmt.Sprintf("event-%d", position)})
		require.NoError(t, err)
		require.False(t, complete, "byte %d", at)
		require.NoError(t, a.Close())
	}
}

// TestStatesOfPeriodicChanges checks that a resource whose events have any regular distance carries
// states often enough.
func TestStatesOfPeriodicChanges(t *testing.T) {
	const events = 5_000
	for period := uint64(1); period <= 5_000; period++ {
		without, longest := 0, 0
		for n := range uint64(events) {
			if without++; CarriesState(1 + n*period) {
				without = 0
			}
			longest = max(longest, without)
		}
		require.Less(t, longest, 400, "period %d", period)
	}
}

// TestSpaceOfTheLog checks that an archive leaves the space of the disk that the log needs, and
// that a server starts without it.
func TestSpaceOfTheLog(t *testing.T) {
	dir := t.TempDir()
	a := opened(t, dir)
	filled(t, a, 100)
	require.NoError(t, a.Flush())
	a.space = disk.New(func() (uint64, error) { return uint64(disk.Files), nil })
	a.Add(eventAt(101, "accounts/acme/datasets/d"), 0, nil)
	err := a.Flush()
	require.ErrorContains(t, err, "the disk is nearly full (48 MB free)")
	require.Equal(t, domain.ResourceExhausted, domain.CodeOf(err))
	_, err = a.Get(100)
	require.NoError(t, err, "what is written remains")
	_, err = a.Get(101)
	require.ErrorContains(t, err, "ends at position 100, because writing it failed (the disk is nearly full")
	_ = a.Close()

	a = opened(t, dir)
	a.space = disk.New(func() (uint64, error) { return uint64(disk.Files), nil })
	complete, err := a.Keep(eventlog.Checkpoint{Position: 90, EventID: "event-90"})
	require.NoError(t, err)
	require.True(t, complete)
	require.ErrorContains(t, a.Err(), "the disk is nearly full")
}

// again adds the events up to a position again, as a world does that continues from a snapshot.
func again(a *Archive, positions map[domain.Name][]uint64, upTo uint64) {
	type known struct {
		name     domain.Name
		previous uint64
	}
	at := map[uint64]known{}
	for name, all := range positions {
		for i, position := range all {
			at[position] = known{name: name}
			if i > 0 {
				at[position] = known{name, all[i-1]}
			}
		}
	}
	for position := uint64(1); position <= upTo; position++ {
		var state []byte
		if at[position].previous > 0 && CarriesState(position) {
			state = fmt.Appendf(nil, "state %d", position)
		}
		a.Add(eventAt(position, at[position].name), at[position].previous, state)
	}
}

// TestDamageIsReported checks that each flipped byte of a frame leads to an error and never to
// another event.
func TestDamageIsReported(t *testing.T) {
	a := NewMemory()
	defer a.Close()
	filled(t, a, frameEvents+5)
	require.NoError(t, a.Flush())
	data := a.frames.(*memoryFile).data
	for i := frameHeader; i < a.index[0].length; i += 7 {
		a.cache.clear()
		data[i] ^= 4
		_, err := a.Get(3)
		require.Equal(t, domain.DataLoss, domain.CodeOf(err), "byte %d", i)
		data[i] ^= 4
	}
	_, err := a.Get(3)
	require.NoError(t, err)
}

// failing is a file whose writes fail.
type failing struct{ memoryFile }

func (*failing) WriteAt([]byte, int64) (int, error) { return 0, fmt.Errorf("no space left on device") }

// TestFullDisk checks that an archive that cannot be written does not block the world.
func TestFullDisk(t *testing.T) {
	a := start(&failing{}, &memoryFile{})
	var all sync.WaitGroup
	all.Go(func() {
		for position := uint64(1); position <= 100*frameEvents; position++ {
			a.Add(eventAt(position, "accounts/acme/datasets/d"), position-1, nil)
		}
	})
	all.Wait()
	require.ErrorContains(t, a.Flush(), "no space left")
	require.ErrorContains(t, a.Err(), "no space left")
	_, err := a.Get(1)
	require.Equal(t, domain.Unavailable, domain.CodeOf(err))
	require.ErrorContains(t, err, "ends at position 0,")
	require.ErrorContains(t, err, "free space on the disk")
	require.Error(t, a.Close())
}
