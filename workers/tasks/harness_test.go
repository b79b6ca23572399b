package tasks_test

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/blobs/reconcile/faults"
	"anneal/domain"
	"anneal/engines/embedded/llama"
	"anneal/eventlog"
	"anneal/eventlog/natsserver"
	"anneal/eventlog/pubsub"
	"anneal/projections"
	"anneal/projections/query"
	"anneal/workers/tasks"
)

// A harness is a log, a world that follows it, a blob store, and a deriver.
type harness struct {
	testing.TB
	log      eventlog.Log
	world    *projections.World
	blobs    *blobs.Store
	dir      string
	deriver  tasks.Deriver
	progress []int64 // arguments of the last call of Deriver.Progress: rows read, and rows in total
	plan     atomic.Pointer[faults.Plan]
}

// newHarness returns a harness with an in-memory log.
func newHarness(t testing.TB) *harness { return newHarnessOn(t, eventlog.NewMemory()) }

func newHarnessOn(t testing.TB, log eventlog.Log) *harness {
	b := &harness{TB: t, log: log, world: projections.NewWorld(), dir: t.TempDir()}
	b.blobs = faults.OpenStore(t, b.dir, &b.plan)
	b.deriver = tasks.Deriver{Log: b.log, World: b.world, Blobs: b.blobs, Now: time.Now,
		Filter:   query.CompileRowFilter,
		Progress: func(_ domain.Name, read, of int64) { b.progress = append(b.progress, read, of) }}
	go func() { _ = b.world.Run(t.Context(), b.log) }()
	return b
}

// routedHarness returns a harness with the log of an embedded server. A router runs the tasks that
// the function handle adds to it.
func routedHarness(t testing.TB, handle func(*harness, *pubsub.Router) error) *harness {
	server, err := natsserver.Start(natsserver.Options{Dir: t.TempDir(), NoSync: true})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	b := newHarnessOn(t, server.Log())
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
func do[S domain.State](b *harness, kind *domain.Kind[S], id string, cmd domain.Command[S]) eventlog.Event {
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
func stateOf[S domain.State](b *harness, kind *domain.Kind[S], id string) S {
	b.Helper()
	require.NoError(b, b.world.WaitFor(b.Context(), b.last().Position))
	state, _ := b.world.Row(named(kind, id))
	s, _ := state.(S)
	return s
}

// until waits until the state of a resource meets a condition.
func until[S domain.State](b *harness, kind *domain.Kind[S], id string, done func(S) bool) S {
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

// put stores a file, and returns its size.
func (b *harness) put(key string, content io.Reader) int64 {
	b.Helper()
	size, err := b.blobs.Put(b.Context(), key, content)
	require.NoError(b, err)
	return size
}

// last returns the checkpoint of the last event of the log.
func (b *harness) last() eventlog.Checkpoint {
	b.Helper()
	last, err := b.log.Last(b.Context())
	require.NoError(b, err)
	return last
}

func mustLoad(t testing.TB, dir string) *llama.Weights {
	t.Helper()
	w, err := llama.Load(dir)
	require.NoError(t, err)
	return w
}
