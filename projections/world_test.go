package projections

import (
	"context"
	"reflect"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections/toytest"
)

func TestViewHasATableOfEveryKind(t *testing.T) {
	v := NewWorld().View()
	require.Len(t, v.tables, len(domain.Kinds))
	for fields, i := reflect.ValueOf(v).Elem(), 0; i < fields.NumField(); i++ {
		if field := fields.Field(i); field.Kind() == reflect.Pointer && fields.Type().Field(i).Name != "Past" {
			require.False(t, field.IsNil(), fields.Type().Field(i).Name)
		}
	}
	for _, kind := range domain.Kinds {
		require.NotNil(t, v.TableVersion(kind), kind.CollectionID())
	}
}

func TestRowsFollowTheLog(t *testing.T) {
	log, w := eventlog.NewMemory(), toyWorld()
	a, b, other := toytest.Name("acme", 1), toytest.Name("acme", 2), toytest.Name("acme-two", 3)
	toytest.Add(t, log, b, toytest.Make("ball", 3))
	toytest.Add(t, log, a, toytest.Make("doll", 5))
	toytest.Add(t, log, other, toytest.Make("kite", 7))
	toytest.Add(t, log, a, toytest.Tag("red"))
	v := TableOf(replay(t, w, log).View(), toytest.Kind)

	row, ok := v.Get(a)
	require.True(t, ok)
	require.Equal(t, toytest.Toy{Label: "doll", Size: 5, Tags: []string{"red"}, Alive: true}, row.State)
	require.Equal(t, uint64(4), row.Version)
	require.Equal(t, toytest.Epoch.Add(1e9), row.CreateTime)
	require.Equal(t, toytest.Epoch.Add(3e9), row.UpdateTime)
	require.Equal(t, 3, v.Len())
	require.Equal(t, 2, v.Count("acme"))
	require.Equal(t, 0, v.Count("nobody"))
	require.Equal(t, []string{string(other), string(a), string(b)}, names(v.All()))
	require.Equal(t, []string{string(a), string(b)}, names(v.In("acme")))
	require.Equal(t, []string{string(b), string(a)}, names(v.Oldest("acme")))
	require.Equal(t, []string{string(a), string(b)}, names(v.Newest("acme")))
	require.Equal(t, []string{string(other)}, names(v.Newest("acme-two")))
	require.Empty(t, names(v.In("acm")))
}

// TestAccountsAreListedInSystem checks in whose lists accounts are, by name and by create time.
func TestAccountsAreListedInSystem(t *testing.T) {
	log, w := eventlog.NewMemory(), NewWorld()
	for _, id := range []string{"acme", "acme-two", "zoo"} {
		record, err := domain.Accounts.Encode(domain.AccountCreated{})
		require.NoError(t, err)
		_, err = log.Append(t.Context(),
			eventlog.Write{Event: eventlog.Event{Record: record, ID: id, Name: domain.NewName(id, "accounts", id),
				Time: toytest.Epoch}})
		require.NoError(t, err)
	}
	v := replay(t, w, log).View()
	all := []string{"accounts/acme", "accounts/acme-two", "accounts/zoo"}
	require.Equal(t, all, names(v.Accounts.In(domain.System)))
	require.Equal(t, all[1:], names(v.Accounts.NamedAfter(domain.System, "accounts/acme")))
	require.Equal(t, all, names(v.Accounts.Oldest(domain.System)))
	require.Equal(t, 3, v.Accounts.Count(domain.System))
	require.Len(t, v.Accounts.Blocks(domain.System), 1)
	require.Zero(t, v.Accounts.Count("acme"))
	require.Empty(t, names(v.Accounts.In("acme")))
	require.Equal(t, "zoo", v.EventID)
}

func TestDeletedResourcesKeepTheirVersion(t *testing.T) {
	log, w := eventlog.NewMemory(), toyWorld()
	name := toytest.Name("acme", 1)
	toytest.Add(t, log, name, toytest.Make("ball", 3))
	broken := toytest.Add(t, log, name, toytest.Broken{})
	v := TableOf(replay(t, w, log).View(), toytest.Kind)
	_, ok := v.Get(name)
	require.False(t, ok)
	require.Zero(t, v.Len())
	require.Zero(t, v.Count("acme"))
	require.Empty(t, names(v.Newest("acme")))
	state, version := w.Row(name)
	require.Nil(t, state)
	require.Equal(t, broken, version)

	again := toytest.Add(t, log, name, toytest.Make("bat", 4))
	replay(t, w, log)
	state, version = w.Row(name)
	require.Equal(t, toytest.Toy{Label: "bat", Size: 4, Alive: true}, state)
	require.Equal(t, again, version)
	row, _ := TableOf(w.View(), toytest.Kind).Get(name)
	require.Equal(t, toytest.Epoch.Add(2e9), row.CreateTime)
}

