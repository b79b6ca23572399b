package api

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/rest"
	"anneal/domain"
)

// TestAccountWithoutKeyIsCreatedAgain checks that a repeated create of an account creates the first
// key of the account when an interruption has prevented it, and creates no key when the account has
// a key or had a key.
func TestAccountWithoutKeyIsCreatedAgain(t *testing.T) {
	s := newHarness(t, request.Limits{})
	create := func() response {
		return s.call("POST", "/v1/accounts", "operator", `{"accountId": "cut", "account": {"displayName": "Cut"}}`)
	}
	s.do(domain.Intend(domain.Accounts, "accounts/cut", domain.CreateAccount{}))
	response := create()
	require.Equal(t, 200, response.status, "%s", response.body)
	var made rest.CreatedAccount
	require.NoError(t, json.Unmarshal(response.body, &made))
	s.keys["cut"] = made.Key
	require.Equal(t, 200, s.call("GET", "/v1/accounts/cut/apiKeys", "cut", "").status)
	require.Equal(t, 409, create().status)
	s.do(domain.Intend(domain.APIKeys, "accounts/cut/apiKeys/admin", domain.DeleteAPIKey{}))
	require.Equal(t, 409, create().status)
}

// TestAccountEventHoldsItsFirstKey checks that the account and its first key are one event, so that
// an interruption cannot separate the two.
func TestAccountEventHoldsItsFirstKey(t *testing.T) {
	s := newHarness(t, request.Limits{})
	require.Equal(t, 200, s.call("POST", "/v1/accounts", "operator", `{"accountId": "new"}`).status)
	row, ok := s.world.View().Accounts.Get("accounts/new")
	require.True(t, ok)
	key, ok := s.world.View().APIKeys.Get("accounts/new/apiKeys/admin")
	require.True(t, ok)
	require.Equal(t, key.State, domain.APIKey(row.State.FirstKey.Key))
	require.NotContains(t, string(s.call("GET", "/v1/accounts/new/events", "operator", "").body), `"hash"`)
}
