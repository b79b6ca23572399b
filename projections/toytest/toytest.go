// Package toytest provides a kind of resource, toys, for the tests of projections, and events of
// deployments for their benchmarks.
package toytest

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
)

// A Toy is the state of a resource of the kind Kind, which only tests use.
type Toy struct {
	Label string            `json:"label"`
	Size  int64             `json:"size"`
	Tags  []string          `json:"tags,omitempty"`
	Notes map[string]string `json:"notes,omitempty"`
	Alive bool              `json:"alive"`
}

// Exists implements domain.State.
func (t Toy) Exists() bool { return t.Alive }

// The events of a toy. Made creates it, Tagged adds a tag, and Broken deletes it. Cursed has a bug
// on purpose: its Evolve changes the toy and then panics.
type (
	Made struct {
		Label string `json:"label"`
		Size  int64  `json:"size"`
	}
	Tagged struct {
		Tag string `json:"tag"`
	}
	Broken struct{}
	Cursed struct{}
)

// Make returns the event that creates a toy with a label and a size.
func Make(label string, size int64) Made { return Made{Label: label, Size: size} }

// Tag returns the event that adds a tag to a toy.
func Tag(tag string) Tagged { return Tagged{Tag: tag} }

// Evolve implements domain.Event.
func (e Made) Evolve(t *Toy) { *t = Toy{Label: e.Label, Size: e.Size, Alive: true} }

// Evolve implements domain.Event.
func (e Tagged) Evolve(t *Toy) { t.Tags = append(slices.Clone(t.Tags), e.Tag) }

// Evolve implements domain.Event.
func (Broken) Evolve(t *Toy) { *t = Toy{} }

// Evolve implements domain.Event.
func (Cursed) Evolve(t *Toy) {
	t.Label = "cursed"
	t.Notes["nil map"] = "panics"
}

// Kind is the kind of toys.
var Kind = domain.NewKind("toys", map[string]domain.Event[Toy]{
	"toy.made.v1": Made{}, "toy.tagged.v1": Tagged{}, "toy.broken.v1": Broken{}, "toy.cursed.v1": Cursed{},
})

// Epoch is the time of the first event that Add appends to a log.
var Epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// Name returns the name of the nth toy of an account.
func Name(account string, n int) domain.Name {
	return domain.NewName(account, "toys", fmt.Sprintf("t%05d", n))
}

// Add appends an event of the named toy to the log and returns the event's position. The time of
// the event is Epoch plus one second for each earlier event of the log.
func Add(t testing.TB, log eventlog.Log, name domain.Name, event domain.Event[Toy]) uint64 {
	t.Helper()
	record, err := Kind.Encode(event)
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
		Time: Epoch.Add(time.Duration(last.Position) * time.Second),
	}})
	require.NoError(t, err)
	return position
}

// DeploymentName returns the name of deployment number i of a benchmark.
func DeploymentName(i int) domain.Name {
	return domain.NewName("acme", "deployments", fmt.Sprintf("d-%06d", i))
}

// DeploymentEvent returns the write that appends event number i to a benchmark's log. Each
// deployment has three consecutive events: it is created, becomes READY, and is scaled.
func DeploymentEvent(t testing.TB, i int) eventlog.Write {
	fact := domain.Event[domain.Deployment](domain.DeploymentBecameReady{Generation: 1, Time: Epoch})
	if i%3 == 0 {
		fact = domain.DeploymentCreated{CreatedBy: "accounts/acme/apiKeys/ci", Time: Epoch,
			DeploymentSpec: domain.DeploymentSpec{
				BaseModel: "accounts/public/models/base-8b", DisplayName: fmt.Sprintf("Deployment %d", i),
				Description:     "serves the tests",
				AcceleratorType: "VENDOR_A_H100_80GB", AcceleratorCount: 1 + i%4, MinReplicaCount: i % 5,
				AutoscalingPolicy: &domain.AutoscalingPolicy{ScaleUpWindow: "30s", LoadTargets: map[string]float64{"default": 0.8}},
				Placement:         &domain.Placement{MultiRegion: "GLOBAL"}}}
	}
	record, err := domain.Deployments.Encode(fact)
	require.NoError(t, err)
	return eventlog.Write{Event: eventlog.Event{Record: record, ID: "event-" + strconv.Itoa(i),
		Name: DeploymentName(i / 3),
		Time: Epoch.Add(time.Duration(i) * time.Millisecond), Actor: "accounts/acme/apiKeys/ci",
		Command: "command-" + strconv.Itoa(i)}}
}
