package domain

import (
	"bytes"
	"time"
)

// An API key authenticates a program as a member of an account. Only a keyed hash of it is stored;
// the text of the key is returned once, when it is created.
//
//	(none) --CreateAPIKey--> live --DeleteAPIKey--> (none)
//	live, past its expireTime: requests are refused as "expired" until it is deleted
var APIKeys = NewKind("apiKeys", map[string]Event[APIKey]{
	"apiKey.created.v1": APIKeyCreated{},
	"apiKey.deleted.v1": APIKeyDeleted{},
})

// Roles of an API key: what its holder is allowed to do.
const (
	RoleAdmin     = "admin"     // may do everything in the account
	RoleUser      = "user"      // may use everything in the account except API keys and secrets
	RoleInference = "inference" // may call and list models
	RoleReader    = "reader"    // may read the account's events, over HTTP and from NATS
)

// Roles lists all roles.
var Roles = []string{RoleAdmin, RoleUser, RoleInference, RoleReader}

// Priorities of the inference requests of an API key, which share each deployment.
const (
	PriorityInteractive = "interactive"
	PriorityBatch       = "batch" // gives way to interactive requests
)

// RequestPriorities lists the priorities, the highest first.
var RequestPriorities = []string{PriorityInteractive, PriorityBatch}

// APIKeySpec holds the fields of an API key that the caller sets.
type APIKeySpec struct {
	DisplayName string `json:"displayName"`
	// e-mail address of the key's holder; "" stands for the account's address
	Email      string     `json:"email,omitempty"`
	Role       string     `json:"role"`
	Priority   string     `json:"priority,omitempty"` // interactive or batch; "" stands for interactive
	ExpireTime *time.Time `json:"expireTime,omitempty"`
}

// APIKey is the state of one key.
type APIKey struct {
	APIKeySpec
	Hash      []byte `json:"hash"`   // HMAC-SHA-256 of the key
	Prefix    string `json:"prefix"` // first characters of the key, by which users recognize it
	CreatedBy string `json:"createdBy"`
}

// Exists implements State.
func (k APIKey) Exists() bool { return k.Role != "" }

// Expired reports whether the key's expireTime has passed.
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
		return nil, alreadyExists("an API key")
	}
	var v Violations
	checkText(&v, c.DisplayName, "")
	checkEmail(&v, c.Email)
	inFuture(&v, "expireTime", c.ExpireTime, now)
	v.Require(c.Role != "", "role", "%s", OneOfRule(c.Role, Roles))
	oneOf(&v, "role", c.Role, Roles...)
	oneOf(&v, "priority", c.Priority, RequestPriorities...)
	v.Require(c.Priority == "" || c.Role != RoleReader, "priority",
		"an API key with the role reader sends no inference requests: leave it out")
	if err := v.Err(); err != nil {
		return nil, err
	}
	return APIKeyCreated(c), nil
}

// DeleteAPIKey revokes the key immediately.
type DeleteAPIKey struct{}

func (DeleteAPIKey) Decide(k APIKey, _ time.Time) (Event[APIKey], error) {
	if !k.Exists() {
		return nil, notFound("API key")
	}
	return APIKeyDeleted{}, nil
}
