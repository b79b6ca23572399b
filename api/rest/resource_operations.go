package rest

import (
	"reflect"
	"slices"
	"strings"

	"anneal/api/events"
	"anneal/api/request"
	"anneal/api/wire"
)

// operations returns the generic operations of the resource.
func (res *resource[S, R]) operations(s *Service) []request.Operation {
	one, many, item := res.singular(), wire.Capitalize(res.kind.Collection), reflect.TypeFor[R]()
	collection := request.CollectionPath + res.kind.Collection
	path := collection + "/{id}"
	read := request.InAccount
	if res.public != nil {
		read = request.WithKey // the handler checks permissions, because all accounts may read public resources
	}
	listing := request.ListParameters
	if res.deletes {
		listing = append(slices.Clone(request.ListParameters),
			request.Parameter{Name: "showDeleted", Kind: wire.Bool,
				Description: "Whether to include soft-deleted " + res.noun + "s that are not deleted permanently yet."})
	}
	all := []request.Operation{
		{ID: "list" + many, Method: "GET", Path: collection, Summary: "List " + res.noun + "s", Gate: read,
			Permission: res.reads,
			Query:      listing, Response: request.PageType(res.kind.Collection, item), Handle: s.handle(res.list)},
		{ID: "get" + one, Method: "GET", Path: path, Summary: "Read " + withArticle(res.noun), Gate: read,
			Permission: res.reads,
			Query:      []request.Parameter{request.ReadMaskParameter}, Response: item, Handle: s.handle(res.get)},
		events.HistoryOf(request.Operation{ID: "list" + one + "Events", Method: "GET", Path: path + "/events",
			Summary:    "List the events of " + withArticle(res.noun),
			Permission: res.historyPermission(), Handle: s.handle(res.events)}),
	}
	if res.create != nil {
		all = append(all, request.Operation{ID: "create" + one, Method: "POST", Path: collection,
			Summary: "Create " + withArticle(res.noun), Permission: res.writes,
			Query: res.createQuery(), Body: res.envelope(), Required: res.requires, BodyOptional: res.wrapper != "",
			Response: item, Handle: s.handle(res.post)})
	}
	if res.update != nil {
		all = append(all, request.Operation{ID: "update" + one, Method: "PATCH", Path: path,
			Summary:    "Change " + withArticle(res.noun),
			Permission: res.writes,
			Query:      append([]request.Parameter{request.UpdateMaskParameter}, res.updateParameters...), Body: item,
			Response: item,
			Handle:   s.handle(res.patch)})
	}
	if res.remove != nil {
		all = append(all, request.Operation{ID: "delete" + one, Method: "DELETE", Path: path,
			Summary: "Delete " + withArticle(res.noun), Permission: res.writes,
			Query: res.deleteParameters, Response: request.NoBody, Handle: s.handle(res.delete)})
	}
	return withTag(res.kind.Collection, all)
}

// singular returns the name of one resource in operation IDs, such as SupervisedFineTuningJob.
func (res *resource[S, R]) singular() string {
	return wire.Capitalize(strings.TrimSuffix(res.kind.Collection, "s"))
}

// withArticle returns a noun with "a" or "an" before it.
func withArticle(noun string) string {
	if strings.ContainsAny(noun[:1], "aeiouA") {
		return "an " + noun
	}
	return "a " + noun
}

func (res *resource[S, R]) createQuery() []request.Parameter {
	var query []request.Parameter
	if res.wrapper == "" && res.idParam != "" {
		query = append(query, request.Parameter{Name: res.idParam, Kind: wire.Text, Description: "ID of the new " +
			res.noun + ". The server generates one by default."})
	}
	if res.validateOnly {
		query = append(query, request.Parameter{Name: "validateOnly", Kind: wire.Bool,
			Description: "Whether to validate the request only: the response is the resource that would be created."})
	}
	return append(query, res.createParameters...)
}

// withTag returns the operations with the tag set, under which the API reference lists them.
func withTag(tag string, all []request.Operation) []request.Operation {
	for i := range all {
		all[i].Tag = tag
	}
	return all
}
