package tasks_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/blobs/reconcile/faults"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/natsserver"
	"anneal/eventlog/pubsub"
	"anneal/projections"
	"anneal/projections/query"
	"anneal/workers/tasks"
)

// A bench is a log, a world that follows it, a blob store, and a deriver.
type bench struct {
	testing.TB
	log      eventlog.Log
	world    *projections.World
	blobs    *blobs.Store
	dir      string
	deriver  tasks.Deriver
	progress []int64 // arguments of the last call of Deriver.Progress: rows read, rows in total
	plan     atomic.Pointer[faults.Plan]
}

// newBench returns a bench with an in-memory log.
func newBench(t testing.TB) *bench { return benchOn(t, eventlog.NewMemory()) }

func benchOn(t testing.TB, log eventlog.Log) *bench {
	b := &bench{TB: t, log: log, world: projections.NewWorld(), dir: t.TempDir()}
	store, err := blobs.Open(t.Context(), blobs.Options{Dir: b.dir, BaseURL: "http://127.0.0.1/blobs",
		Key:       make([]byte, 32),
		Intercept: func(change, key string, do func() error) error { return b.plan.Load().Do(change, key, do) }})
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	b.blobs = store
	b.deriver = tasks.Deriver{Log: b.log, World: b.world, Blobs: store, Now: time.Now,
		Filter:   query.CompileRowFilter,
		Progress: func(_ domain.Name, read, of int64) { b.progress = append(b.progress, read, of) }}
	go func() { _ = b.world.Run(t.Context(), b.log) }()
	return b
}

// routedBench returns a bench with the log of an embedded server. A router runs the tasks that the
// function handle adds to it.
func routedBench(t testing.TB, handle func(*bench, *pubsub.Router) error) *bench {
	server, err := natsserver.Start(natsserver.Options{Dir: t.TempDir(), NoSync: true})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	b := benchOn(t, server.Log())
	router, err := pubsub.NewRouter(server.Control(),
		pubsub.RouterConfig{MaxAttempts: 2, InitialBackoff: time.Millisecond})
	require.NoError(t, err)
	require.NoError(t, handle(b, router))
	go func() { _ = router.Run(t.Context()) }()
	return b
}

func named[S domain.State](kind *domain.Kind[S], id string) domain.Name {
	return domain.NewName("acme", kind.Collection, id)
}

// do records a command and returns its event.
func do[S domain.State](b *bench, kind *domain.Kind[S], id string, cmd domain.Command[S]) eventlog.Event {
	b.Helper()
	result, err := eventlog.Do(b.Context(), b.log, b.world, eventlog.Request{Time: time.Now()},
		domain.Intend(kind, named(kind, id), cmd))
	require.NoError(b, err)
	require.NoError(b, b.world.WaitFor(b.Context(), result.Position()))
	e, err := b.log.At(b.Context(), result.Position())
	require.NoError(b, err)
	return e
}

// stateOf returns the current state of a resource; zero if it does not exist.
func stateOf[S domain.State](b *bench, kind *domain.Kind[S], id string) S {
	b.Helper()
	last, err := b.log.Last(b.Context())
	require.NoError(b, err)
	require.NoError(b, b.world.WaitFor(b.Context(), last.Position))
	state, _ := b.world.Row(named(kind, id))
	s, _ := state.(S)
	return s
}

// until waits until the state of a resource meets a condition.
func until[S domain.State](b *bench, kind *domain.Kind[S], id string, done func(S) bool) S {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	for {
		position := b.world.Position()
		state, _ := b.world.Row(named(kind, id))
		if s, ok := state.(S); ok && done(s) {
			return s
		}
		select {
		case <-b.world.Changed(position):
		case <-ctx.Done():
			b.Fatal("condition never met: ", id)
		}
	}
}
