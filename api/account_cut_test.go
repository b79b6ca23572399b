package api

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// An account that a power failure cut off from its first key is completed by
// creating it again; one that has, or had, a key is not.
func TestAccountWithoutKeyIsCreatedAgain(t *testing.T) {
	s := newStage(t, Limits{})
	create := func() answer {
		return s.call("POST", "/v1/accounts", "operator", `{"accountId": "cut", "account": {"displayName": "Cut"}}`)
	}
	s.do(domain.Intend(domain.Accounts, "accounts/cut", domain.Command[domain.Account](domain.CreateAccount{})))
	answer := create()
	require.Equal(t, 200, answer.status, "%s", answer.body)
	var made createdAccount
	require.NoError(t, json.Unmarshal(answer.body, &made))
	s.keys["cut"] = made.Key
	require.Equal(t, 200, s.call("GET", "/v1/accounts/cut/apiKeys", "cut", "").status)
	require.Equal(t, 409, create().status)
	s.do(domain.Intend(domain.APIKeys, "accounts/cut/apiKeys/admin", domain.Command[domain.APIKey](domain.DeleteAPIKey{})))
	require.Equal(t, 409, create().status)
}

// The event of an account holds its first key, so nothing can come between.
func TestAccountEventHoldsItsFirstKey(t *testing.T) {
	s := newStage(t, Limits{})
	require.Equal(t, 200, s.call("POST", "/v1/accounts", "operator", `{"accountId": "new"}`).status)
	row, ok := s.world.View().Accounts.Get("accounts/new")
	require.True(t, ok)
	key, ok := s.world.View().APIKeys.Get("accounts/new/apiKeys/admin")
	require.True(t, ok)
	require.Equal(t, key.State, domain.APIKey(row.State.FirstKey.Key))
	require.NotContains(t, string(s.call("GET", "/v1/accounts/new/events", "operator", "").body), `"hash"`)
}
