package projections

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/archive"
	"anneal/projections/toytest"
)

// toyRange is a range of toys that are created or changed.
type toyRange struct {
	account     string
	first, last int
}

// archivedToys returns a world with an archive of events of toys, one for each toy of each range.
func archivedToys(t *testing.T, ranges ...toyRange) *World {
	log := eventlog.NewMemory()
	for _, r := range ranges {
		for n := r.first; n <= r.last; n++ {
			toytest.Add(t, log, toytest.Name(r.account, n), toytest.Make(fmt.Sprint("toy ", n), int64(n)))
		}
	}
	a := archive.NewMemory()
	t.Cleanup(func() { _ = a.Close() })
	w, err := open(t.Context(), toyWorld, log, t.TempDir(), a)
	require.NoError(t, err)
	return w
}

// toysAt returns the toys at a position.
func toysAt(ctx context.Context, t *testing.T, w *World, position uint64) (*Table[toytest.Toy], *Moment) {
	v, err := w.ViewAt(ctx, position)
	require.NoError(t, err)
	return TableOf(v, toytest.Kind), v.Past
}

// TestAbandonedBuilds checks that a table is not built when no request waits for it any more, so that the
// limit of concurrent requests also limits the builds.
func TestAbandonedBuilds(t *testing.T) {
	w := archivedToys(t, toyRange{"acme", 1, 100})
	for range maxPastBuilds {
		w.pastTableCache.builds <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for position := uint64(1); position < 100; position++ {
		toys, past := toysAt(ctx, t, w, position)
		toys.Count("acme")
		require.ErrorIs(t, past.Err(), context.Canceled)
	}
	w.pastTableCache.mu.Lock()
	require.Empty(t, w.pastTableCache.tables)
	require.Zero(t, w.pastTableCache.recent.Len())
	w.pastTableCache.mu.Unlock()
	for range maxPastBuilds {
		<-w.pastTableCache.builds
	}

	ctx, cancel = context.WithCancel(t.Context())
	started, ended := make(chan struct{}), make(chan struct{})
	go func() {
		<-started
		cancel()
	}()
	key := pastKey{5, 0, toytest.Kind.CollectionID(), "acme"}
	_, err := w.pastTableCache.table(ctx, key, func(ctx context.Context) (*table, int, error) {
		close(started)
		<-ctx.Done()
		close(ended)
		return nil, 0, ctx.Err()
	})
	require.ErrorIs(t, err, context.Canceled)
	select {
	case <-ended:
	case <-time.After(time.Minute):
		require.Fail(t, "the build has no end")
	}
	toys, past := toysAt(t.Context(), t, w, 5)
	require.Equal(t, 5, toys.Count("acme"), "the next request has the table built")
	require.NoError(t, past.Err())
}

// TestLimitOfChanges checks that the number of rows that a list may fold depends neither on which part of
// the log has their changes nor on the number of processors.
func TestLimitOfChanges(t *testing.T) {
	w := archivedToys(t, toyRange{"acme", 1, 100}, toyRange{"acme", 101, 400}, toyRange{"acme", 1, 100})
	w.pastTableCache.limit = 100
	toys, past := toysAt(t.Context(), t, w, 100)
	require.Equal(t, 100, toys.Count("acme"))
	require.NoError(t, past.Err())

	w.pastTableCache.limit = 99
	toys, past = toysAt(t.Context(), t, w, 101)
	require.Zero(t, toys.Count("acme"))
	require.Equal(t, domain.OutOfRange, domain.CodeOf(past.Err()))
}

// TestPastRowsAreCounted checks that the rows of a past table count unless it shares them with the present,
// and that a table of all accounts shares those that have not changed.
func TestPastRowsAreCounted(t *testing.T) {
	w := archivedToys(t, toyRange{"acme", 1, 100}, toyRange{"other", 1, 100}, toyRange{"acme", 1, 60},
		toyRange{"other", 1, 1})
	for _, test := range []struct {
		account  string
		position uint64
		rows     int
	}{
		{"acme", 200, 100},       // it is built from its rows
		{"acme", 250, 10},        // it shares the other rows
		{"other", 200, 1},        // also
		{everyAccount, 200, 61},  // also
		{everyAccount, 105, 105}, // it is built from its rows
	} {
		toys, past := toysAt(t.Context(), t, w, test.position)
		_, rows, err := toys.past.build(test.account)
		require.NoError(t, err)
		require.NoError(t, past.Err())
		require.Equal(t, test.rows, rows, "%v", test)
	}
	toys, _ := toysAt(t.Context(), t, w, 200)
	toys.Count("acme")
	require.Equal(t, 100, w.pastTableCache.rows)
	w.pastTableCache.limit = 105
	toys, _ = toysAt(t.Context(), t, w, 250)
	toys.Count("acme")
	require.Equal(t, 10, w.pastTableCache.rows, "the older table is not in memory any more")
}
