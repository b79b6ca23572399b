package rest

import (
	"strconv"

	"anneal/api/request"
	"anneal/api/wire"
)

// Limits of the number of items on a page of the OpenAI API.
const (
	maxListedFiles     = 10_000
	maxListedJobs      = 1000
	defaultListedJobs  = 20
	defaultCheckpoints = 10
)

// afterParameter and limitParameter are the query parameters that select a page of a list of the
// OpenAI API.
func afterParameter() request.Parameter {
	return request.Parameter{Name: "after", Kind: wire.Text,
		Description: "ID of the last item of the previous page; absent for the first page."}
}

func limitParameter(text string) request.Parameter {
	return request.Parameter{Name: "limit", Kind: wire.Int, Description: "Maximum number of items on the page. " + text}
}

// pageOf returns the page of items that the query parameters after and limit select. fallback and
// highest are the default and the maximum of limit. more reports whether further items follow. It
// adds violations to p.
func pageOf[T any](p *request.Params, items []T, id func(T) string, fallback, highest int) (page []T, more bool) {
	limit := fallback
	// Params adds the violation for a limit that is not a number
	if given, err := strconv.Atoi(p.Values.Get("limit")); err == nil {
		limit = given
		p.Require(limit >= 1 && limit <= highest, "limit", "must be from 1 to %d, not %d", highest, limit)
	}
	if after := p.Text("after"); after != "" {
		// Jobs of different kinds may have the same ID. The page begins after the last item with the
		// ID, so that no item is repeated.
		at := len(items) - 1
		for at >= 0 && id(items[at]) != after {
			at--
		}
		p.Violations.Require(at >= 0, "after", "%s is not the ID of an item of this list: leave it out for the first page",
			wire.Quote(after))
		items = items[at+1:]
	}
	if len(p.Violations) > 0 || len(items) <= limit {
		return items, false
	}
	return items[:limit], true
}

// ends returns the IDs of the first and the last item of a page; nil if the page is empty.
func ends[T any](page []T, id func(T) string) (first, last *string) {
	if len(page) == 0 {
		return nil, nil
	}
	a, b := id(page[0]), id(page[len(page)-1])
	return &a, &b
}
