package rest

import (
	"anneal/api/request"
	"anneal/domain"
)

// events lists or streams the events of a resource, even if the resource is deleted.
func (res *resource[S, R]) events(c *call) (any, error) {
	name := domain.NewName(c.Account, res.kind.Collection, c.PathValue("id"))
	if _, version := c.World.Row(name); version == 0 || !domain.ValidID(name.ID()) {
		return nil, request.NotFound(res.noun, name)
	}
	return c.Events.Serve(c.Call, name.Subject())
}
