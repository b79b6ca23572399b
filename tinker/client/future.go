package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"anneal/tinker"
)

// A Future is the result of an operation that the server has accepted. It is safe for concurrent
// use.
type Future[T any] struct {
	turn   chan struct{} // mutex with capacity 1, which is held by the call of Wait that polls
	wait   func(ctx context.Context) (T, error)
	done   bool
	result T
	err    error
}

func futureOf[T any](wait func(ctx context.Context) (T, error)) *Future[T] {
	return &Future[T]{turn: make(chan struct{}, 1), wait: wait}
}

// Wait waits for the result. It polls while the server has none or cannot be reached, until ctx is
// done; it can then be called again. If the operation has failed, the error is an *OperationError.
func (f *Future[T]) Wait(ctx context.Context) (T, error) {
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
	if f.done {
		return f.result, f.err
	}
	result, err := f.wait(ctx)
	if err != nil && ctx.Err() != nil {
		return result, err
	}
	f.done, f.result, f.err = true, result, err
	return result, err
}

// newFuture returns the future of an operation. decode decodes the body of its result.
func newFuture[T any](c *Client, requestID string, decode func(contentType string, body []byte) (T, error)) *Future[T] {
	return futureOf(func(ctx context.Context) (T, error) {
		contentType, body, err := c.poll(ctx, requestID)
		if err != nil {
			var none T
			return none, err
		}
		return decode(contentType, body)
	})
}

func decodeJSON[T any](_ string, body []byte) (T, error) {
	var out T
	return out, json.Unmarshal(body, &out)
}

// decodeProto decodes a result that has the protobuf form if the server supports it.
func decodeProto[T any, P interface {
	*T
	UnmarshalProto(body []byte) error
}](contentType string, body []byte) (T, error) {
	if !strings.HasPrefix(contentType, tinker.ContentTypeProtobuf) {
		return decodeJSON[T](contentType, body)
	}
	var out T
	return out, P(&out).UnmarshalProto(body)
}

// maxBadRequests is the maximum number of retries of a poll after status 400, which some proxies
// return for transient errors.
const maxBadRequests = 3

// poll polls for the result of an operation until there is one or ctx is done.
func (c *Client) poll(ctx context.Context, requestID string) (contentType string, body []byte, err error) {
	in, err := json.Marshal(tinker.FutureRequest{RequestID: requestID})
	if err != nil {
		return "", nil, err
	}
	r := request{method: http.MethodPost, path: "retrieve_future", body: in, limit: pollLimit, header: http.Header{
		"Content-Type": {tinker.ContentTypeJSON}, "Accept": {tinker.ContentTypeProtobuf + ", " + tinker.ContentTypeJSON}}}
	wait, badRequests := firstWait, 0
	for {
		status, contentType, body, err := c.send(ctx, r)
		again, pause := false, true
		switch {
		case ctx.Err() != nil:
			return "", nil, fmt.Errorf("wait for operation %s: %w", requestID, context.Cause(ctx))
		case err == nil && status < 300:
			if again, err = c.outcome(requestID, contentType, body); !again {
				return contentType, body, err
			}
			pause = false
		case err == nil && status == http.StatusRequestTimeout: // the server has held the poll
			_, _ = c.outcome(requestID, tinker.ContentTypeJSON, body)
			again, pause = true, false
		case err == nil && status == http.StatusBadRequest:
			badRequests++
			again = badRequests <= maxBadRequests
		default:
			again = isRetryable(status, err)
		}
		if !again {
			return "", nil, errorOf(status, body)
		}
		if !pause {
			wait = firstWait
			continue
		}
		c.log.Debug("training service: retrying a poll", "request", requestID, "status", status, "error", err)
		if !sleep(ctx, wait) {
			return "", nil, fmt.Errorf("wait for operation %s: %w", requestID, context.Cause(ctx))
		}
		wait = min(2*wait, longestWait)
	}
}

// outcome reports whether a response says that there is no result yet. It returns an OperationError
// if the operation has failed.
func (c *Client) outcome(requestID, contentType string, body []byte) (again bool, err error) {
	if !strings.HasPrefix(contentType, tinker.ContentTypeJSON) {
		return false, nil
	}
	var form struct {
		tinker.TryAgain
		tinker.Failed
		Status string `json:"status"`
	}
	if err := json.Unmarshal(body, &form); err != nil {
		return false, fmt.Errorf("response about operation %s: %w", requestID, err)
	}
	switch {
	case form.Type == "try_again":
		if form.QueueState != tinker.QueueActive && form.QueueState != "" {
			c.log.Info("training service: operation waits", "request", requestID, "state", form.QueueState,
				"reason", form.QueueStateReason)
		}
		return true, nil
	case form.Status == "complete_metadata":
		return true, nil
	case form.Error != "":
		return false, &OperationError{RequestID: requestID, Category: form.Category, Message: form.Error}
	}
	return false, nil
}
