package rest

import (
	"anneal/domain"
	"anneal/projections"
)

// creatorOf returns the createdBy of a resource in responses. stored is the createdBy in the events
// of the resource: the resource name of the API key that asked, on which authorization relies, or the
// name of a part of the server. The result is the e-mail of the key or, if the key has none or is
// deleted, the e-mail of the key's account. It is stored if both are unknown, or if v is nil.
func creatorOf(v *projections.View, stored string) string {
	key, isKey := domain.ParseName(stored, domain.APIKeys.Collection)
	if v == nil || !isKey {
		return stored
	}
	if row, ok := v.APIKeys.Get(key); ok && row.State.Email != "" {
		return row.State.Email
	}
	account, ok := v.Accounts.Get(domain.NewName(key.Account(), "accounts", key.Account()))
	if ok && account.State.Email != "" {
		return account.State.Email
	}
	return stored
}
