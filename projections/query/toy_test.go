package query

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/projections/toytest"
)

func toyWorld() *projections.World { return projections.NewWorldOf(toytest.Kind) }

// replay folds the events of the log after the world's position and returns the world.
func replay(t testing.TB, w *projections.World, log eventlog.Log) *projections.World {
	t.Helper()
	for e, err := range log.Read(context.Background(), "events.>", w.Position()) {
		require.NoError(t, err)
		require.NoError(t, w.Apply(e))
	}
	return w
}

func names[S domain.State](rows func(func(*projections.Row[S]) bool)) []string {
	found := []string{}
	for row := range rows {
		found = append(found, string(row.Name))
	}
	return found
}

// addRandom appends a random event of one of a few toys, folds the event into the world, and
// returns the toy's name and the event.
func addRandom(t *testing.T, r *rapid.T, log eventlog.Log, w *projections.World) (domain.Name,
	domain.Event[toytest.Toy]) {
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
