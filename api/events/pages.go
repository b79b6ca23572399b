package events

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

// list returns a page of a history. Without a filter, and in the order of the log, it reads only
// the events of the page. With a filter that begins with a subject, it reads only the events of the
// resource with that subject. With any other filter or order, it reads the whole history.
func list(c *request.Call, p *request.Params, h history) (any, error) {
	q, m := request.ReadListQuery(c, p, reflect.TypeFor[Event]())
	if q.OrderBy == "position" { // the order of the log
		q.OrderBy = ""
	}
	if strings.TrimSpace(q.Filter) == "" && strings.TrimSpace(q.OrderBy) == "" {
		return nextPage(c, p, h, q, m)
	}
	return filteredPage(c, p, h.narrowed(q.Filter), q, m)
}

// bySubject matches filters that only events of one resource can match: subject = "…", alone or
// before AND. narrowed excludes filters with OR, because the expression does not parse precedence.
var bySubject = regexp.MustCompile(
	`^\s*subject\s*=\s*"(accounts/[a-z0-9-]+/[A-Za-z]+/[a-z0-9-]+|accounts/[a-z0-9-]+)"\s*(AND\s.*)?$`)

// narrowed limits the history to the events of one resource when the filter matches bySubject and
// has no OR: the log has an index by subject. Otherwise it returns the history unchanged.
func (h history) narrowed(filter string) history {
	found := bySubject.FindStringSubmatch(filter)
	if found == nil || strings.Contains(found[2], "OR") {
		return h
	}
	subject := domain.Name(found[1]).Subject()
	if prefix, open := strings.CutSuffix(h.subject, ">"); open && strings.HasPrefix(subject, prefix) {
		h.subject = subject
	}
	return h
}

// A pageCursor is the content of a page token.
type pageCursor struct {
	After uint64 `json:"a"` // position of the last event of the previous page
	Total int    `json:"t"` // total size, as the first page reported it
}

// nextPage returns a page of a history in the order of the log.
func nextPage(c *request.Call, p *request.Params, h history, q query.Query, m wire.Mask) (any, error) {
	size := request.PageSize(&p.Violations, q.PageSize)
	var cursor pageCursor
	if q.PageToken != "" && !request.OpenToken(c.Pepper, q.Binding, q.PageToken, &cursor) {
		p.Violations.Add("pageToken", "is not a page token of this list: omit it to list from the first page")
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	if q.PageToken == "" {
		total, err := count(c, h)
		if err != nil {
			return nil, err
		}
		cursor.Total = total
	}
	events, next := []any{}, ""
	for e, err := range c.Log.Read(c.Ctx, h.subject, cursor.After) {
		if err != nil {
			return nil, fmt.Errorf("read events %s: %w", h.subject, err)
		}
		if !h.visible(e) {
			continue
		}
		if len(events) == size {
			next = request.SealToken(c.Pepper, q.Binding, cursor)
			break
		}
		events, cursor.After = append(events, eventlog.Structured(redact(e))), e.Position
		request.Reflect(c, e.Position)
	}
	return request.ListResponse("events", events, next, cursor.Total, m)
}

// count returns the number of events of a history that the caller may see.
func count(c *request.Call, h history) (int, error) {
	total, err := c.Log.Count(c.Ctx, h.subject)
	prefix, open := strings.CutSuffix(h.subject, ">")
	if prefix == "events." { // all accounts
		prefix += "*."
	}
	for _, collection := range h.hidden {
		if err != nil || !open { // the history of one resource has no hidden events
			break
		}
		var hidden uint64
		hidden, err = c.Log.Count(c.Ctx, prefix+collection+".>")
		total -= min(hidden, total) // events may have been recorded between the counts
	}
	if err != nil {
		return 0, fmt.Errorf("count events %s: %w", h.subject, err)
	}
	return int(total), nil
}

// filteredPage returns a page of the events that match the filter of the query, in the order of the
// query. It reads all events of the history.
func filteredPage(c *request.Call, p *request.Params, h history, q query.Query, m wire.Mask) (any, error) {
	var readErr error
	rows := func(yield func(*projections.Row[recorded]) bool) {
		for e, err := range c.Log.Read(c.Ctx, h.subject, 0) {
			if err != nil {
				readErr = err
				return
			}
			request.Reflect(c, e.Position)
			row := &projections.Row[recorded]{Name: domain.Name(fmt.Sprintf("%020d", e.Position)), State: recorded{e}}
			if h.visible(e) && !yield(row) {
				return
			}
		}
	}
	page, err := query.List(rows, renderEvent, eventFields, q)
	if err := request.JoinErrors(p.Err(), err); err != nil {
		return nil, err
	}
	if readErr != nil {
		return nil, fmt.Errorf("read events %s: %w", h.subject, readErr)
	}
	events := make([]any, len(page.Items))
	for i, one := range page.Items {
		e, err := c.Log.At(c.Ctx, uint64(one.Position.Int64()))
		if err != nil {
			return nil, err
		}
		events[i] = eventlog.Structured(redact(e))
	}
	return request.ListResponse("events", events, page.NextPageToken, page.TotalSize, m)
}
