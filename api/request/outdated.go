package request

import (
	"bytes"
	"context"
	"io"
	"time"

	"anneal/domain"
)

// catchUpTime bounds how long a rejected request waits until the world reaches the end of the log.
const catchUpTime = time.Second

// handleCurrent runs the handler. If the handler rejects the request for a reason that an event of
// another control plane may have removed, such as a missing resource, handleCurrent waits until the
// world has reached the end of the log and runs the handler again. So a client that sends its
// requests to several servers can use at once what it has created.
func handleCurrent(c *Call) (any, error) {
	if given := asOfValue(c); given != "" {
		return handleAsOf(c, given)
	}
	body := &countedBody{ReadCloser: c.Request.Body}
	if c.Request.Body != nil {
		c.Request.Body = body
	}
	warnings := c.Writer.Header().Values(WarningHeader)
	result, err := c.Operation.Handle(c)
	if c.Operation.Gate == Everyone || !dependsOnWorld(c, err) || !canRerun(c, body) || !catchUp(c) {
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

// dependsOnWorld reports whether the handler may return another result in a later world. For an
// inference request, only a model that is not found depends on the world: other errors may come
// from a replica.
func dependsOnWorld(c *Call, err error) bool {
	switch domain.CodeOf(err) {
	case domain.NotFound:
		return !c.Operation.IsInference() || ReasonOf(err) != "MODEL_NOT_DEPLOYED"
	case domain.InvalidArgument, domain.FailedPrecondition:
		return !c.Operation.IsInference()
	}
	return false
}

// canRerun reports whether the handler can run a second time: it has recorded no change, and it has
// either not read the body or kept it in memory.
func canRerun(c *Call, body *countedBody) bool {
	return !c.recorded.Load() && c.Request.MultipartForm == nil && (c.sent != nil || body.read == 0)
}

// CatchUp is catchUp for handlers that repeat a lookup that found nothing.
func CatchUp(c *Call) bool { return catchUp(c) }

// catchUp makes View return a world that has reached the current end of the log, and returns true.
// It returns false if the call's View had reached the end already, or if the world does not reach
// it within catchUpTime.
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

// A countedBody is a request body that counts the bytes that were read from it.
type countedBody struct {
	io.ReadCloser
	read int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	return n, err
}
