package api

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

// serverWithDatasets returns a server with an account that has n datasets, and an admin key of the account.
// Benchmarks call the server's handler directly, without connections.
func serverWithDatasets(b *testing.B, n int) (*Server, string) {
	log, world := eventlog.NewMemory(), projections.NewWorld()
	s := New(Options{Log: log, World: world, Pepper: pepper, Now: (&clock{now: epoch}).tick})
	key, err := request.MintKey(pepper, "accounts/acme/apiKeys/k")
	require.NoError(b, err)
	apply := func(position uint64, intent domain.Intent) {
		state, _ := world.Row(intent.Name)
		record, err := intent.Decide(state, epoch)
		require.NoError(b, err)
		require.NoError(b, world.Apply(eventlog.Event{Record: record, Position: position, ID: "x", Name: intent.Name,
			Time: epoch.Add(time.Duration(position) * time.Millisecond)}))
	}
	apply(1, domain.Intend(domain.Accounts, "accounts/acme", domain.CreateAccount{
		AccountSpec: domain.AccountSpec{Email: "admin@acme.example"}}))
	apply(2, domain.Intend(domain.APIKeys, "accounts/acme/apiKeys/k", domain.CreateAPIKey{APIKeySpec: domain.APIKeySpec{
		Role: domain.RoleAdmin}, Hash: key.Hash}))
	for i := range n {
		name := domain.NewName("acme", domain.Datasets.Collection, fmt.Sprintf("d%07d", i))
		apply(uint64(i+3), domain.Intend(domain.Datasets, name, domain.CreateDataset{DatasetSpec: domain.DatasetSpec{
			DisplayName: fmt.Sprint(i % 97), ExampleCount: domain.Count(i)}, CreatedBy: "accounts/acme/apiKeys/k"}))
	}
	return s, key.Text
}
