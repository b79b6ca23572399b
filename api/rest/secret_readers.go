package rest

import (
	"anneal/api/request"
	"anneal/domain"
	sealed "anneal/eventlog/secrets"
)

// secretReader returns the reader of a secret that a request reads, for a resource; "" if the request has
// none.
func secretReader(c *call, purpose sealed.Purpose, resource domain.Name) sealed.Reader {
	return sealed.Reader{Purpose: purpose, Resource: resource, Key: c.Principal.Key, Request: c.ID,
		Address: request.ClientAddress(c.Request)}
}
