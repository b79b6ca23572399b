package rest

import (
	"strconv"

	"anneal/api/request"
	"anneal/api/wire"
)

// Limits of the items of one page of the OpenAI API.
const (
	maxListedFiles     = 10_000
	maxListedJobs      = 1000
	defaultListedJobs  = 20
	defaultCheckpoints = 10
)

// afterParameter and limitParameter select the page of a list of the OpenAI API.
func afterParameter() request.Parameter {
	return request.Parameter{Name: "after", Kind: wire.Text,
		Description: "ID of the last item of the previous page."}
}

func limitParameter(text string) request.Parameter {
	return request.Parameter{Name: "limit", Kind: wire.Int, Description: "Maximum number of items. " + text}
}

// pageOf returns the items after the item that the parameter after names, as many as the parameter
// limit allows. It adds violations to p. more reports whether further items follow.
func pageOf[T any](p *request.Params, items []T, id func(T) string, fallback, highest int) (page []T, more bool) {
	limit := fallback
	if given, err := strconv.Atoi(p.Values.Get("limit")); err == nil { // Params rejects what is not a number
		limit = given
		p.Require(limit >= 1 && limit <= highest, "limit", "must be from 1 to %d, not %d", highest, limit)
	}
	if after := p.Text("after"); after != "" {
		// jobs of several kinds may have the same ID: a page after the first of them would repeat the others
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

// ends returns the IDs of the first and the last item of a page; nil for an empty page.
func ends[T any](page []T, id func(T) string) (first, last *string) {
	if len(page) == 0 {
		return nil, nil
	}
	a, b := id(page[0]), id(page[len(page)-1])
	return &a, &b
}
