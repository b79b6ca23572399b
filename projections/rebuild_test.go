package projections

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/archive"
	"anneal/projections/toytest"
)

func ignoreProgress(uint64, uint64) {}

// corrupt changes the row of a toy in memory, without an event.
func corrupt(w *World, name domain.Name, change func(*toytest.Toy)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.folds[toytest.Kind.Collection]
	old, _ := f.table.rows.Get(name)
	row := old.row.Clone()
	change(&row.(*Row[toytest.Toy]).State)
	f.table.put(row, old)
	f.changed, w.view = true, nil
}

func TestRebuildOfAnEqualWorld(t *testing.T) {
	log, w := threeToys(t)
	before := digestOf(t, w)
	var last [2]uint64
	c, err := Rebuild(t.Context(), w, log, func(folded, end uint64) { last = [2]uint64{folded, end} })
	require.NoError(t, err)
	require.True(t, c.Equal())
	require.Equal(t, before, c.Served)
	require.Equal(t, before, c.Folded)
	require.Equal(t, before, digestOf(t, w))
	require.Equal(t, [2]uint64{5, 5}, last)

	c, err = Rebuild(t.Context(), toyWorld(), eventlog.NewMemory(), ignoreProgress)
	require.NoError(t, err)
	require.True(t, c.Equal(), "a log without events")
}

// TestRebuildFindsDifferences plants each difference that there can be, and checks that the rebuild names
// the resource, and that the world then has the state of the log and continues from it.
func TestRebuildFindsDifferences(t *testing.T) {
	one, three := toytest.Name("acme", 1), toytest.Name("acme", 3)
	for _, line := range []struct {
		what  string
		plant func(f *fold)
		want  []Difference
	}{
		{"a changed row", func(f *fold) {
			old, _ := f.table.rows.Get(one)
			row := old.row.Clone()
			row.(*Row[toytest.Toy]).State.Size++
			f.table.put(row, old)
		}, []Difference{{string(one), DiffersChanged}}},
		{"a missing row", func(f *fold) {
			old, _ := f.table.rows.Get(one)
			f.table.remove(one, old.row.Head().CreateTime, 1)
			f.table.deleted.Delete(one)
		}, []Difference{{string(one), DiffersMissing}}},
		{"a row that was deleted", func(f *fold) {
			old, _ := f.table.rows.Get(one)
			f.table.remove(one, old.row.Head().CreateTime, 1)
		}, []Difference{{string(one), DiffersMissing}}},
		{"a deleted resource", func(f *fold) {
			row := f.kind.NewRow(three)
			f.table.put(row, cell{})
		}, []Difference{{string(three), DiffersExtra}}},
		{"another version of a deleted resource", func(f *fold) { f.table.deleted.Set(three, 1) },
			[]Difference{{string(three), DiffersChanged}}},
		{"no version of a deleted resource", func(f *fold) { f.table.deleted.Delete(three) },
			[]Difference{{string(three), DiffersMissing}}},
		{"a deleted resource that never existed", func(f *fold) { f.table.deleted.Set(toytest.Name("acme", 9), 1) },
			[]Difference{{string(toytest.Name("acme", 9)), DiffersExtra}}},
	} {
		t.Run(line.what, func(t *testing.T) {
			log, w := threeToys(t)
			right := digestOf(t, w)
			f := w.folds[toytest.Kind.Collection]
			line.plant(f)
			f.changed, w.view = true, nil
			wrong := digestOf(t, w)
			require.NotEqual(t, right.SHA256, wrong.SHA256)

			c, err := Rebuild(t.Context(), w, log, ignoreProgress)
			require.NoError(t, err)
			require.Equal(t, Comparison{wrong, right, line.want, 1}, c)
			require.False(t, c.Equal())
			require.Equal(t, right, digestOf(t, w))

			toytest.Add(t, log, one, toytest.Tag("later"))
			toytest.Add(t, log, three, toytest.Make("kite", 6))
			require.Equal(t, digestOf(t, replay(t, toyWorld(), log)), digestOf(t, replay(t, w, log)))
		})
	}
}

