package domain

import (
	"bytes"
	"strings"
	"time"
)

// An API key lets a program act for an account. Only a keyed hash of it is
// known here; the key itself is shown once, by who made it.
//
//	(none) --CreateAPIKey--> live --DeleteAPIKey--> (none)
//	live, past its expireTime: answers "expired" until it is deleted
var APIKeys = NewKind("apiKeys", map[string]Event[APIKey]{
	"apiKey.created.v1": APIKeyCreated{},
	"apiKey.deleted.v1": APIKeyDeleted{},
})

// Roles of a key: what its holder may do.
const (
	RoleAdmin     = "admin"     // everything in the account
	RoleUser      = "user"      // everything but keys and secrets
	RoleInference = "inference" // ask models, list models
	RoleReader    = "reader"    // read the account's events, also from NATS
)

// Roles are all of them.
var Roles = []string{RoleAdmin, RoleUser, RoleInference, RoleReader}

// APIKeySpec is what the caller sets.
type APIKeySpec struct {
	DisplayName string     `json:"displayName"`
	Role        string     `json:"role"`
	ExpireTime  *time.Time `json:"expireTime,omitempty"`
}

// APIKey is the state of one key.
type APIKey struct {
	APIKeySpec
	Hash      []byte `json:"hash"`   // HMAC-SHA-256 of the key
	Prefix    string `json:"prefix"` // its first characters, to recognise it by
	CreatedBy string `json:"createdBy"`
}

// Exists implements State.
func (k APIKey) Exists() bool { return k.Role != "" }

// Expired reports whether the key's time is over.
func (k APIKey) Expired(now time.Time) bool { return k.ExpireTime != nil && !now.Before(*k.ExpireTime) }

type APIKeyCreated struct {
	APIKeySpec
	Hash      []byte `json:"hash"`
	Prefix    string `json:"prefix"`
	CreatedBy string `json:"createdBy"`
}

func (e APIKeyCreated) Evolve(k *APIKey) { *k = APIKey(e) }

type APIKeyDeleted struct{}

func (APIKeyDeleted) Evolve(k *APIKey) { *k = APIKey{} }

// CreateAPIKey records a new key by its hash.
type CreateAPIKey struct {
	APIKeySpec
	Hash      []byte
	Prefix    string
	CreatedBy string
}

func (c CreateAPIKey) Decide(k APIKey, now time.Time) (Event[APIKey], error) {
	switch {
	case k.Exists() && bytes.Equal(k.Hash, c.Hash):
		return nil, nil
	case k.Exists():
		return nil, exists("an API key")
	}
	var v Violations
	checkText(&v, c.DisplayName, "")
	inFuture(&v, "expireTime", c.ExpireTime, now)
	v.Require(c.Role != "", "role", "must be one of %s", strings.Join(Roles, ", "))
	oneOf(&v, "role", c.Role, Roles...)
	if err := v.Err(); err != nil {
		return nil, err
	}
	return APIKeyCreated(c), nil
}

// DeleteAPIKey revokes the key immediately.
type DeleteAPIKey struct{}

func (DeleteAPIKey) Decide(k APIKey, _ time.Time) (Event[APIKey], error) {
	if !k.Exists() {
		return nil, gone("API key")
	}
	return APIKeyDeleted{}, nil
}
