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

// AsOfParameter is the query parameter of gets and lists that selects an earlier state. An operation
// whose Query has it supports earlier states: its handler reads only the View of the call.
var AsOfParameter = Parameter{"asOf", wire.Text,
	"A position of the log or a time (RFC 3339): the response shows the state at that position, or before the first " +
		"event after that time, without live status. The header anneal-position has the position. The default is the " +
		"present."}

// maxPastReads limits the concurrent requests of an account for earlier states.
const maxPastReads = 16

// Present returns the present state, also in a call that shows an earlier state: it decides what the
// caller may see.
func Present(c *Call) *projections.View {
	if c.View().Past != nil {
		return c.World.View()
	}
	return c.View()
}

// asOfValue returns the value of the parameter AsOfParameter; "" without it.
func asOfValue(c *Call) string {
	if c.Operation == nil || !c.Operation.Declares(AsOfParameter.Name) {
		return ""
	}
	return queryValue(c, AsOfParameter.Name)
}

// queryValue returns the first value of a query parameter, whose name can be in snake_case too.
func queryValue(c *Call, name string) string {
	given, _ := url.ParseQuery(c.Request.URL.RawQuery) // Params reports the error
	return cmp.Or(given.Get(name), given.Get(wire.Snake(name)))
}

// handleAsOf runs the handler on the state that the parameter asOf selects. If that is invalid, the
// handler runs to find the other violations of the request.
func handleAsOf(c *Call, given string) (any, error) {
	leave, ok := c.Busy.Enter("earlier states of "+c.Principal.Account, maxPastReads)
	if !ok {
		return nil, &domain.Error{Code: domain.ResourceExhausted, Reason: "TOO_MANY_EARLIER_STATES",
			Message: fmt.Sprintf("accounts/%s has %d requests with %s in progress, which is its limit: wait for one",
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
	if err == nil || domain.CodeOf(err) == domain.NotFound { // a missing resource of the present says nothing
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

// positionAsOf returns the position that a value of the parameter asOf selects. A page token has the
// position of the first page. positionAsOf sets invalidAsOf for a value that selects no position.
func positionAsOf(c *Call, given string) (uint64, error) {
	v, name := &c.invalidAsOf, AsOfParameter.Name
	if position, err := strconv.ParseUint(given, 10, 64); err == nil {
		return position, reach(c, position)
	}
	given = strings.Replace(given, " ", "+", 1) // a + that is not encoded is a space
	at, err := time.Parse(time.RFC3339, given)
	if err != nil {
		v.Add(name, "%s is neither a position of the log, which is a whole number, nor a time such as 2026-03-01T12:00:00Z",
			wire.Quote(given))
		return 0, nil
	}
	if pinned := query.PinnedPosition(queryValue(c, PageTokenParameter.Name)); pinned > 0 {
		return pinned, reach(c, pinned)
	}
	if at.After(c.Time) {
		v.Add(name, "%s is in the future: the time of the server is %s; leave %s out for the present state", given,
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

// reach waits until the world has reached a position that the log has. It sets invalidAsOf for a
// position that the log does not have.
func reach(c *Call, position uint64) error {
	name := AsOfParameter.Name
	if position == 0 {
		c.invalidAsOf.Add(name, "0 is before the first event of the log: give a position from 1 on")
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
		c.invalidAsOf.Add(name, "%d is after the last event of the log, which has the position %d: leave %s out for the "+
			"present state", position, last.Position, name)
		return nil
	}
	return awaitPosition(c, position)
}
