package api

import (
	"time"

	"anneal/domain"
	"anneal/projections"
)

// APIKey is a key on the wire. Key is in the answer that created it and never
// again.
type APIKey struct {
	Name        string     `json:"name" api:"output"`
	DisplayName string     `json:"displayName"`
	Role        string     `json:"role"`
	ExpireTime  *time.Time `json:"expireTime,omitempty"`
	CreateTime  *time.Time `json:"createTime,omitempty" api:"output"`
	CreatedBy   string     `json:"createdBy,omitempty" api:"output"`
	Prefix      string     `json:"prefix,omitempty" api:"output"`
	// LastUsedTime is to the minute; absent when the key was not used yet.
	LastUsedTime *time.Time `json:"lastUsedTime,omitempty" api:"output"`
	Key          string     `json:"key,omitempty" api:"output" query:"-"`

	minted Key
}

var apiKeys = &resource[domain.APIKey, APIKey]{
	kind: domain.APIKeys, noun: "API key", wrapper: "apiKey", idParam: "apiKeyId", reads: toGuard, writes: toGuard,
	fields: storedFieldsOf[domain.APIKey, APIKey]("name", "displayName", "role", "expireTime", "createTime", "createdBy", "prefix"),
	render: func(v *projections.View, row *projections.Row[domain.APIKey], out *APIKey) {
		*out = APIKey{Name: string(row.Name), DisplayName: row.State.DisplayName, Role: row.State.Role, ExpireTime: row.State.ExpireTime,
			CreateTime: stampOf(&row.CreateTime), CreatedBy: row.State.CreatedBy, Prefix: row.State.Prefix, LastUsedTime: stamp(v.Pulse.KeyUsed(row.Name))}
	},
	prepare: func(c *call, name domain.Name, given *APIKey, _ map[string]string, _ *domain.Violations) error {
		given.minted = c.mint(name)
		return nil
	},
	create: func(c *call, _ domain.Name, given *APIKey) domain.Command[domain.APIKey] {
		return domain.CreateAPIKey{
			APIKeySpec: domain.APIKeySpec{DisplayName: given.DisplayName, Role: given.Role, ExpireTime: given.ExpireTime},
			Hash:       given.minted.Hash, Prefix: given.minted.Prefix, CreatedBy: string(c.caller.key)}
	},
	addGiven: func(_ *call, given, out *APIKey) { out.Key = given.minted.Text },
	remove: func(c *call, row *projections.Row[domain.APIKey], _ *params) (domain.Command[domain.APIKey], error) {
		if row.Name == c.caller.key {
			f := domain.Faultf(domain.FailedPrecondition, "this is the key that you are using: delete it with another one, so that you are not locked out")
			f.Reason = "KEY_IN_USE"
			return nil, f
		}
		return domain.DeleteAPIKey{}, nil
	},
	after: func(c *call, row *projections.Row[domain.APIKey]) { c.keyForgotten(row.Name) },
}
