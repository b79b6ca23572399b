package rest

import (
	"anneal/api/request"
	"anneal/domain"
	sealed "anneal/eventlog/secrets"
)

// secretReader returns the description of a read of a secret during a request, for the audit
// stream: the caller, the purpose, and the resource whose code gets the value ("" if there is
// none).
func secretReader(c *call, purpose sealed.Purpose, resource domain.Name) sealed.Reader {
	return sealed.Reader{Purpose: purpose, Resource: resource, Key: c.Principal.Key, Request: c.ID,
		Address: request.ClientAddress(c.Request)}
}
