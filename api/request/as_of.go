package request

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
	"anneal/projections/query"
)

// AsOfParameter is the query parameter of gets and lists that selects an earlier state of the
// world. The handler of an operation with this parameter must read only the View of the call, which
// is then the world at the selected position.
var AsOfParameter = Parameter{"asOf", wire.Text,
	"A position of the log or a time (RFC 3339). The response shows the state at that position, or after the last " +
		"event up to that time, without live status. The header anneal-position has the position of that state. The " +
		"default is the present state."}

// maxPastReads bounds the concurrent requests of an account with the parameter asOf, because each
// reconstructs rows from the archive of the log.
const maxPastReads = 16

// Present returns the present world, even for a call with the parameter asOf: permissions are
// checked against the present.
func Present(c *Call) *projections.View {
	if c.View().Past != nil {
		return c.World.View()
	}
	return c.View()
}

// asOfValue returns the value of the query parameter asOf; "" if it is absent or the operation does
// not have it.
func asOfValue(c *Call) string {
	if c.Operation == nil || !c.Operation.Declares(AsOfParameter.Name) {
		return ""
	}
	return queryValue(c, AsOfParameter.Name)
}

// queryValue returns the first value of the query parameter name or, if it is absent, of the same
// name in snake_case.
func queryValue(c *Call, name string) string {
	given, _ := url.ParseQuery(c.Request.URL.RawQuery) // Params reports the parse error
	return cmp.Or(given.Get(name), given.Get(wire.Snake(name)))
}

// handleAsOf runs the handler with the world at the position that the query parameter asOf selects
// as its View. If asOf is invalid, it runs the handler on the present world, so that the error also
// lists the other violations of the request.
func handleAsOf(c *Call, given string) (any, error) {
	leave, ok := c.Busy.Enter("earlier states of "+c.Principal.Account, maxPastReads)
	if !ok {
		return nil, &domain.Error{Code: domain.ResourceExhausted, Reason: "TOO_MANY_EARLIER_STATES",
			Message: fmt.Sprintf("accounts/%s has %d requests with %s in progress, which is the limit: wait until one ends",
				c.Principal.Account, maxPastReads, AsOfParameter.Name)}
	}
	defer leave()
	position, err := positionAsOf(c, given)
	if err == nil && len(c.invalidAsOf) == 0 {
		var view *projections.View
		if view, err = c.World.ViewAt(c.Ctx, position); err == nil {
			c.view, c.reflected = view, position
			c.Writer.Header().Set(PositionHeader, strconv.FormatUint(position, 10))
		}
	}
	if err != nil {
		return nil, err
	}
	result, err := c.Operation.Handle(c)
	if past := c.View().Past; past != nil && past.Err() != nil {
		return nil, past.Err()
	}
	// with an invalid asOf, the handler ran on the present world: a resource that it lacks may exist
	// at a valid asOf
	if err == nil || domain.CodeOf(err) == domain.NotFound {
		err = cmp.Or(c.invalidAsOf.Err(), err)
	}
	var missing *domain.Error
	if c.View().Past != nil && errors.As(err, &missing) && missing.Code == domain.NotFound {
		then := *missing
		then.Message = fmt.Sprintf("at position %d of the log, %s", position, missing.Message)
		err = &then
	}
	if err != nil {
		return nil, err
	}
	return result, nil
}

// positionAsOf returns the position that a value of the parameter asOf selects. For a page token,
// it returns the position of the first page. If the value selects no position, it adds a violation
// to c.invalidAsOf and returns 0.
func positionAsOf(c *Call, given string) (uint64, error) {
	v, name := &c.invalidAsOf, AsOfParameter.Name
	if position, err := strconv.ParseUint(given, 10, 64); err == nil {
		return position, reach(c, position)
	}
	given = strings.Replace(given, " ", "+", 1) // "+" in a query decodes to a space
	at, err := time.Parse(time.RFC3339, given)
	if err != nil {
		v.Add(name, "must be a position of the log (a whole number) or a time such as 2026-03-01T12:00:00Z, not %s",
			wire.Quote(given))
		return 0, nil
	}
	if pinned := query.PinnedPosition(queryValue(c, PageTokenParameter.Name)); pinned > 0 {
		return pinned, reach(c, pinned)
	}
	if at.After(c.Time) {
		v.Add(name, "%s is in the future (the server's time is %s): give an earlier time, or leave %s out for the "+
			"present state", given,
			c.Time.UTC().Format(time.RFC3339), name)
		return 0, nil
	}
	catchUp(c) // another control plane may have recorded events before that time
	position, _, err := c.World.PositionAt(at)
	if err == nil && position == 0 {
		v.Add(name, "%s is before the first event of the log: give a later time", given)
	}
	return position, err
}

// reach waits until the world has reached the position. If the log has no event at the position, it
// adds a violation to c.invalidAsOf.
func reach(c *Call, position uint64) error {
	name := AsOfParameter.Name
	if position == 0 {
		c.invalidAsOf.Add(name, "must be at least 1, the position of the first event of the log, not 0")
		return nil
	}
	if position <= c.World.Position() {
		return nil
	}
	last, err := c.Log.Last(c.Ctx)
	if err != nil {
		return err
	}
	if position > last.Position {
		c.invalidAsOf.Add(name, "must be at most %[2]d, the position of the last event of the log, not %[1]d: leave "+
			"%[3]s out for the "+
			"present state", position, last.Position, name)
		return nil
	}
	return awaitPosition(c, position)
}
