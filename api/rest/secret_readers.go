package rest

import (
	"anneal/api/request"
	"anneal/domain"
	sealed "anneal/eventlog/secrets"
)

// secretReader returns which code reads a secret during the request, for the audit stream: the
// request itself, for the purpose and the resource. It is zero if the call has no request.
func secretReader(c *call, purpose sealed.Purpose, resource domain.Name) sealed.Reader {
	return sealed.Reader{Purpose: purpose, Resource: resource, Key: c.Principal.Key, Request: c.ID,
		Address: request.ClientAddress(c.Request)}
}
