package projections

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/archive"
	"anneal/internal/testutil"
	"anneal/projections/toytest"
)

// stored returns the samples of stored events of each kind.
func stored(t testing.TB) map[string][]domain.Record {
	text := testutil.ReadFile(t, filepath.Join("..", "domain", "testdata", "catalogue.txt"))
	samples := map[string][]domain.Record{}
	for line := range strings.Lines(string(text)) {
		name, body, _ := strings.Cut(strings.TrimSpace(line), " ")
		for _, kind := range domain.Kinds {
			for event := range kind.EventTypes() {
				if event == name {
					samples[kind.CollectionID()] = append(samples[kind.CollectionID()],
						domain.Record{Type: name, Data: json.RawMessage(body)})
				}
			}
		}
	}
	require.Len(t, samples, len(domain.Kinds))
	return samples
}

// randomLog returns n events of resources of all kinds. A few resources have most of the events;
// resources are deleted and created again.
func randomLog(t testing.TB, random *rand.Rand, n int) []eventlog.Event {
	samples := stored(t)
	probe := NewWorld() // rejects events that are not possible in the state of their resource
	events := make([]eventlog.Event, 0, n)
	for len(events) < n {
		kind := domain.Kinds[random.IntN(len(domain.Kinds))]
		number := random.IntN(40)
		if random.IntN(2) == 0 {
			number = random.IntN(2)
		}
		name := domain.NewName(fmt.Sprintf("a%d", random.IntN(3)), kind.CollectionID(), fmt.Sprintf("r%d", number))
		all := samples[kind.CollectionID()]
		e := eventlog.Event{Record: all[random.IntN(len(all))], Position: uint64(len(events) + 1), Name: name,
			ID: fmt.Sprintf("event-%d", len(events)+1), Actor: "test",
			Time: toytest.Epoch.Add(time.Duration(len(events)-random.IntN(3)) * time.Second)}
		fold, decoded, err := probe.decode(e)
		require.NoError(t, err)
		row := kind.NewRow(name)
		if one, exists := fold.table.rows.Get(name); exists {
			row = one.row.Clone()
		}
		if _, err := apply(row, decoded, e); err != nil {
			continue
		}
		require.NoError(t, probe.Apply(e))
		events = append(events, e)
	}
	return events
}

// archived returns a world that folded the events, with an archive in a directory.
func archived(t testing.TB, events []eventlog.Event, dir string) *World {
	a, err := archive.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { _ = a.Close() })
	w := NewWorld()
	require.NoError(t, w.Archive(a))
	for _, e := range events {
		require.NoError(t, w.Apply(e))
	}
	return w
}

// pairs is the number of pairs of a resource and a position that TestViewAtEqualsFold compares.
const pairs = 10_000

