package events

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/projections/query"
)

// list returns a page of the history's events. Without a filter, and in the order of positions, up
// or down, it reads only the events of the page. With a filter that begins with subject = "…", it
// reads only the events of that resource, and if the filter has nothing else, only those of the
// page. With any other filter or order, it reads the whole history.
func list(c *request.Call, p *request.Params, h history) (any, error) {
	q, m := request.ReadListQuery(c, p, reflect.TypeFor[Event]())
	h, whole := h.ofSubject(q.Filter)
	if !whole && strings.TrimSpace(q.Filter) != "" {
		return filteredPage(c, p, h, q, m)
	}
	switch strings.Join(strings.Fields(q.OrderBy), " ") {
	case "", "position", "position asc":
		return nextPage(c, p, h, q, m)
	case "position desc":
		return previousPage(c, p, h, q, m)
	}
	return filteredPage(c, p, h, q, m)
}

// bySubject matches a filter for the events of one resource: subject = "…", alone or followed by
// AND. It does not parse the precedence of OR, so ofSubject excludes filters with OR.
var bySubject = regexp.MustCompile(
	`^\s*subject\s*=\s*"(accounts/[a-z0-9-]+/[A-Za-z]+/[a-z0-9-]+|accounts/[a-z0-9-]+)"\s*(AND\s.*)?$`)

// ofSubject returns the history of one resource if the filter selects only events of that resource;
// the log has an index by subject. whole reports whether the filter selects all of its events. For
// other filters, ofSubject returns h unchanged.
func (h history) ofSubject(filter string) (narrow history, whole bool) {
	found := bySubject.FindStringSubmatch(filter)
	if found == nil || strings.Contains(found[2], "OR") {
		return h, false
	}
	subject := domain.Name(found[1]).Subject()
	if prefix, open := strings.CutSuffix(h.subject, ">"); open && strings.HasPrefix(subject, prefix) {
		h.subject = subject
		return h, found[2] == ""
	}
	return h, false
}

// A pageCursor is the content of a page token of a list of events.
type pageCursor struct {
	After  uint64 `json:"a"` // position of the last event of the previous page, in ascending order
	Before uint64 `json:"b"` // the same in descending order
	Total  int    `json:"t"` // totalSize, as the first page stated it
}

// readCursor returns the page size and the cursor of a list of events.
func readCursor(c *request.Call, p *request.Params, h history, q query.Query) (size int, cursor pageCursor, err error) {
	size = request.PageSize(&p.Violations, q.PageSize)
	if q.PageToken != "" && !request.OpenToken(c.Pepper, q.Binding, q.PageToken, &cursor) {
		p.Violations.Add("pageToken", "is not a page token of this list: leave it out to get the first page")
	}
	if err := p.Err(); err != nil {
		return 0, cursor, err
	}
	if q.PageToken == "" {
		cursor.Total, err = count(c, h)
	}
	return size, cursor, err
}

// nextPage returns the page of the history's events that follows the page token, in the order of
// the log.
func nextPage(c *request.Call, p *request.Params, h history, q query.Query, m wire.Mask) (any, error) {
	size, cursor, err := readCursor(c, p, h, q)
	if err != nil {
		return nil, err
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
		events, cursor.After = append(events, eventlog.Structured(h.shown(e))), e.Position
		request.Reflect(c, e.Position)
	}
	return request.ListResponse("events", events, next, cursor.Total, m)
}

// previousPage returns the page of the history's events that follows the page token, in the reverse
// order of the log.
func previousPage(c *request.Call, p *request.Params, h history, q query.Query, m wire.Mask) (any, error) {
	size, cursor, err := readCursor(c, p, h, q)
	if err != nil {
		return nil, err
	}
	if cursor.Before == 0 {
		last, err := c.Log.Last(c.Ctx)
		if err != nil {
			return nil, err
		}
		request.Reflect(c, last.Position)
		cursor.Before = last.Position + 1
	}
	found, err := newestBefore(c, h, cursor.Before, size+1)
	if err != nil {
		return nil, fmt.Errorf("read events %s: %w", h.subject, err)
	}
	events, next := []any{}, ""
	for _, e := range slices.Backward(found) {
		if len(events) == size {
			next = request.SealToken(c.Pepper, q.Binding, cursor)
			break
		}
		events, cursor.Before = append(events, eventlog.Structured(h.shown(e))), e.Position
	}
	return request.ListResponse("events", events, next, cursor.Total, m)
}

// newestBefore returns the n newest events of the history before a position, in the order of the
// log. The log is read forward only, so newestBefore reads ranges of positions that end at the
// position, each twice as long as the one that follows it, until it has found n events. It keeps at
// most 2n.
func newestBefore(c *request.Call, h history, position uint64, n int) (newest []eventlog.Event, err error) {
	for length := uint64(n); position > 1 && len(newest) < n; length *= 2 {
		begin := position - min(position, length+1) // the range has the positions between begin and position
		var older []eventlog.Event
		for e, err := range c.Log.Read(c.Ctx, h.subject, begin) {
			if err != nil {
				return nil, err
			}
			if e.Position >= position {
				break
			}
			if !h.visible(e) {
				continue
			}
			if older = append(older, e); len(older) == 2*n {
				older = append(older[:0], older[n:]...)
			}
		}
		newest = append(older, newest...)
		position = begin + 1
	}
	return newest[max(0, len(newest)-n):], nil
}

// count returns the number of events in the history that the caller may read.
func count(c *request.Call, h history) (int, error) {
	total, err := c.Log.Count(c.Ctx, h.subject)
	prefix, open := strings.CutSuffix(h.subject, ">")
	if prefix == "events." { // the history of all accounts
		prefix += "*."
	}
	for _, collection := range h.hidden {
		if err != nil || !open { // the history of one resource has no hidden collections
			break
		}
		var hidden uint64
		hidden, err = c.Log.Count(c.Ctx, prefix+collection+".>")
		total -= min(hidden, total) // events may be recorded between the two counts
	}
	if err != nil {
		return 0, fmt.Errorf("count events %s: %w", h.subject, err)
	}
	return int(total), nil
}

// filteredPage returns a page of the history's events that match the query's filter, in the query's
// order. It reads all events of the history.
func filteredPage(c *request.Call, p *request.Params, h history, q query.Query, m wire.Mask) (any, error) {
	var readErr error
	rows := func(yield func(*projections.Row[recorded]) bool) {
		for e, err := range c.Log.Read(c.Ctx, h.subject, 0) {
			if err != nil {
				readErr = err
				return
			}
			request.Reflect(c, e.Position)
			row := &projections.Row[recorded]{Name: domain.Name(fmt.Sprintf("%020d", e.Position)), State: recorded{h.masked(e)}}
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
		events[i] = eventlog.Structured(h.shown(e))
	}
	return request.ListResponse("events", events, page.NextPageToken, page.TotalSize, m)
}
