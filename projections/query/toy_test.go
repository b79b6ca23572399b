package query

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

// A toy is a resource of a kind made for tests: small, with a life and a list.
type toy struct {
	Label string            `json:"label"`
	Size  int64             `json:"size"`
	Tags  []string          `json:"tags,omitempty"`
	Notes map[string]string `json:"notes,omitempty"`
	Alive bool              `json:"alive"`
}

func (t toy) Exists() bool { return t.Alive }

type toyMade struct {
	Label string `json:"label"`
	Size  int64  `json:"size"`
}

func (e toyMade) Evolve(t *toy) { *t = toy{Label: e.Label, Size: e.Size, Alive: true} }

type toyTagged struct {
	Tag string `json:"tag"`
}

func (e toyTagged) Evolve(t *toy) { t.Tags = append(slices.Clone(t.Tags), e.Tag) }

type toyBroken struct{}

func (toyBroken) Evolve(t *toy) { *t = toy{} }

var toys = domain.NewKind("toys", map[string]domain.Event[toy]{
	"toy.made.v1": toyMade{}, "toy.tagged.v1": toyTagged{}, "toy.broken.v1": toyBroken{},
})

func toyWorld() *projections.World { return projections.NewWorldOf(toys) }

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// add appends one event about a toy and answers its position.
func add(t testing.TB, log eventlog.Log, name domain.Name, fact domain.Event[toy]) uint64 {
	t.Helper()
	record, err := toys.Encode(fact)
	require.NoError(t, err)
	last, err := log.Last(t.Context())
	require.NoError(t, err)
	var expect uint64
	for e, err := range log.Read(t.Context(), name.Subject(), 0) {
		require.NoError(t, err)
		expect = e.Position
	}
	position, err := log.Append(t.Context(), eventlog.Write{Expect: expect, Event: eventlog.Event{
		Record: record, ID: fmt.Sprintf("event-%d", last.Position+1), Name: name,
		Time: epoch.Add(time.Duration(last.Position) * time.Second),
	}})
	require.NoError(t, err)
	return position
}

// replay applies what the log holds beyond the world's position.
func replay(t testing.TB, w *projections.World, log eventlog.Log) *projections.World {
	t.Helper()
	for e, err := range log.Read(context.Background(), "events.>", w.Position()) {
		require.NoError(t, err)
		require.NoError(t, w.Apply(e))
	}
	return w
}

func toyName(account string, n int) domain.Name {
	return domain.NewName(account, "toys", fmt.Sprintf("t%05d", n))
}

func names[S domain.State](rows func(func(*projections.Row[S]) bool)) []string {
	found := []string{}
	for row := range rows {
		found = append(found, string(row.Name))
	}
	return found
}

// addRandom appends an event about one of a few toys and folds it.
func addRandom(t *testing.T, r *rapid.T, log eventlog.Log, w *projections.World) (domain.Name, domain.Event[toy]) {
	name := toyName(rapid.SampledFrom([]string{"a", "b"}).Draw(r, "account"), rapid.IntRange(0, 5).Draw(r, "toy"))
	fact := domain.Event[toy](toyMade{rapid.StringN(0, 5, 20).Draw(r, "label"), rapid.Int64().Draw(r, "size")})
	if state, _ := w.Row(name); state != nil {
		fact = rapid.SampledFrom([]domain.Event[toy]{toyTagged{"x"}, toyTagged{"y"}, toyBroken{}}).Draw(r, "fact")
	}
	add(t, log, name, fact)
	replay(t, w, log)
	return name, fact
}
