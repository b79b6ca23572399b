package api

import (
	"reflect"
	"slices"
	"strings"

	"anneal/api/request"
	"anneal/api/wire"
)

// operations are those that the resource has.
func (res *resource[S, R]) operations(s *Server) []request.Operation {
	one, many, item := res.singular(), wire.Capitalize(res.kind.Collection), reflect.TypeFor[R]()
	collection := request.CollectionPath + res.kind.Collection
	path := collection + "/{id}"
	read := request.InAccount
	if res.public != nil {
		read = request.WithKey // it decides itself, since what is public is everybody's
	}
	listing := request.ListParameters
	if res.deletes {
		listing = append(slices.Clone(request.ListParameters), request.Parameter{Name: "showDeleted", Kind: wire.Bool, Description: "Whether to list those that are deleted and not purged yet as well."})
	}
	all := []request.Operation{
		{ID: "list" + many, Method: "GET", Path: collection, Summary: "List " + res.noun + "s", Gate: read, Permission: res.reads,
			Query: listing, Response: request.PageType(res.kind.Collection, item), Handle: s.handle(res.list)},
		{ID: "get" + one, Method: "GET", Path: path, Summary: "Read " + res.aNoun(), Gate: read, Permission: res.reads,
			Query: []request.Parameter{request.ReadMaskParameter}, Response: item, Handle: s.handle(res.get)},
		historyOf(request.Operation{ID: "list" + one + "Events", Method: "GET", Path: path + "/events", Summary: "List the events of " + res.aNoun(),
			Permission: res.readsHistory(), Handle: s.handle(res.events)}),
	}
	if res.create != nil && res.kind.Collection != "accounts" {
		all = append(all, request.Operation{ID: "create" + one, Method: "POST", Path: collection, Summary: "Create " + res.aNoun(), Permission: res.writes,
			Query: res.createQuery(), Body: res.envelope(), Required: res.requires, BodyOptional: res.wrapper != "", Response: item, Handle: s.handle(res.post)})
	}
	if res.update != nil {
		all = append(all, request.Operation{ID: "update" + one, Method: "PATCH", Path: path, Summary: "Change " + res.aNoun(), Permission: res.writes,
			Query: append([]request.Parameter{request.UpdateMaskParameter}, res.asksUpdate...), Body: item, Response: item, Handle: s.handle(res.patch)})
	}
	if res.remove != nil {
		all = append(all, request.Operation{ID: "delete" + one, Method: "DELETE", Path: path, Summary: "Delete " + res.aNoun(), Permission: res.writes,
			Query: res.asksRemove, Response: request.NoBody, Handle: s.handle(res.delete)})
	}
	for i := range all {
		all[i].Tag = res.kind.Collection
	}
	return all
}

// singular is one of the collection as operations are named: SupervisedFineTuningJob.
func (res *resource[S, R]) singular() string {
	return wire.Capitalize(strings.TrimSuffix(res.kind.Collection, "s"))
}

// aNoun is the noun with its article.
func (res *resource[S, R]) aNoun() string {
	if strings.ContainsAny(res.noun[:1], "aeiouA") {
		return "an " + res.noun
	}
	return "a " + res.noun
}

func (res *resource[S, R]) createQuery() []request.Parameter {
	var query []request.Parameter
	if res.wrapper == "" && res.idParam != "" {
		query = append(query, request.Parameter{Name: res.idParam, Kind: wire.Text, Description: "The ID of the new " + res.noun + "; one is made up when it is left out."})
	}
	if res.imagines {
		query = append(query, request.Parameter{Name: "validateOnly", Kind: wire.Bool, Description: "Whether to answer what would be created, and create nothing."})
	}
	return append(query, res.asks...)
}
