package schedulers_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/schedulers"
)

// TestFirstKeysAreCreated checks that Accounts creates the first key of an account whose server
// stopped before the key was created, and does not create a deleted key again.
func TestFirstKeysAreCreated(t *testing.T) {
	s := newHarness(t)
	key := domain.APIKeyCreated{APIKeySpec: domain.APIKeySpec{DisplayName: "first key", Role: domain.RoleAdmin},
		Hash: []byte("hash"), Prefix: "ak_acme_admin"}
	s.do(account())
	s.do(domain.Intend(domain.Accounts, "accounts/other", domain.CreateAccount{FirstKey: &domain.FirstKey{ID: "admin",
		Key: key}}))
	plan := schedulers.Accounts{}.Plan(s.world.View(), s.now)
	require.Len(t, plan.Steps, 1)
	s.do(plan.Steps[0].Intents()...)
	row, ok := s.world.View().APIKeys.Get("accounts/other/apiKeys/admin")
	require.True(t, ok)
	require.Equal(t, domain.APIKey(key), row.State)
	require.Empty(t, schedulers.Accounts{}.Plan(s.world.View(), s.now).Steps)
	s.do(domain.Intend(domain.APIKeys, row.Name, domain.DeleteAPIKey{}))
	require.Empty(t, schedulers.Accounts{}.Plan(s.world.View(), s.now).Steps)
}
