package api

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"strings"

	"anneal/api/request"
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
	431: "The header is larger than " + byteSize(maxHeader) + ".",
	500: "The server failed. The request's ID leads its operator to the reason.",
	501: "This is not offered; the message says what to do instead.",
	503: "Something that is needed does not answer now: try again later.",
	504: "It took too long: try again.",
}

// refusalSamples are the errors that the examples of the documentation show: those that the server
// returns, made by the same functions where these need no request.
var refusalSamples = map[int]*domain.Error{
	400: epochsOutOfRange,
	401: request.ErrorOf(request.ErrNoKey),
	403: request.ErrorOf(request.Principal{Role: domain.RoleInference}.Require(request.Write)),
	404: request.ErrorOf(request.NotFound("dataset", "accounts/acme/datasets/d")),
	409: {Code: domain.AlreadyExists, Message: "a dataset of this name exists: choose another ID"},
	412: request.ErrorOf(request.Suspended("acme", domain.Account{SuspendState: "FAILED_PAYMENTS"})),
	413: request.BodyTooLarge(DefaultLimits.Body),
	429: request.ErrorOf(tooManyCompletions("acme", DefaultLimits.Generations)),
	500: request.ErrorOf(errors.New("an error of the server itself")),
	501: {Code: domain.Unimplemented, Message: "the engine of accounts/acme/deployments/d1 cannot do this: ask another deployment"},
	503: request.ErrorOf(noReplicaReady("accounts/acme/deployments/d1", DefaultLimits.Wake, tryAgain)),
	504: request.ErrorOf(context.DeadlineExceeded),
}

var epochsOutOfRange = func() *domain.Error {
	var v domain.Violations
	v.Add("trainingConfig.epochs", "must be from 0 (the default, 1) to %d", domain.MaxEpochs)
	return request.ErrorOf(v.Err())
}()

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
			all[refusalName(status, false)] = d.refusal(status, text, d.of(reflect.TypeFor[request.ManagementError]()), request.ManagementBody(refusalSamples[status], sampleID))
		}
		_, body := request.InferenceBody(refusalSamples[status], sampleID)
		all[refusalName(status, true)] = d.refusal(status, text, d.of(reflect.TypeFor[request.InferenceError]()), body)
	}
	return all
}

func (d *describer) refusal(status int, text string, of wire.Schema, sample any) map[string]any {
	headers := map[string]any{request.RequestIDHeader: map[string]any{"$ref": "#/components/headers/RequestId"}}
	switch status {
	case http.StatusUnauthorized:
		headers["WWW-Authenticate"] = map[string]any{"$ref": "#/components/headers/Authenticate"}
	case http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusConflict:
		headers["Retry-After"] = map[string]any{"$ref": "#/components/headers/RetryAfter"}
	}
	return map[string]any{"description": text, "headers": headers,
		"content": map[string]any{"application/json": map[string]any{"schema": of, "example": sample}}}
}
