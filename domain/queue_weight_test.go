package domain_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func TestQueueWeightIsSet(t *testing.T) {
	type D = decision[domain.Account]
	f := events[domain.Account]
	made, set := domain.AccountCreated{}, domain.QueueWeightSet{QueueWeight: 2}
	decide(t, domain.Accounts, []D{
		{name: "set", given: f(made), when: domain.SetQueueWeight{QueueWeight: 2}, then: set},
		{name: "set twice", given: f(made, set), when: domain.SetQueueWeight{QueueWeight: 2}},
		{name: "set the default", given: f(made), when: domain.SetQueueWeight{QueueWeight: 1}},
		{name: "reset", given: f(made, set), when: domain.SetQueueWeight{QueueWeight: 1},
			then: domain.QueueWeightSet{QueueWeight: 1}},
		{name: "set for a missing account", when: domain.SetQueueWeight{QueueWeight: 2}, fault: "NOT_FOUND"},
		{name: "too low", given: f(made), when: domain.SetQueueWeight{}, fault: "INVALID_FIELDS",
			says: "queueWeight: is 0: it must be from 1 to 1000"},
		{name: "too high", given: f(made), when: domain.SetQueueWeight{QueueWeight: 1001}, fault: "INVALID_FIELDS",
			says: "queueWeight: is 1001"},
	})
}

// TestQueueWeightRemains checks that a control plane of an earlier version, which does not know the
// weight, does not reset it when it updates the account.
func TestQueueWeightRemains(t *testing.T) {
	account := domain.Account{QueueWeight: 2}
	var updated domain.AccountUpdated
	require.NoError(t, json.Unmarshal([]byte(`{"email":"b@example.org","displayName":"B"}`), &updated))
	updated.Evolve(&account)
	require.Equal(t, "b@example.org", account.Email)
	require.Equal(t, 2, account.QueueWeight)
}
