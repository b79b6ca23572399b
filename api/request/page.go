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

// ReadListQuery reads the query parameters that all lists have, and the read mask. t is the type of
// an item, whose fields filters and masks can name.
func ReadListQuery(c *Call, p *Params, t reflect.Type) (query.Query, wire.Mask) {
	q := query.Query{
		Filter:    p.Text("filter"),
		OrderBy:   p.Text("orderBy"),
		PageSize:  p.Number("pageSize"),
		PageToken: p.Text("pageToken"),
		Key:       c.Pepper,
		Binding:   TokenBinding(c.Request.URL, p),
	}
	if c.View().Past != nil {
		q.Position = c.View().Position
	}
	return q, wire.ParseReadMask(&p.Violations, t, p.Texts("readMask"))
}

// PageSize returns the number of items of a page for the value of the parameter pageSize: the
// default for 0, and at most query.MaxPageSize. It adds a violation for a negative value.
func PageSize(v *domain.Violations, requested int) int {
	v.Require(requested >= 0, "pageSize", "must not be negative: leave it out for the default of "+
		"%d", query.DefaultPageSize)
	if requested == 0 {
		return query.DefaultPageSize
	}
	return min(requested, query.MaxPageSize)
}

// TokenBinding returns the parts of a request, such as path and filter, to which its page tokens
// are bound: a page token is valid only for a request with the same parts.
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

// ListResponse returns one page of a list. name is the JSON name of the array of items, and m
// selects their fields.
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

// JoinErrors returns one error with the violations of both a and b. If a or b is not a
// *domain.Error, it returns a or, if a is nil, b.
func JoinErrors(a, b error) error {
	var f, g *domain.Error
	if errors.As(a, &f) && errors.As(b, &g) {
		return domain.Violations(slices.Concat(f.Violations, g.Violations)).Err()
	}
	return cmp.Or(a, b)
}