// TestRebuildComparesAllWorlds compares the differences of random worlds with those of a simple comparison.
func TestRebuildComparesAllWorlds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		worlds := [2]map[int]int64{}
		views := [2]*View{}
		for i := range worlds {
			worlds[i] = rapid.MapOf(rapid.IntRange(0, 9), rapid.Int64Range(0, 2)).Draw(t, "rows")
			w := toyWorld()
			f := w.folds[toytest.Kind.Collection]
			for n, size := range worlds[i] {
				row := f.kind.NewRow(toytest.Name("acme", n))
				row.(*Row[toytest.Toy]).State = toytest.Toy{Size: size, Alive: true}
				f.table.put(row, cell{})
			}
			views[i] = w.View()
		}
		var want []Difference
		for n := range 10 {
			was, served := worlds[0][n]
			is, folded := worlds[1][n]
			name := string(toytest.Name("acme", n))
			switch {
			case served && !folded:
				want = append(want, Difference{name, DiffersExtra})
			case folded && !served:
				want = append(want, Difference{name, DiffersMissing})
			case was != is:
				want = append(want, Difference{name, DiffersChanged})
			}
		}
		c, err := Compare(t.Context(), views[0], views[1])
		require.NoError(t, err)
		require.Equal(t, want, c.Differences)
		for i, got := range []Digest{c.Served, c.Folded} {
			digest, err := views[i].Digest()
			require.NoError(t, err)
			require.Equal(t, digest, got)
		}
	})
}

// TestARebuildThatIsNotComparedSaysSo cancels a rebuild after it has replaced the tables. The error says
// that they were replaced.
func TestARebuildThatIsNotComparedSaysSo(t *testing.T) {
	log, w := threeToys(t)
	right := digestOf(t, w)
	corrupt(w, toytest.Name("acme", 1), func(toy *toytest.Toy) { toy.Size = 77 })
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Rebuild(ctx, w, log, func(uint64, uint64) {
		if w.rebuilds > 0 {
			cancel()
		}
	})
	var replaced *NotComparedError
	require.ErrorAs(t, err, &replaced)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, w.Position(), replaced.Position)
	require.Equal(t, right, digestOf(t, w))
}

// A cutLog is a log whose reads end with an error, or call between, after some events.
type cutLog struct {
	eventlog.Log
	after   int
	err     error
	between func()
}

