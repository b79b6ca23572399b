package api

import (
	"reflect"

	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
	"anneal/projections/query"
)

// tried returns the row as an earlier try of this very call left it, when that
// recorded what the call is about to record: it must not be recorded twice.
// Otherwise it returns nil.
func tried[S domain.State, R any](c *call, res *resource[S, R], name domain.Name) (*projections.Row[S], error) {
	change, err := c.Recorded(name)
	if err != nil || change.Position() == 0 {
		return nil, err
	}
	return res.changed(c, change)
}

func (res *resource[S, R]) list(c *call) (any, error) {
	if err := res.mayRead(c, ""); err != nil {
		return nil, err
	}
	p := c.Params()
	q, m := request.ReadListQuery(c.Call, p, reflect.TypeFor[R]())
	q.DefaultOrder = res.order
	showDeleted := res.deletes && p.Flag("showDeleted")
	if res.unsifted {
		q.Filter, q.OrderBy = "", ""
	}
	render := func(row *projections.Row[S], out *R) { res.show(c, row, out) }
	page, err := query.ListIn(res.table(c.View()), c.Account, res.visible(c, showDeleted), render, res.fields, q)
	if err := request.JoinErrors(p.Err(), err); err != nil {
		return nil, err
	}
	return request.ListResponse(res.kind.Collection, page.Items, page.NextPageToken, page.TotalSize, m)
}

// visible tells which rows of the path's account the caller may see; nil is all.
func (res *resource[S, R]) visible(c *call, showDeleted bool) func(*projections.Row[S]) bool {
	publicOnly := res.public != nil && c.Principal.Account != c.Account && !c.Principal.IsOperator()
	hides := res.hidden != nil && !showDeleted
	if !publicOnly && !hides {
		return nil
	}
	return func(row *projections.Row[S]) bool {
		return (!publicOnly || res.public(&row.State)) && (!hides || !res.hidden(&row.State))
	}
}
