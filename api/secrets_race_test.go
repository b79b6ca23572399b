package api

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
)

// TestConcurrentSecretUpdates checks that Open decrypts the value of a secret after concurrent
// updates of keyName and value.
func TestConcurrentSecretUpdates(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for round := range 40 {
		id := fmt.Sprintf("s%d", round)
		name, path := domain.NewName("acme", "secrets", id), "/v1/accounts/acme/secrets/"+id
		require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/secrets", "admin",
			`{"name": "`+id+`", "keyName": "K"}`).status)
		var all sync.WaitGroup
		for client, body := range []string{`{"keyName": "A"}`, `{"value": "v"}`, `{"keyName": "B", "value": "w"}`,
			`{"keyName": "C"}`} {
			all.Go(func() { assert.Equal(t, 200, s.call("PATCH", path, "admin", body).status, "client %d", client) })
		}
		all.Wait()
		row, ok := s.world.View().Secrets.Get(name)
		require.True(t, ok)
		value, err := s.vault.Open(t.Context(), name, row.State.Value)
		require.NoError(t, err, "round %d", round)
		require.Contains(t, []string{"v", "w"}, value.Reveal())
	}
}
