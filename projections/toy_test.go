package projections

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
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

// toyCursed has a mistake in its fold: it changes the toy, then panics.
type toyCursed struct{}

func (toyCursed) Evolve(t *toy) {
	t.Label = "cursed"
	t.Notes["nil map"] = "panics"
}

var toys = domain.NewKind("toys", map[string]domain.Event[toy]{
	"toy.made.v1": toyMade{}, "toy.tagged.v1": toyTagged{}, "toy.broken.v1": toyBroken{}, "toy.cursed.v1": toyCursed{},
})

func toyWorld() *World { return NewWorldOf(toys) }

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
func replay(t testing.TB, w *World, log eventlog.Log) *World {
	t.Helper()
	for e, err := range log.Read(context.Background(), everything, w.Position()) {
		require.NoError(t, err)
		require.NoError(t, w.Apply(e))
	}
	return w
}

func toyName(account string, n int) domain.Name {
	return domain.NewName(account, "toys", fmt.Sprintf("t%05d", n))
}

func names[S domain.State](rows func(func(*Row[S]) bool)) []string {
	found := []string{}
	for row := range rows {
		found = append(found, string(row.Name))
	}
	return found
}