func (l *cutLog) Read(ctx context.Context, filter string, after uint64) iter.Seq2[eventlog.Event, error] {
	return func(yield func(eventlog.Event, error) bool) {
		for e, err := range l.Log.Read(ctx, filter, after) {
			if l.after--; l.after == 0 {
				if l.err != nil {
					yield(eventlog.Event{}, l.err)
					return
				}
				l.between()
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// TestFailedRebuildsChangeNothing ends rebuilds at each event: the world keeps its tables and continues.
func TestFailedRebuildsChangeNothing(t *testing.T) {
	log, w := threeToys(t)
	corrupt(w, toytest.Name("acme", 1), func(toy *toytest.Toy) { toy.Size = 77 })
	before, cut := digestOf(t, w), errors.New("cut")
	for after := 1; after <= 5; after++ {
		_, err := Rebuild(t.Context(), w, &cutLog{Log: log, after: after, err: cut}, ignoreProgress)
		require.ErrorIs(t, err, cut)
		require.Equal(t, before, digestOf(t, w))

		ctx, cancel := context.WithCancel(t.Context())
		_, err = Rebuild(ctx, w, &cutLog{Log: log, after: after, between: cancel}, ignoreProgress)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, before, digestOf(t, w))
		require.Nil(t, w.backlog)
	}
	short := eventlog.NewMemory()
	toytest.Add(t, short, toytest.Name("acme", 1), toytest.Make("ball", 3))
	_, err := Rebuild(t.Context(), w, short, ignoreProgress)
	require.Equal(t, domain.DataLoss, domain.CodeOf(err))
	other := eventlog.NewMemory()
	for n := range 5 {
		record, err := toytest.Kind.Encode(toytest.Make("ball", 3))
		require.NoError(t, err)
		_, err = other.Append(t.Context(),
			eventlog.Write{Event: eventlog.Event{Record: record, ID: "other", Name: toytest.Name("acme", n)}})
		require.NoError(t, err)
	}
	_, err = Rebuild(t.Context(), w, other, ignoreProgress)
	require.ErrorContains(t, err, "but the served state ends with event")
	require.Equal(t, before, digestOf(t, w))

	w.backlog = &backlog{}
	_, err = Rebuild(t.Context(), w, log, ignoreProgress)
	require.ErrorContains(t, err, "another rebuild is running")
	w.backlog = nil
	c, err := Rebuild(t.Context(), w, log, ignoreProgress)
	require.NoError(t, err)
	require.Equal(t, []Difference{{string(toytest.Name("acme", 1)), DiffersChanged}}, c.Differences)
}

// TestRebuildsUnderWrites rebuilds while events are appended and views are read. Each view has the state
// of its position, before and after each switch.
func TestRebuildsUnderWrites(t *testing.T) {
	log, w := eventlog.NewMemory(), toyWorld()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = w.Run(ctx, log) })
	const toys = 50
	for n := range toys {
		toytest.Add(t, log, toytest.Name("acme", n), toytest.Make("ball", int64(n)))
	}
	var writes sync.WaitGroup
	for writer := range 2 {
		writes.Go(func() {
			for i := range 1_000 {
				toytest.Add(t, log, toytest.Name(fmt.Sprintf("a%d", writer), i%toys), toytest.Make("ball", int64(i)))
			}
		})
	}
	running.Go(func() {
		for ctx.Err() == nil {
			table := TableOf(w.View(), toytest.Kind)
			if table.Len() < toys {
				continue
			}
			count := 0
			for row := range table.In("acme") {
				if row.State.Size != int64(count) {
					t.Errorf("%s has size %d", row.Name, row.State.Size)
				}
				count++
			}
			if count != toys {
				t.Errorf("a view has %d toys", count)
			}
		}
	})
	rebuilt := make(chan struct{})
	go func() { writes.Wait(); close(rebuilt) }()
	require.NoError(t, w.WaitFor(ctx, toys))
	rebuilds := 0
	for done := false; !done; rebuilds++ {
		select {
		case <-rebuilt:
			done = true
		default:
		}
		c, err := Rebuild(ctx, w, log, ignoreProgress)
		require.NoError(t, err)
		require.True(t, c.Equal(), "%v", c.Differences)
	}
	last, err := log.Last(ctx)
	require.NoError(t, err)
	require.NoError(t, w.WaitFor(ctx, last.Position))
	stop()
	running.Wait()
	t.Logf("%d rebuilds, %d events", rebuilds, last.Position)
	require.Greater(t, rebuilds, 2)
	require.Equal(t, digestOf(t, replay(t, toyWorld(), log)), digestOf(t, w))
}

// TestTailsAreBounded checks that a rebuild gives up when it cannot follow.
func TestTailsAreBounded(t *testing.T) {
	_, w := threeToys(t)
	w.backlog = &backlog{events: make([]eventlog.Event, maxBacklog-1)}
	w.backlog.add(eventlog.Event{})
	require.False(t, w.backlog.overflow)
	w.backlog.add(eventlog.Event{})
	w.backlog.add(eventlog.Event{})
	require.True(t, w.backlog.overflow)
	require.Empty(t, w.backlog.events)
	_, _, err := (&rebuild{world: w, next: toyWorld()}).replace(t.Context())
	require.Equal(t, domain.ResourceExhausted, domain.CodeOf(err))
}

// TestRebuiltTablesOfEarlierPositions checks that tables of earlier positions do not keep rows of the
// state before the rebuild, and that later snapshots have the state after it.
func TestRebuiltTablesOfEarlierPositions(t *testing.T) {
	log, w := eventlog.NewMemory(), toyWorld()
	require.NoError(t, w.Archive(archive.NewMemory()))
	for n := range 3 {
		toytest.Add(t, log, toytest.Name("acme", n), toytest.Make("ball", 3))
	}
	replay(t, w, log)
	corrupt(w, toytest.Name("acme", 1), func(toy *toytest.Toy) { toy.Size = 77 })
	sizes := func() (all []int64) {
		v, err := w.ViewAt(t.Context(), 2)
		require.NoError(t, err)
		for row := range TableOf(v, toytest.Kind).In("acme") {
			all = append(all, row.State.Size)
		}
		require.NoError(t, v.Past.Err())
		return all
	}
	require.Equal(t, []int64{3, 77}, sizes())
	_, err := Rebuild(t.Context(), w, log, ignoreProgress)
	require.NoError(t, err)
	require.Equal(t, []int64{3, 3}, sizes())

	dir := filepath.Join(t.TempDir(), "snapshots")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, snapshotName(2)), nil, 0o600))
	require.NoError(t, w.Save(dir))
	require.NoError(t, RemoveSnapshotsBefore(w, dir, 3))
	require.Equal(t, []string{snapshotName(3)}, files(t, dir))
	opened, err := open(t.Context(), toyWorld, log, dir, nil)
	require.NoError(t, err)
	require.Equal(t, digestOf(t, w), digestOf(t, opened))
}