// TestViewAtEqualsFold compares the states of random resources at random positions, and all tables at
// some positions, with a fold from the beginning.
func TestViewAtEqualsFold(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	events := randomLog(t, random, 8_000)
	w := archived(t, events, t.TempDir())
	var names []domain.Name
	for _, e := range events {
		names = append(names, e.Name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	asked := map[uint64][]domain.Name{}
	for range pairs {
		position := 1 + random.Uint64N(uint64(len(events)))
		asked[position] = append(asked[position], names[random.IntN(len(names))])
	}
	folded := NewWorld()
	existing, whole := 0, 0
	for i, e := range events {
		require.NoError(t, folded.Apply(e))
		v := mustViewAt(t, w, e.Position)
		require.Equal(t, e.ID, v.EventID)
		for _, name := range asked[e.Position] {
			have, exists := v.tables[name.Collection()].row(name)
			want, wanted := folded.folds[name.Collection()].table.row(name)
			require.Equal(t, wanted, exists, "%s at %d", name, e.Position)
			require.Equal(t, folded.folds[name.Collection()].version(name), v.tables[name.Collection()].past.version(name))
			if exists {
				existing++
				require.Equal(t, encoded(t, want), encoded(t, have), "%s at %d", name, e.Position)
			}
		}
		if i%400 == 7 || i == len(events)-1 {
			have, want := tables(t, v), tables(t, folded.View())
			require.Equal(t, want, have, "position %d", e.Position)
			whole++
		}
		require.NoError(t, v.Past.Err())
	}
	require.Greater(t, existing, pairs/4)
	require.Greater(t, whole, 20)
}

func encoded(t testing.TB, row domain.AnyRow) string {
	text, err := encodeRow(row)
	require.NoError(t, err)
	return string(text)
}

// tables returns the digests of the tables of a view, without the history of waits.
func tables(t testing.TB, v *View) map[string]TableDigest {
	d, err := v.Digest()
	require.NoError(t, err)
	delete(d.Tables, historyTable)
	return d.Tables
}

// TestPastAccounts checks the rows of one account in every order, which the indexes of a past table give.
func TestPastAccounts(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	events := randomLog(t, random, 3_000)
	w, folded := archived(t, events, t.TempDir()), NewWorld()
	for _, e := range events {
		require.NoError(t, folded.Apply(e))
		if e.Position%300 != 1 {
			continue
		}
		v := mustViewAt(t, w, e.Position)
		want := folded.View()
		for _, account := range []string{"a0", "a2", "nobody"} {
			have, wanted := v.Datasets, want.Datasets
			require.Equal(t, wanted.Count(account), have.Count(account))
			for _, order := range []func(*Table[domain.Dataset]) func(func(*Row[domain.Dataset]) bool){
				func(t *Table[domain.Dataset]) func(func(*Row[domain.Dataset]) bool) { return t.In(account) },
				func(t *Table[domain.Dataset]) func(func(*Row[domain.Dataset]) bool) { return t.Oldest(account) },
				func(t *Table[domain.Dataset]) func(func(*Row[domain.Dataset]) bool) { return t.Newest(account) },
				func(t *Table[domain.Dataset]) func(func(*Row[domain.Dataset]) bool) {
					return t.CreatedBefore(account, nil)
				},
				func(t *Table[domain.Dataset]) func(func(*Row[domain.Dataset]) bool) {
					return t.NamedAfter(account, domain.NewName(account, "datasets", "r1"))
				},
			} {
				require.Equal(t, names(order(wanted)), names(order(have)))
			}
			checkBlocks(t, wanted, account)
			checkBlocks(t, have, account)
		}
		require.Equal(t, len(slices.Collect(want.Jobs())), len(slices.Collect(v.Jobs())))
		require.NoError(t, v.Past.Err())
	}
}

func TestPositionAt(t *testing.T) {
	events := randomLog(t, rand.New(rand.NewPCG(5, 6)), 1_000)
	w := archived(t, events, t.TempDir())
	for _, at := range []time.Time{toytest.Epoch.Add(-time.Hour), toytest.Epoch, toytest.Epoch.Add(300 * time.Second),
		toytest.Epoch.Add(777 * time.Second), toytest.Epoch.Add(time.Hour)} {
		want := uint64(len(events))
		for _, e := range events {
			if e.Time.After(at) {
				want = e.Position - 1
				break
			}
		}
		position, newest, err := w.PositionAt(at)
		require.NoError(t, err)
		require.Equal(t, want, position, at)
		require.False(t, newest.Before(events[len(events)-1].Time))
	}
	_, err := w.ViewAt(t.Context(), uint64(len(events))+1)
	require.Equal(t, domain.OutOfRange, domain.CodeOf(err))
	_, err = w.ViewAt(t.Context(), 0)
	require.Equal(t, domain.OutOfRange, domain.CodeOf(err))
	_, err = NewWorld().ViewAt(t.Context(), 1)
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
}

// TestPastTablesAreBounded checks that tables of earlier positions do not stay in memory without limit,
// and that one table is built for concurrent readers.
func TestPastTablesAreBounded(t *testing.T) {
	events := randomLog(t, rand.New(rand.NewPCG(7, 8)), 2_000)
	w := archived(t, events, t.TempDir())
	for position := uint64(1); position <= 2*maxPastTables; position++ {
		v := mustViewAt(t, w, position)
		v.Datasets.Count("a0")
		require.NoError(t, v.Past.Err())
	}
	w.pastTableCache.mu.Lock()
	kept, recent := len(w.pastTableCache.tables), w.pastTableCache.recent.Len()
	w.pastTableCache.mu.Unlock()
	require.LessOrEqual(t, kept, maxPastTables)
	require.Equal(t, kept, recent)

	ctx, cancel := context.WithCancel(t.Context())
	v, err := w.ViewAt(ctx, 1_000)
	require.NoError(t, err)
	cancel()
	v.Datasets.Get(domain.NewName("a0", "datasets", "r1"))
	require.ErrorIs(t, v.Past.Err(), context.Canceled)
}

// TestArchiveFollowsSnapshots checks that a world that continues from a snapshot continues its archive,
// and that an archive which lacks events, or is of another log, is written again.
func TestArchiveFollowsSnapshots(t *testing.T) {
	captureLog(t)
	log := eventlog.NewMemory()
	for n := range 300 {
		toytest.Add(t, log, toytest.Name("acme", n%7), toytest.Make(fmt.Sprint("toy ", n), int64(n)))
	}
	dir, archives := t.TempDir(), t.TempDir()
	start := func() (*World, *archive.Archive) {
		a, err := archive.Open(archives)
		require.NoError(t, err)
		w, err := open(t.Context(), toyWorld, log, dir, a)
		require.NoError(t, err)
		for position := uint64(1); position <= w.Position(); position += 37 {
			v := mustViewAt(t, w, position)
			row, exists := TableOf(v, toytest.Kind).Get(toytest.Name("acme", int(position-1)%7))
			require.True(t, exists)
			require.Equal(t, int64(position-1), row.State.Size)
			require.NoError(t, v.Past.Err())
		}
		return w, a
	}
	w, a := start()
	require.NoError(t, w.Save(dir))
	toytest.Add(t, log, toytest.Name("acme", 6), toytest.Make("toy 300", 300)) // not in the archive's files
	require.NoError(t, a.Close())
	w, a = start()
	require.Equal(t, uint64(300), w.saved, "it continues from the snapshot")
	require.NoError(t, a.Close())

	require.NoError(t, os.RemoveAll(archives))
	w, a = start()
	require.Zero(t, w.saved, "the events before the snapshot are archived again")
	require.NoError(t, w.Save(dir))
	require.NoError(t, a.Close())

	path := filepath.Join(archives, "frames-1")
	text := testutil.ReadFile(t, path)
	text[len(text)/2] ^= 1
	require.NoError(t, os.WriteFile(path, text, 0o600))
	w, a = startDamaged(t, log, dir, archives)
	v, err := w.ViewAt(t.Context(), 200)
	if err == nil {
		for n := range 7 {
			TableOf(v, toytest.Kind).Get(toytest.Name("acme", n))
		}
		err = v.Past.Err()
	}
	require.Equal(t, domain.DataLoss, domain.CodeOf(err), "damage is reported, not used")
	require.NoError(t, a.Close())
}

func startDamaged(t *testing.T, log eventlog.Log, dir, archives string) (*World, *archive.Archive) {
	a, err := archive.Open(archives)
	require.NoError(t, err)
	w, err := open(t.Context(), toyWorld, log, dir, a)
	require.NoError(t, err)
	return w, a
}

func mustViewAt(t testing.TB, w *World, position uint64) *View {
	t.Helper()
	view, err := w.ViewAt(t.Context(), position)
	require.NoError(t, err)
	return view
}
