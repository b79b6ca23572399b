package api

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
	"anneal/projections/query"
)

// readQuery reads the parameters that all lists share, and the read mask.
func readQuery(c *call, p *params, t reflect.Type) (query.Query, wire.Mask) {
	q := query.Query{
		Filter:    p.text("filter"),
		OrderBy:   p.text("orderBy"),
		PageSize:  p.number("pageSize"),
		PageToken: p.text("pageToken"),
		Key:       c.Pepper,
		Binding:   binding(c.r.URL, p),
	}
	m, _ := wire.ParseMask(&p.violations, "readMask", t, p.texts("readMask"), false)
	return q, m
}

// pageSize is how many items a page has when so many are asked for.
func pageSize(v *domain.Violations, asked int) int {
	v.Require(asked >= 0, "pageSize", "must not be negative: leave it out for %d", query.DefaultPageSize)
	if asked == 0 {
		return query.DefaultPageSize
	}
	return min(asked, query.MaxPageSize)
}

// binding is everything of a request that a page token belongs to.
func binding(u *url.URL, p *params) string {
	var b strings.Builder
	b.WriteString(u.Path)
	for _, name := range wire.SortedKeys(p.values) {
		if name != "pageToken" {
			fmt.Fprintf(&b, "\n%s=%q", name, p.values[name])
		}
	}
	return b.String()
}

// A listAnswer is one page on the wire. Its array stands under the
// collection's name; the rest is the same for all.
func listAnswer(name string, items any, nextPageToken string, totalSize int, m wire.Mask) (any, error) {
	items, err := m.Project(items)
	if err != nil {
		return nil, err
	}
	answer := map[string]any{name: items, "totalSize": totalSize}
	if nextPageToken != "" {
		answer["nextPageToken"] = nextPageToken
	}
	return answer, nil
}

func (res *resource[S, R]) list(c *call) (any, error) {
	if err := res.mayRead(c, ""); err != nil {
		return nil, err
	}
	p := c.params()
	q, m := readQuery(c, p, reflect.TypeFor[R]())
	q.DefaultOrder = res.order
	showDeleted := res.deletes && p.flag("showDeleted")
	if res.unsifted {
		q.Filter, q.OrderBy = "", ""
	}
	render := func(row *projections.Row[S], out *R) { res.show(c, row, out) }
	page, err := query.ListIn(res.table(c.snapshot()), c.account, res.visible(c, showDeleted), render, res.fields, q)
	if err := both(p.err(), err); err != nil {
		return nil, err
	}
	return listAnswer(res.kind.Collection, page.Items, page.NextPageToken, page.TotalSize, m)
}

// visible tells which rows of the path's account the caller may see; nil is all.
func (res *resource[S, R]) visible(c *call, showDeleted bool) func(*projections.Row[S]) bool {
	publicOnly := res.public != nil && c.caller.account != c.account && !c.caller.operator()
	hides := res.hidden != nil && !showDeleted
	if !publicOnly && !hides {
		return nil
	}
	return func(row *projections.Row[S]) bool {
		return (!publicOnly || res.public(&row.State)) && (!hides || !res.hidden(&row.State))
	}
}

// both is one error for what two checks of a request found.
func both(a, b error) error {
	var f, g *domain.Error
	if errors.As(a, &f) && errors.As(b, &g) {
		return domain.Violations(slices.Concat(f.Violations, g.Violations)).Err()
	}
	return cmp.Or(a, b)
}