func TestRowOfNothing(t *testing.T) {
	for _, name := range []domain.Name{"accounts/acme/toys/none", "accounts/acme/unknown/none", "accounts/acme", ""} {
		state, version := toyWorld().Row(name)
		require.Nil(t, state)
		require.Zero(t, version)
	}
}

func TestAnEventThatDoesNotFoldStopsTheWorld(t *testing.T) {
	made, err := toytest.Kind.Encode(toytest.Make("ball", 3))
	require.NoError(t, err)
	for _, c := range []struct {
		name  string
		event eventlog.Event
		says  string
	}{
		{"unknown collection", eventlog.Event{Position: 7, Name: "accounts/a/kites/k",
			Record: domain.Record{Type: "kite.made.v1"}},
			`event 7 (kite.made.v1 of accounts/a/kites/k) cannot be applied: unknown collection "kites"`},
		{"unknown type", eventlog.Event{Position: 8, Name: "accounts/a/toys/t", Record: domain.Record{Type: "toy.made.v9"}},
			`event 8 (toy.made.v9 of accounts/a/toys/t) cannot be applied`},
		{"bad body", eventlog.Event{Position: 9, Name: "accounts/a/toys/t",
			Record: domain.Record{Type: "toy.made.v1", Data: []byte("{")}}, `event 9 (toy.made.v1`},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := toyWorld()
			require.ErrorContains(t, w.Apply(c.event), c.says)
			require.Zero(t, w.Position())
			require.ErrorContains(t, w.WaitFor(t.Context(), 1), c.says)
			require.ErrorContains(t, w.Apply(eventlog.Event{Position: 10, Name: toytest.Name("a", 1), Record: made}), c.says)
		})
	}
}

func TestAFoldThatPanicsStopsTheWorldAndChangesNothing(t *testing.T) {
	log, w := eventlog.NewMemory(), toyWorld()
	toytest.Add(t, log, toytest.Name("acme", 1), toytest.Make("ball", 3))
	replay(t, w, log)
	before := digestOf(t, w)
	at := toytest.Add(t, log, toytest.Name("acme", 1), toytest.Cursed{})
	e, err := log.At(t.Context(), at)
	require.NoError(t, err)
	require.ErrorContains(t, w.Apply(e),
		"event 2 (toy.cursed.v1 of accounts/acme/toys/t00001) cannot be applied: applying the event panics: assignment "+
			"to entry in "+
			"nil map")
	require.Equal(t, before, digestOf(t, w))
}

func TestEventsAreFoldedOnceAndInOrder(t *testing.T) {
	log, w := eventlog.NewMemory(), toyWorld()
	toytest.Add(t, log, toytest.Name("acme", 1), toytest.Make("ball", 3))
	e, err := log.At(t.Context(), 1)
	require.NoError(t, err)
	require.NoError(t, w.Apply(e))
	require.ErrorContains(t, w.Apply(e), "once and in order")
	skipping := e
	skipping.Position = 3
	err = w.Apply(skipping)
	require.ErrorContains(t, err, "found position 3 where 2 must follow")
	require.Equal(t, domain.DataLoss, domain.CodeOf(err))
	toytest.Add(t, log, toytest.Name("acme", 2), toytest.Make("ball", 3))
	replay(t, w, log)
	require.Equal(t, uint64(2), w.Position())
}

func TestRunFollowsAndWaitersWake(t *testing.T) {
	log, w := eventlog.NewMemory(), toyWorld()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx, log) }()

	changed := w.Changed(0)
	position := toytest.Add(t, log, toytest.Name("acme", 1), toytest.Make("ball", 3))
	require.NoError(t, w.WaitFor(t.Context(), position))
	<-changed
	<-w.Changed(0)
	require.Equal(t, position, w.View().Position)

	later := w.Changed(position + 1)
	toytest.Add(t, log, toytest.Name("acme", 2), toytest.Make("ball", 3))
	require.NoError(t, w.WaitFor(t.Context(), position+1))
	select {
	case <-later:
		t.Fatal("Changed was closed before the position was beyond its argument")
	default:
	}
	toytest.Add(t, log, toytest.Name("acme", 3), toytest.Make("ball", 3))
	<-later

	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
}

