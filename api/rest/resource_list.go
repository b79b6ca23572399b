package rest

import (
	"reflect"

	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
	"anneal/projections/query"
)

// recordedRow returns the row after the change that an earlier attempt of the request has recorded,
// so that the change is not recorded twice. It returns nil if there is no such change.
func recordedRow[S domain.State, R any](c *call, res *resource[S, R], name domain.Name) (*projections.Row[S], error) {
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
	if res.ignoresQuery {
		c.warnParameters()
		q.Filter, q.OrderBy = "", ""
	}
	render := query.Rendering[S, R]{All: func(row *projections.Row[S], out *R) { res.show(c, row, out) },
		Field: func(field string) func(*projections.Row[S], *R) { return res.computed[field] }}
	if res.dependent != nil {
		render.Dependence = func(field string) *query.Dependence[S] { return dependenceOf(res, c.View(), field) }
	}
	page, err := query.ListIn(res.table(c.View()), c.Account, res.visible(c, showDeleted), render, res.fields, q)
	if err := request.JoinErrors(p.Err(), err); err != nil {
		return nil, err
	}
	return request.ListResponse(res.kind.Collection, page.Items, page.NextPageToken, page.TotalSize, m)
}

// dependenceOf returns on what a field depends besides the row; nil if it depends on nothing else.
func dependenceOf[S domain.State, R any](res *resource[S, R], v *projections.View, field string) *query.Dependence[S] {
	if field == "createdBy" && res.creator != nil {
		return &query.Dependence[S]{
			Stored: func(row *projections.Row[S]) string { return res.creator(&row.State) },
			Shown:  func(stored string) string { return creatorOf(v, stored) }}
	}
	when, ok := res.dependent[field]
	if !ok {
		return nil
	}
	return &query.Dependence[S]{When: when}
}

// visible returns a function that reports whether a list contains a row; nil if it contains all
// rows.
func (res *resource[S, R]) visible(c *call, showDeleted bool) func(*projections.Row[S]) bool {
	publicOnly := res.public != nil && c.Principal.Account != c.Account && !c.Principal.IsOperator()
	hides := res.hidden != nil && !showDeleted
	if !publicOnly && !hides {
		return nil
	}
	return func(row *projections.Row[S]) bool {
		isPublic := !publicOnly || res.public(&row.State) && (c.View().Past == nil || res.isPublicNow(c, row))
		return isPublic && (!hides || !res.hidden(&row.State))
	}
}
