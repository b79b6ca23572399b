package request

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"anneal/api/wire"
	"anneal/domain"
)

// PositionHeader is the response header of management operations with the log position that the
// response reflects: the response shows the effects of all events up to that position.
//
// MinPositionHeader is the request header with the position that the response must reflect at
// least. A client that sends the PositionHeader of its last response in it reads its own writes
// from every server of the installation.
const (
	PositionHeader    = "anneal-position"
	MinPositionHeader = "anneal-at-least"
)

// StaleHeader is the response header of management operations with the number of seconds for which
// the server may have missed events, because it cannot reach the log. Without the header, a
// response is at most StaleAfter old.
const (
	StaleHeader = "anneal-stale"
	StaleAfter  = 10 * time.Second
)

// markStale sets the StaleHeader if the world may have missed events for longer than StaleAfter.
func markStale(c *Call) {
	if age := c.World.Age(c.Time); age > StaleAfter && c.Operation.HasPosition() {
		c.Writer.Header().Set(StaleHeader, strconv.Itoa(int(age.Seconds())))
	}
}

// MinPositionParameter describes the header anneal-at-least in the OpenAPI document.
var MinPositionParameter = Parameter{MinPositionHeader, wire.Text,
	"The anneal-position of an earlier response: the request waits until the server has reached this position of the log."}

// HasPosition reports whether responses of the operation have the header anneal-position. op may be
// nil, because a call that serves no request has no operation; then HasPosition returns false.
func (op *Operation) HasPosition() bool { return op != nil && op.Gate != Everyone && !op.IsInference() }

// Reflect sets the response header anneal-position to position, unless the header has a later
// position already. It does nothing for operations without that header.
func Reflect(c *Call, position uint64) {
	if !c.Operation.HasPosition() || position < c.reflected {
		return
	}
	c.reflected = position
	c.Writer.Header().Set(PositionHeader, strconv.FormatUint(position, 10))
}

// minPosition returns the position in the request header anneal-at-least; 0 without the header.
func minPosition(c *Call) (position uint64, err error) {
	given := c.Request.Header.Values(MinPositionHeader)
	if len(given) == 0 {
		return 0, nil
	}
	position, err = strconv.ParseUint(given[0], 10, 64)
	var v domain.Violations
	v.Require(len(given) == 1, MinPositionHeader, "is given %d times: give it once", len(given))
	v.Require(err == nil, MinPositionHeader, "must be the %[2]s of an earlier response, a decimal number, not %[1]s",
		wire.Quote(given[0]), PositionHeader)
	if err := v.Err(); err != nil {
		return 0, err
	}
	return position, nil
}

// awaitPosition waits until the world has reached the position. It returns an Unavailable error
// after Limits.PositionWait, or immediately if the server cannot reach the log.
func awaitPosition(c *Call, position uint64) error {
	if c.World.Age(c.Time) > StaleAfter {
		return notReached(c, position)
	}
	ctx, cancel := context.WithTimeout(c.Ctx, c.Limits.PositionWait)
	defer cancel()
	err := c.World.WaitFor(ctx, position)
	c.Refresh()
	if err == nil || !errors.Is(err, context.DeadlineExceeded) || c.Ctx.Err() != nil {
		return err
	}
	return notReached(c, position)
}

func notReached(c *Call, position uint64) error {
	return &domain.Error{Code: domain.Unavailable, Reason: "POSITION_NOT_REACHED",
		Message: fmt.Sprintf("the server has reached position %d of the log, but %s is %d: try again, or send the request "+
			"to another server", c.World.Position(), MinPositionHeader, position)}
}

// maxUnknownWaits bounds how many requests without a valid API key wait for a position
// concurrently, so that they cannot exhaust the server's connections.
const maxUnknownWaits = 32

// admitAt is like admit for a request whose anneal-at-least is later than the world: it waits until
// the world has reached the position, and then checks permissions. A request whose API key is
// unknown waits too, because another server may have created the key. It waits only if the key has
// the format of a key and the log has the position, and at most maxUnknownWaits such requests wait
// concurrently.
func admitAt(c *Call, position uint64) error {
	err := c.admit()
	switch {
	case err == nil:
	case ReasonOf(err) == reasonUnknownKey:
		leave, ok, lastErr := mayWaitUnknown(c, position)
		defer leave()
		if lastErr != nil {
			return lastErr
		}
		if !ok {
			return err
		}
	case domain.CodeOf(err) != domain.NotFound && ReasonOf(err) != reasonSuspended:
		return err // a later world would not change this error
	}
	if err := awaitPosition(c, position); err != nil {
		return err
	}
	return c.admit()
}

// mayWaitUnknown reports whether a request whose API key is unknown may wait for a position. If ok
// is true, the caller must call leave after the wait.
func mayWaitUnknown(c *Call, position uint64) (leave func(), ok bool, err error) {
	text, _ := Credential(c.Request, c.Operation.BareKey)
	if _, isKey := KeyName(text); !isKey && c.Direct == "" {
		return func() {}, false, nil
	}
	leave, ok = c.Busy.Enter("waits of unknown keys", maxUnknownWaits)
	if !ok {
		return func() {}, false, notReached(c, position)
	}
	last, err := c.Log.Last(c.Ctx)
	return leave, position <= last.Position, err
}
