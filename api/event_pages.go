package api

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/projections/query"
)

// listEvents answers a page of a history: in the order of the log, by reading
// just that page of it. A filter that begins with a subject reads what happened
// to that one; any other, and any other order, reads all of the history.
func (c *call) listEvents(p *request.Params, h history) (any, error) {
	q, m := request.ReadListQuery(c.Call, p, reflect.TypeFor[Event]())
	if q.OrderBy == "position" { // the order that the log has anyway
		q.OrderBy = ""
	}
	if strings.TrimSpace(q.Filter) == "" && strings.TrimSpace(q.OrderBy) == "" {
		return c.nextEvents(p, h, q, m)
	}
	return c.siftEvents(p, h.narrowed(q.Filter), q, m)
}

// bySubject is a filter that only events of one resource can match: an equality,
// or one that stands before AND. What follows may hold no OR, so that nothing
// depends on which of the two binds tighter.
var bySubject = regexp.MustCompile(`^\s*subject\s*=\s*"(accounts/[a-z0-9-]+/[A-Za-z]+/[a-z0-9-]+|accounts/[a-z0-9-]+)"\s*(AND\s.*)?$`)

// narrowed is the part of the history that a filter can match, as far as its
// beginning tells that: the log finds the events of one resource by its index.
func (h history) narrowed(filter string) history {
	found := bySubject.FindStringSubmatch(filter)
	if found == nil || strings.Contains(found[2], "OR") {
		return h
	}
	subject := domain.Name(found[1]).Subject()
	if base, open := strings.CutSuffix(h.filter, ">"); open && strings.HasPrefix(subject, base) {
		h.filter = subject
	}
	return h
}

// An eventPlace is where the next page of a history begins.
type eventPlace struct {
	After uint64 `json:"a"` // position
	Total int    `json:"t"` // of the listing, as its first page told it
}

// nextEvents answers a page of a history in the order of the log.
func (c *call) nextEvents(p *request.Params, h history, q query.Query, m wire.Mask) (any, error) {
	size := request.PageSize(&p.Violations, q.PageSize)
	var at eventPlace
	if q.PageToken != "" && !request.OpenToken(c.Pepper, q.Binding, q.PageToken, &at) {
		p.Violations.Add("pageToken", "is not a token of this list: leave it out to begin again")
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	if q.PageToken == "" {
		total, err := c.countEvents(h)
		if err != nil {
			return nil, err
		}
		at.Total = total
	}
	events, next := []any{}, ""
	for e, err := range c.Log.Read(c.Ctx, h.filter, at.After) {
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", h.filter, err)
		}
		if !h.shows(e) {
			continue
		}
		if len(events) == size {
			next = request.SealToken(c.Pepper, q.Binding, at)
			break
		}
		events, at.After = append(events, eventlog.Structured(shown(e))), e.Position
	}
	return request.ListResponse("events", events, next, at.Total, m)
}

// countEvents is how many events the caller may see of a history.
func (c *call) countEvents(h history) (int, error) {
	total, err := c.Log.Count(c.Ctx, h.filter)
	base, open := strings.CutSuffix(h.filter, ">")
	if base == "events." { // of all accounts
		base += "*."
	}
	for _, collection := range h.hidden {
		if err != nil || !open { // one resource, which the caller may see
			break
		}
		var hidden uint64
		hidden, err = c.Log.Count(c.Ctx, base+collection+".>")
		total -= min(hidden, total) // some may have come meanwhile
	}
	if err != nil {
		return 0, fmt.Errorf("counting %s: %w", h.filter, err)
	}
	return int(total), nil
}

// siftEvents answers a page of what a filter leaves of a history, in any order.
func (c *call) siftEvents(p *request.Params, h history, q query.Query, m wire.Mask) (any, error) {
	var broken error
	rows := func(yield func(*projections.Row[recorded]) bool) {
		for e, err := range c.Log.Read(c.Ctx, h.filter, 0) {
			if err != nil {
				broken = err
				return
			}
			row := &projections.Row[recorded]{Name: domain.Name(fmt.Sprintf("%020d", e.Position)), State: recorded{e}}
			if h.shows(e) && !yield(row) {
				return
			}
		}
	}
	page, err := query.List(rows, renderEvent, eventFields, q)
	if err := request.JoinErrors(p.Err(), err); err != nil {
		return nil, err
	}
	if broken != nil {
		return nil, fmt.Errorf("reading %s: %w", h.filter, broken)
	}
	events := make([]any, len(page.Items))
	for i, one := range page.Items {
		e, err := c.Log.At(c.Ctx, uint64(one.Position.Int64()))
		if err != nil {
			return nil, err
		}
		events[i] = eventlog.Structured(shown(e))
	}
	return request.ListResponse("events", events, page.NextPageToken, page.TotalSize, m)
}
