package request

import (
	"bytes"
	"context"
	"io"
	"time"

	"anneal/domain"
)

// catchUpTime bounds how long a request that the handler has rejected waits for the end of the log.
const catchUpTime = time.Second

// current runs the handler. When the handler rejects the request for a state that another control
// plane may have changed, such as a missing resource, current asks the log for its end. If the world
// had not reached it, current runs the handler again in a world that has. So a client that sends each
// request to another server can use at once what it has created.
func current(c *Call) (any, error) {
	if given := asOfValue(c); given != "" {
		return handleAsOf(c, given)
	}
	body := &countedBody{ReadCloser: c.Request.Body}
	if c.Request.Body != nil {
		c.Request.Body = body
	}
	warnings := c.Writer.Header().Values(WarningHeader)
	result, err := c.Operation.Handle(c)
	if c.Operation.Gate == Everyone || !dependsOnWorld(c, err) || !repeatable(c, body) || !catchUp(c) {
		return result, err
	}
	if c.commands = 0; c.sent != nil {
		c.Request.Body = io.NopCloser(bytes.NewReader(c.sent))
	}
	if c.Writer.Header().Del(WarningHeader); len(warnings) > 0 {
		c.Writer.Header()[WarningHeader] = warnings
	}
	return c.Operation.Handle(c)
}

// dependsOnWorld reports whether another world may decide otherwise. An inference request is handled
// again only if its model is not found, because other errors may come from a replica.
func dependsOnWorld(c *Call, err error) bool {
	switch domain.CodeOf(err) {
	case domain.NotFound:
		return !c.Operation.IsInference() || ReasonOf(err) != "MODEL_NOT_DEPLOYED"
	case domain.InvalidArgument, domain.FailedPrecondition:
		return !c.Operation.IsInference()
	}
	return false
}

// repeatable reports whether the handler can run again: it has recorded nothing, and has either kept
// the body or not read it.
func repeatable(c *Call, body *countedBody) bool {
	return !c.recorded.Load() && c.Request.MultipartForm == nil && (c.sent != nil || body.read == 0)
}

// catchUp makes View return a world that has reached the end of the log. It returns false if the
// view of the call had reached it already, or if the world does not reach it within catchUpTime.
func catchUp(c *Call) bool {
	seen := c.World.Position()
	if c.view != nil {
		seen = c.view.Position
	}
	if c.World.Age(c.Time) > StaleAfter {
		return false // the log is unreachable
	}
	ctx, cancel := context.WithTimeout(c.Ctx, catchUpTime)
	defer cancel()
	last, err := c.Log.Last(ctx)
	if err != nil || last.Position <= seen || c.World.WaitFor(ctx, last.Position) != nil {
		return false
	}
	c.Refresh()
	return true
}

// countedBody counts the bytes that are read from a body.
type countedBody struct {
	io.ReadCloser
	read int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	return n, err
}
