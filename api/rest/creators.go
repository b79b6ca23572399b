package rest

import (
	"anneal/domain"
	"anneal/projections"
)

// creatorOf returns the field createdBy of a resource in responses. stored is the createdBy in the
// resource's event: the name of the API key or the user that sent the create, or of a component of the
// server. creatorOf returns the user or, for a key, the email address of the key or, if it has none
// or was deleted, of the key's account. It returns stored if neither is known, or if v is nil.
func creatorOf(v *projections.View, stored string) string {
	if user, ok := domain.UserOf(domain.Name(stored)); ok {
		return user
	}
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
