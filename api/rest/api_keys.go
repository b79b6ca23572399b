package rest

import (
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/natsserver"
	"anneal/projections"
)

// APIKey is the wire type of an API key. Only the response to its creation contains the field Key.
type APIKey struct {
	Name        string     `json:"name" api:"output"`
	DisplayName string     `json:"displayName"`
	Email       string     `json:"email,omitempty"`
	Role        string     `json:"role"`
	Priority    string     `json:"priority,omitempty"`
	ExpireTime  *time.Time `json:"expireTime,omitempty"`
	CreateTime  *time.Time `json:"createTime,omitempty" api:"output"`
	CreatedBy   string     `json:"createdBy,omitempty" api:"output"`
	Prefix      string     `json:"prefix,omitempty" api:"output"`
	// LastUsedTime has a precision of one minute. It is nil if the key was never used.
	LastUsedTime *time.Time `json:"lastUsedTime,omitempty" api:"output"`
	Key          string     `json:"key,omitempty" api:"output" query:"-"`
	// NATSURL and NATSUser are the server and the user name with which a reader connects to NATS.
	// Its password is the API key.
	NATSURL  string `json:"natsUrl,omitempty" api:"output" query:"-"`
	NATSUser string `json:"natsUser,omitempty" api:"output" query:"-"`
}

var apiKeys = &resource[domain.APIKey, APIKey]{
	kind: domain.APIKeys, noun: "API key", wrapper: "apiKey", idParam: "apiKeyId", reads: request.ManageSecrets,
	writes: request.ManageSecrets,
	fields: storedFieldsOf[domain.APIKey, APIKey]("name", "displayName", "email", "role", "priority", "expireTime",
		"createTime", "prefix"),
	creator:   func(k *domain.APIKey) string { return k.CreatedBy },
	dependent: map[string]func(*projections.Row[domain.APIKey]) bool{"lastUsedTime": nil},
	render: func(v *projections.View, row *projections.Row[domain.APIKey], out *APIKey) {
		*out = APIKey{Name: string(row.Name), DisplayName: row.State.DisplayName, Email: row.State.Email,
			Role: row.State.Role, Priority: row.State.Priority, ExpireTime: row.State.ExpireTime,
			CreateTime: wire.TimestampOf(&row.CreateTime),
			CreatedBy:  creatorOf(v, row.State.CreatedBy), Prefix: row.State.Prefix,
			LastUsedTime: wire.Timestamp(v.Live.KeyUsed(row.Name))}
	},
	local: func(c *call, row *projections.Row[domain.APIKey], out *APIKey) {
		if row.State.Role == domain.RoleReader && c.ReaderURL != "" {
			out.NATSURL, out.NATSUser = c.ReaderURL, readerOf(row.Name).User()
		}
	},
	create: func(c *call, q *creation[APIKey]) (plan[domain.APIKey, APIKey], error) {
		minted := c.Mint(q.name)
		spec := domain.APIKeySpec{DisplayName: q.given.DisplayName, Email: q.given.Email, Role: q.given.Role,
			Priority: q.given.Priority, ExpireTime: q.given.ExpireTime}
		return plan[domain.APIKey, APIKey]{
			command: domain.CreateAPIKey{APIKeySpec: spec, Hash: minted.Hash, Prefix: minted.Prefix,
				CreatedBy: string(c.Principal.Key)},
			respond: func(out *APIKey) {
				out.Key = minted.Text
				if spec.Role == domain.RoleReader && c.ReaderURL == "" {
					c.Warn("role: the server stores events in a NATS cluster, in which keys with the role reader cannot read "+
						"events: read them over HTTP from /v1/accounts/%s/events with Accept: text/event-stream", c.Account)
				}
			},
		}, nil
	},
	remove: func(c *call, row *projections.Row[domain.APIKey], _ *request.Params) (domain.Command[domain.APIKey], error) {
		if row.Name == c.Principal.Key {
			f := domain.Errorf(domain.FailedPrecondition,
				"the request was sent with this API key: delete it with another key, so that you are not locked out")
			f.Reason = "KEY_IN_USE"
			return nil, f
		}
		return domain.DeleteAPIKey{}, nil
	},
	afterDelete: func(c *call, row *projections.Row[domain.APIKey]) { c.KeyForgotten(row.Name) },
}

var _ = register(apiKeys.operations)

// ReaderOf returns the NATS reader that an API key with the role reader authenticates at the time
// now. It returns false if the key is invalid or has another role.
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
