package api

import (
	"net/http"
	"reflect"
	"strings"

	"anneal/api/wire"
	"anneal/domain"
)

// refusalTexts say when a request is answered with a status.
var refusalTexts = map[int]string{
	400: "Something of the request is wrong, or cannot be so now. Every field at fault is named.",
	401: "The request carries no key, or none that is known here.",
	403: "The key may not do this. The answer is the same whether the resource exists or not.",
	404: "There is no such resource.",
	409: "A resource of this name exists, or somebody else changed it at the same moment, or the Idempotency-Key belongs to another request.",
	412: "The account is suspended.",
	413: "The body is too large.",
	429: "The account has too many requests under way, or its quota is used up: try again later.",
	431: "The header is larger than 64 KiB.",
	500: "The server failed. The request's ID leads its operator to the reason.",
	501: "This is not offered; the message says what to do instead.",
	503: "Something that is needed does not answer now: try again later.",
	504: "It took too long: try again.",
}

// refusalSamples are the faults that the examples of refusals show.
var refusalSamples = map[int]*domain.Error{
	400: {Code: domain.InvalidArgument, Message: "trainingConfig.epochs: must be from 0 (the default, 1) to 1000",
		Violations: []domain.Violation{{Field: "trainingConfig.epochs", Description: "must be from 0 (the default, 1) to 1000"}}},
	401: {Code: domain.Unauthenticated, Reason: "API_KEY_MISSING", Message: "the request carries no API key: send the header Authorization: Bearer API_KEY"},
	403: {Code: domain.PermissionDenied, Reason: "ROLE", Message: "the API key's role is inference, which may not do this: use a key with another role"},
	404: {Code: domain.NotFound, Reason: "NOT_FOUND", Message: "there is no dataset named accounts/acme/datasets/d: list what there is with GET /v1/accounts/acme/datasets"},
	409: {Code: domain.AlreadyExists, Message: "a dataset of this name exists: choose another ID"},
	412: {Code: domain.FailedPrecondition, Reason: reasonSuspended, Message: "accounts/acme is suspended (FAILED_PAYMENTS): it may read, but not start work or ask models, until its operator restores it"},
	413: bodyTooLarge(4 << 20),
	429: {Code: domain.ResourceExhausted, Reason: "TOO_MANY_REQUESTS", Message: "accounts/acme has 256 completions under way: wait for one to end"},
	500: {Code: domain.Internal, Message: "the server failed to answer; the request's ID leads its operator to the reason"},
	501: {Code: domain.Unimplemented, Message: "the engine of accounts/acme/deployments/d1 cannot do this: ask another deployment"},
	503: {Code: domain.Unavailable, Reason: reasonScalingUp, Message: "accounts/acme/deployments/d1 is waking up and had no replica ready within 1m0s: try again shortly"},
	504: {Code: domain.DeadlineExceeded, Message: "the request took too long: try again"},
}

// sampleID is the request ID of the examples.
const sampleID = "0198a5d2-6f00-7000-8000-000000000001"

// refusalName is the name of the component that describes a status.
func refusalName(status int, inference bool) string {
	words := strings.ReplaceAll(http.StatusText(status), " ", "")
	if inference {
		return "Inference" + words
	}
	return words
}

// answerHeaders are those that every answer may have.
var answerHeaders = map[string]any{
	"RequestId":    map[string]any{"description": "The request's ID.", "schema": wire.Schema{"type": "string"}},
	"RetryAfter":   map[string]any{"description": "How many seconds to wait before asking again.", "schema": wire.Schema{"type": "string", "pattern": "^[0-9]+$"}},
	"Replayed":     map[string]any{"description": "That the answer was given before: the request carried the Idempotency-Key of an earlier one.", "schema": wire.Schema{"type": "string", "enum": []string{"true"}}},
	"Authenticate": map[string]any{"description": "How to identify oneself.", "schema": wire.Schema{"type": "string"}},
}

// refusals are the components that describe refusals, in both shapes.
func (d *describer) refusals() map[string]any {
	all := map[string]any{}
	for status, text := range refusalTexts {
		if status == http.StatusRequestHeaderFieldsTooLarge { // of Go's server itself
			all[refusalName(status, false)] = map[string]any{"description": text, "content": map[string]any{"text/plain": map[string]any{"schema": wire.Schema{"type": "string"}}}}
			continue
		}
		if status != http.StatusPreconditionFailed {
			all[refusalName(status, false)] = d.refusal(status, text, d.of(reflect.TypeFor[managementError]()), managementBody(refusalSamples[status], sampleID))
		}
		_, body := inferenceBody(refusalSamples[status], sampleID)
		all[refusalName(status, true)] = d.refusal(status, text, d.of(reflect.TypeFor[inferenceError]()), body)
	}
	return all
}

func (d *describer) refusal(status int, text string, of wire.Schema, sample any) map[string]any {
	headers := map[string]any{requestIDHeader: map[string]any{"$ref": "#/components/headers/RequestId"}}
	switch status {
	case http.StatusUnauthorized:
		headers["WWW-Authenticate"] = map[string]any{"$ref": "#/components/headers/Authenticate"}
	case http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusConflict:
		headers["Retry-After"] = map[string]any{"$ref": "#/components/headers/RetryAfter"}
	}
	return map[string]any{"description": text, "headers": headers,
		"content": map[string]any{"application/json": map[string]any{"schema": of, "example": sample}}}
}
