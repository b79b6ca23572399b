package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

// crowd is a server with an account of n datasets and no connections: what is
// measured is the handler.
func crowd(b *testing.B, n int) (*Server, string) {
	log, world := eventlog.NewMemory(), projections.NewWorld()
	s := New(Options{Log: log, World: world, Pepper: pepper, Now: (&clock{now: epoch}).tick})
	key, err := MintKey(pepper, "accounts/acme/apiKeys/k")
	require.NoError(b, err)
	apply := func(position uint64, intent domain.Intent) {
		state, _ := world.Row(intent.Name)
		record, err := intent.Decide(state, epoch)
		require.NoError(b, err)
		require.NoError(b, world.Apply(eventlog.Event{Record: record, Position: position, ID: "x", Name: intent.Name, Time: epoch}))
	}
	apply(1, domain.Intend(domain.Accounts, "accounts/acme", domain.Command[domain.Account](domain.CreateAccount{})))
	apply(2, domain.Intend(domain.APIKeys, "accounts/acme/apiKeys/k", domain.Command[domain.APIKey](domain.CreateAPIKey{APIKeySpec: domain.APIKeySpec{Role: domain.RoleAdmin}, Hash: key.Hash})))
	for i := range n {
		name := domain.NewName("acme", domain.Datasets.Collection, fmt.Sprintf("d%07d", i))
		apply(uint64(i+3), domain.Intend(domain.Datasets, name, domain.Command[domain.Dataset](domain.CreateDataset{DatasetSpec: domain.DatasetSpec{DisplayName: fmt.Sprint(i % 97), ExampleCount: domain.Count(i)}})))
	}
	return s, key.Text
}

func BenchmarkRequests(b *testing.B) {
	s, key := crowd(b, 100_000)
	defer s.Close()
	for name, path := range map[string]string{
		"get":           "/v1/accounts/acme/datasets/d0050000",
		"list":          "/v1/accounts/acme/datasets",
		"list filtered": "/v1/accounts/acme/datasets?filter=displayName=42%20AND%20exampleCount%3E1000",
		"list ordered":  "/v1/accounts/acme/datasets?orderBy=exampleCount%20desc",
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				r := httptest.NewRequest(http.MethodGet, path, nil)
				r.Header.Set("Authorization", "Bearer "+key)
				w := httptest.NewRecorder()
				s.ServeHTTP(w, r)
				if w.Code != http.StatusOK {
					b.Fatalf("%d %s", w.Code, w.Body)
				}
			}
		})
	}
}
