package openapi

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"strings"

	"anneal/api/connection"
	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
)

// statusTexts describes error responses by HTTP status.
var statusTexts = map[int]string{
	400: "The request is invalid, or the state of the resource does not allow it. The error lists all invalid fields.",
	401: "The API key is missing, unknown or expired.",
	403: "The API key may not send this request. The error does not depend on whether the resource exists.",
	404: "The resource does not exist.",
	409: "The resource already exists, another request changed it at the same time, or the Idempotency-Key was used " +
		"for another request.",
	412: "The account is suspended.",
	413: "The body is too large.",
	429: "The account has too many requests in progress, or has exhausted a quota: try again later.",
	431: "The request header exceeds " + request.ByteSize(connection.MaxHeader) + ".",
	500: "Internal error. The operator finds the details in the server's log by the request ID.",
	501: "The request is not supported; the message names an alternative.",
	503: "The log, a replica or another dependency is unavailable: try again later.",
	504: "The request took longer than its time limit: try again.",
}

// errorSamples are the errors in the document's examples, by HTTP status. Most are created by the
// functions with which the server creates such errors, so that the messages are the same.
var errorSamples = map[int]*domain.Error{
	400: epochsOutOfRange,
	401: request.ErrorOf(request.ErrNoKey),
	403: request.ErrorOf(request.Principal{Role: domain.RoleInference}.Require(request.Write)),
	404: request.ErrorOf(request.NotFound("dataset", "accounts/lumen-outdoor/datasets/support-chats")),
	409: {Code: domain.AlreadyExists, Message: "a dataset with this name exists: choose another ID"},
	412: request.ErrorOf(request.Suspended("lumen-outdoor", domain.Account{SuspendState: "FAILED_PAYMENTS"})),
	413: request.BodyTooLarge(request.DefaultLimits.Body),
	500: request.ErrorOf(errors.New("an internal error")),
	501: {Code: domain.Unimplemented,
		Message: "the engine of accounts/lumen-outdoor/deployments/support-assistant does not support this: use another " +
			"deployment"},
	504: request.ErrorOf(context.DeadlineExceeded),
}

var epochsOutOfRange = func() *domain.Error {
	var v domain.Violations
	v.Add("trainingConfig.epochs", "must be from 0 to %d; 0 stands for the default, 1", domain.MaxEpochs)
	return request.ErrorOf(v.Err())
}()

// SampleID is the request ID in the document's examples.
const SampleID = "0195564a-2f1b-7c3e-9d04-6b8e1f52a7c9"

// responseName returns the name of the response component for an error status. inference states
// whether the error is an InferenceError.
func responseName(status int, inference bool) string {
	words := strings.ReplaceAll(http.StatusText(status), " ", "")
	if inference {
		return "Inference" + words
	}
	return words
}

// responseHeaders has the header components by name.
var responseHeaders = map[string]any{
	"RequestId": map[string]any{"description": "ID of the request.", "schema": wire.Schema{"type": "string"},
		"example": SampleID},
	"TraceParent": map[string]any{"description": "The traceparent of the request. If the request has no valid one, it " +
		"is the traceparent of the server's span, or absent if the server records no span.",
		"schema": wire.Schema{"type": "string"}, "example": sampleTrace},
	"Position": map[string]any{"description": "The position of the log that the response reflects.",
		"schema": wire.Schema{"type": "string", "pattern": "^[0-9]+$"}, "example": samplePosition},
	"Stale": map[string]any{"description": "Number of seconds for which the server may have missed events of the log, " +
		"because it cannot reach the log. Absent if that number is at most 10.",
		"schema": wire.Schema{"type": "string", "pattern": "^[0-9]+$"}, "example": "42"},
	"RetryAfter": map[string]any{"description": "Number of seconds to wait before the request is sent again.",
		"schema": wire.Schema{"type": "string", "pattern": "^[0-9]+$"}, "example": "12"},
	"Ticket": map[string]any{"description": "Ticket of a request to an overloaded deployment: the request is admitted " +
		"if it is sent again after Retry-After with this header.",
		"schema": wire.Schema{"type": "string"}, "example": sampleTicket},
	"ShouldRetry": map[string]any{"description": "false if no retry can succeed, because the request alone exceeds a " +
		"quota. Retry-After is then absent.", "schema": wire.Schema{"type": "string", "enum": []string{"false"}},
		"example": "false"},
	"Replayed": map[string]any{
		"description": "true if this is the stored response to an earlier request with the same Idempotency-Key.",
		"schema":      wire.Schema{"type": "string", "enum": []string{"true"}}, "example": "true"},
	"Authenticate": map[string]any{"description": "Authentication scheme that the server " +
		"expects.", "schema": wire.Schema{"type": "string"},
		"example": `Bearer realm="anneal"`},
}

// headersOfAll returns references to the headers that all responses can have.
func headersOfAll() map[string]any {
	return map[string]any{request.RequestIDHeader: map[string]any{"$ref": "#/components/headers/RequestId"},
		request.TraceParentHeader: map[string]any{"$ref": "#/components/headers/TraceParent"}}
}

// errorResponses returns the response components for errors, by name: for each status, one with a
// ManagementError and one with an InferenceError.
func (d *describer) errorResponses() map[string]any {
	all := map[string]any{}
	for status, text := range statusTexts {
		// net/http itself sends this response, without a JSON body
		if status == http.StatusRequestHeaderFieldsTooLarge {
			all[responseName(status, false)] = map[string]any{"description": text,
				"content": map[string]any{"text/plain": map[string]any{"schema": wire.Schema{"type": "string"}}}}
			continue
		}
		if status != http.StatusPreconditionFailed {
			all[responseName(status, false)] = d.errorResponse(status, text, d.of(reflect.TypeFor[request.ManagementError]()),
				request.ManagementBody(d.samples[status], SampleID))
		}
		_, body := request.InferenceBody(d.samples[status], SampleID)
		all[responseName(status, true)] = d.errorResponse(status, text, d.of(reflect.TypeFor[request.InferenceError]()), body)
	}
	return all
}

func (d *describer) errorResponse(status int, text string, of wire.Schema, sample any) map[string]any {
	headers := headersOfAll()
	switch status {
	case http.StatusUnauthorized:
		headers["WWW-Authenticate"] = map[string]any{"$ref": "#/components/headers/Authenticate"}
	case http.StatusTooManyRequests:
		headers[request.TicketHeader] = map[string]any{"$ref": "#/components/headers/Ticket"}
		headers[request.NoRetryHeader] = map[string]any{"$ref": "#/components/headers/ShouldRetry"}
		fallthrough
	case http.StatusServiceUnavailable, http.StatusConflict:
		headers["Retry-After"] = map[string]any{"$ref": "#/components/headers/RetryAfter"}
	}
	return map[string]any{"description": text, "headers": headers,
		"content": map[string]any{"application/json": map[string]any{"schema": of, "example": sample}}}
}

// sampleTicket is an example of the header anneal-ticket.
const sampleTicket = "AAABnOQbDFgAHiZqDJpDvB2WyL1Vq3e0nLrmPZQ3dk1nUwxY0w"
