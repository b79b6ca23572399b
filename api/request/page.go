package request

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
	"anneal/projections/query"
)

// ReadListQuery reads the parameters that all lists have, and the read mask.
func ReadListQuery(c *Call, p *Params, t reflect.Type) (query.Query, wire.Mask) {
	q := query.Query{
		Filter:    p.Text("filter"),
		OrderBy:   p.Text("orderBy"),
		PageSize:  p.Number("pageSize"),
		PageToken: p.Text("pageToken"),
		Key:       c.Pepper,
		Binding:   TokenBinding(c.Request.URL, p),
	}
	m, _ := wire.ParseMask(&p.Violations, "readMask", t, p.Texts("readMask"), false)
	return q, m
}

// PageSize returns the number of items of a page for a requested number.
func PageSize(v *domain.Violations, asked int) int {
	v.Require(asked >= 0, "pageSize", "must not be negative: leave it out for %d", query.DefaultPageSize)
	if asked == 0 {
		return query.DefaultPageSize
	}
	return min(asked, query.MaxPageSize)
}

// TokenBinding returns the parts of a request that its page tokens are bound to.
func TokenBinding(u *url.URL, p *Params) string {
	var b strings.Builder
	b.WriteString(u.Path)
	for _, name := range wire.SortedKeys(p.Values) {
		if name != "pageToken" {
			fmt.Fprintf(&b, "\n%s=%q", name, p.Values[name])
		}
	}
	return b.String()
}

// ListResponse returns one page of a list, whose array has the name of the collection.
func ListResponse(name string, items any, nextPageToken string, totalSize int, m wire.Mask) (any, error) {
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

// JoinErrors returns one error with the violations of two.
func JoinErrors(a, b error) error {
	var f, g *domain.Error
	if errors.As(a, &f) && errors.As(b, &g) {
		return domain.Violations(slices.Concat(f.Violations, g.Violations)).Err()
	}
	return cmp.Or(a, b)
}
