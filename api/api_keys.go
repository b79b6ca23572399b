package api

import (
	"context"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/natsserver"
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
	// NATSURL and NATSUser are where a reader connects, and as whom; the key is
	// its password.
	NATSURL  string `json:"natsUrl,omitempty" api:"output" query:"-"`
	NATSUser string `json:"natsUser,omitempty" api:"output" query:"-"`

	minted request.Key
}

var apiKeys = &resource[domain.APIKey, APIKey]{
	kind: domain.APIKeys, noun: "API key", wrapper: "apiKey", idParam: "apiKeyId", reads: request.ManageSecrets, writes: request.ManageSecrets,
	fields: storedFieldsOf[domain.APIKey, APIKey]("name", "displayName", "role", "expireTime", "createTime", "createdBy", "prefix"),
	render: func(v *projections.View, row *projections.Row[domain.APIKey], out *APIKey) {
		*out = APIKey{Name: string(row.Name), DisplayName: row.State.DisplayName, Role: row.State.Role, ExpireTime: row.State.ExpireTime,
			CreateTime: wire.TimestampOf(&row.CreateTime), CreatedBy: row.State.CreatedBy, Prefix: row.State.Prefix, LastUsedTime: wire.Timestamp(v.Live.KeyUsed(row.Name))}
	},
	local: func(c *call, row *projections.Row[domain.APIKey], out *APIKey) {
		if row.State.Role == domain.RoleReader && c.server.ReaderURL != "" {
			out.NATSURL, out.NATSUser = c.server.ReaderURL, readerOf(row.Name).User()
		}
	},
	prepare: func(c *call, name domain.Name, given *APIKey, _ map[string]string, _ *domain.Violations) error {
		given.minted = c.Mint(name)
		return nil
	},
	create: func(c *call, _ domain.Name, given *APIKey) domain.Command[domain.APIKey] {
		return domain.CreateAPIKey{
			APIKeySpec: domain.APIKeySpec{DisplayName: given.DisplayName, Role: given.Role, ExpireTime: given.ExpireTime},
			Hash:       given.minted.Hash, Prefix: given.minted.Prefix, CreatedBy: string(c.Principal.Key)}
	},
	addGiven: func(c *call, given, out *APIKey) {
		out.Key = given.minted.Text
		if given.Role == domain.RoleReader && c.server.ReaderURL == "" {
			c.Warn("role: this server's events lie in a NATS cluster, which has no readers of one account: "+
				"the key reads them over HTTP, from /v1/accounts/%s/events with Accept: text/event-stream", c.Account)
		}
	},
	remove: func(c *call, row *projections.Row[domain.APIKey], _ *request.Params) (domain.Command[domain.APIKey], error) {
		if row.Name == c.Principal.Key {
			f := domain.Errorf(domain.FailedPrecondition, "this is the key that you are using: delete it with another one, so that you are not locked out")
			f.Reason = "KEY_IN_USE"
			return nil, f
		}
		return domain.DeleteAPIKey{}, nil
	},
	after: func(c *call, row *projections.Row[domain.APIKey]) { c.KeyForgotten(row.Name) },
}

// ReaderOf is the reader of an account's events that connects to NATS with an
// API key as its password; false when the key is not valid, or has another role.
func ReaderOf(rows eventlog.Rows, pepper []byte, key string, now time.Time) (natsserver.Reader, bool) {
	caller, err := request.PrincipalOf(rows, pepper, key, now)
	if err != nil || caller.Role != domain.RoleReader {
		return natsserver.Reader{}, false
	}
	reader := readerOf(caller.Key)
	state, _ := rows.Row(caller.Key)
	if k, ok := state.(domain.APIKey); ok {
		reader.Expires = k.ExpireTime
	}
	return reader, true
}

func readerOf(key domain.Name) natsserver.Reader {
	return natsserver.Reader{Account: key.Account(), ID: key.ID()}
}

// ReaderConnected notes that a reader's key was used.
func (s *Server) ReaderConnected(r natsserver.Reader) {
	name := domain.NewName(r.Account, domain.APIKeys.Collection, r.ID)
	c := &request.Call{Core: s.core, Principal: request.Principal{Key: name}, Time: s.Now().UTC(),
		Ctx: context.Background(), ID: "NATS"}
	c.KeyUsed()
}
