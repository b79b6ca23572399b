package api

import (
	"reflect"
	"slices"
	"strings"

	"anneal/api/wire"
)

// operations are those that the resource has.
func (res *resource[S, R]) operations() []operation {
	one, many, item := res.singular(), wire.Capitalize(res.kind.Collection), reflect.TypeFor[R]()
	collection := collectionPath + res.kind.Collection
	path := collection + "/{id}"
	read := inAccount
	if res.public != nil {
		read = withKey // it decides itself, since what is public is everybody's
	}
	listing := listQuery
	if res.deletes {
		listing = append(slices.Clone(listQuery), parameter{"showDeleted", wire.Bool, "Whether to list those that are deleted and not purged yet as well."})
	}
	all := []operation{
		{id: "list" + many, method: "GET", path: collection, summary: "List " + res.noun + "s", gate: read, may: res.reads,
			query: listing, answer: pageOf(res.kind.Collection, item), handle: res.list},
		{id: "get" + one, method: "GET", path: path, summary: "Read " + res.aNoun(), gate: read, may: res.reads,
			query: []parameter{readMaskQuery}, answer: item, handle: res.get},
		historyOf(operation{id: "list" + one + "Events", method: "GET", path: path + "/events", summary: "List the events of " + res.aNoun(),
			may: res.readsHistory(), handle: res.events}),
	}
	if res.create != nil && res.kind.Collection != "accounts" {
		all = append(all, operation{id: "create" + one, method: "POST", path: collection, summary: "Create " + res.aNoun(), may: res.writes,
			query: res.createQuery(), body: res.envelope(), requires: res.requires, emptyBody: res.wrapper != "", answer: item, handle: res.post})
	}
	if res.update != nil {
		all = append(all, operation{id: "update" + one, method: "PATCH", path: path, summary: "Change " + res.aNoun(), may: res.writes,
			query: append([]parameter{updateMask}, res.asksUpdate...), body: item, answer: item, handle: res.patch})
	}
	if res.remove != nil {
		all = append(all, operation{id: "delete" + one, method: "DELETE", path: path, summary: "Delete " + res.aNoun(), may: res.writes,
			query: res.asksRemove, answer: noSettings, handle: res.delete})
	}
	for i := range all {
		all[i].tag = res.kind.Collection
	}
	return all
}

// collectionPath is what the paths of collections begin with.
const collectionPath = "/v1/accounts/{account}/"

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

func (res *resource[S, R]) createQuery() []parameter {
	var query []parameter
	if res.wrapper == "" && res.idParam != "" {
		query = append(query, parameter{res.idParam, wire.Text, "The ID of the new " + res.noun + "; one is made up when it is left out."})
	}
	if res.imagines {
		query = append(query, parameter{"validateOnly", wire.Bool, "Whether to answer what would be created, and create nothing."})
	}
	return append(query, res.asks...)
}