func TestCanceledWaitersAreRemoved(t *testing.T) {
	w := toyWorld()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	require.ErrorIs(t, w.WaitFor(ctx, 1<<60), context.Canceled)
	require.Zero(t, w.waiters.Len())
}

func TestViewIsSharedUntilSomethingHappens(t *testing.T) {
	log, w := eventlog.NewMemory(), toyWorld()
	first := w.View()
	require.Same(t, first, w.View())
	w.Live().Heartbeat("accounts/system/nodes/n", toytest.Epoch)
	second := w.View()
	require.NotSame(t, first, second)
	require.Same(t, TableOf(first, toytest.Kind), TableOf(second, toytest.Kind))
	toytest.Add(t, log, toytest.Name("acme", 1), toytest.Make("ball", 3))
	replay(t, w, log)
	require.NotSame(t, second, w.View())
	require.Zero(t, TableOf(second, toytest.Kind).Len())
}

// TestViewsNeverChange checks that events that are folded after a view was taken do not change the
// view.
func TestViewsNeverChange(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		log, w := eventlog.NewMemory(), toyWorld()
		type taken struct {
			view   *View
			digest Digest
		}
		var all []taken
		for range rapid.IntRange(1, 60).Draw(r, "events") {
			addRandom(t, r, log, w)
			if rapid.Bool().Draw(r, "look") {
				v := w.View()
				d, err := v.Digest()
				require.NoError(t, err)
				all = append(all, taken{v, d})
			}
		}
		for _, one := range all {
			d, err := one.view.Digest()
			require.NoError(t, err)
			require.Equal(t, one.digest, d)
			verified, err := verify(t.Context(), toyWorld(), log, d.Position)
			require.NoError(t, err)
			require.Equal(t, d, verified)
		}
	})
}

// addRandom appends a random event of one of a few toys, folds the event into the world, and
// returns the toy's name and the event.
func addRandom(t *testing.T, r *rapid.T, log eventlog.Log, w *World) (domain.Name, domain.Event[toytest.Toy]) {
	name := toytest.Name(rapid.SampledFrom([]string{"a", "b"}).Draw(r, "account"), rapid.IntRange(0, 5).Draw(r, "toy"))
	fact := domain.Event[toytest.Toy](toytest.Make(rapid.StringN(0, 5, 20).Draw(r, "label"),
		rapid.Int64().Draw(r, "size")))
	if state, _ := w.Row(name); state != nil {
		fact = rapid.SampledFrom([]domain.Event[toytest.Toy]{toytest.Tag("x"), toytest.Tag("y"),
			toytest.Broken{}}).Draw(r, "fact")
	}
	toytest.Add(t, log, name, fact)
	replay(t, w, log)
	return name, fact
}

func TestConcurrentReadersAndWriter(t *testing.T) {
	log, w := eventlog.NewMemory(), toyWorld()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { _ = w.Run(ctx, log) }()
	const events = 300
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			var last uint64
			for last < events {
				<-w.Changed(last)
				v := w.View()
				table := TableOf(v, toytest.Kind)
				seen := 0
				for row := range table.All() {
					if row.Version > v.Position {
						t.Errorf("the view of %d holds a row of %d", v.Position, row.Version)
					}
					seen++
				}
				if seen != table.Len() {
					t.Errorf("%d rows, but Len is %d", seen, table.Len())
				}
				_, _ = w.Row(toytest.Name("acme", 1))
				last = v.Position
			}
		})
	}
	for i := range events {
		switch name := toytest.Name("acme", i%100); {
		case i < 100:
			toytest.Add(t, log, name, toytest.Make("ball", int64(i)))
		case i%3 == 0:
			toytest.Add(t, log, name, toytest.Broken{})
		case i < 200:
			toytest.Add(t, log, name, toytest.Tag("again"))
		default:
			toytest.Add(t, log, name, toytest.Make("again", int64(i)))
		}
	}
	readers.Wait()
}
