package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"anneal/domain"
	"anneal/engines"
)

// httpStatus is the one table from canonical codes to HTTP (spec/gaps.md
// section 4).
var httpStatus = map[domain.Code]int{
	domain.OK:                 http.StatusOK,
	domain.Canceled:           statusClientClosed,
	domain.Unknown:            http.StatusInternalServerError,
	domain.InvalidArgument:    http.StatusBadRequest,
	domain.DeadlineExceeded:   http.StatusGatewayTimeout,
	domain.NotFound:           http.StatusNotFound,
	domain.AlreadyExists:      http.StatusConflict,
	domain.PermissionDenied:   http.StatusForbidden,
	domain.ResourceExhausted:  http.StatusTooManyRequests,
	domain.FailedPrecondition: http.StatusBadRequest,
	domain.Aborted:            http.StatusConflict,
	domain.OutOfRange:         http.StatusBadRequest,
	domain.Unimplemented:      http.StatusNotImplemented,
	domain.Internal:           http.StatusInternalServerError,
	domain.Unavailable:        http.StatusServiceUnavailable,
	domain.DataLoss:           http.StatusInternalServerError,
	domain.Unauthenticated:    http.StatusUnauthorized,
}

const statusClientClosed = 499 // the client went away before the answer

// Reasons that have a more exact HTTP status than their code.
const (
	reasonBodyTooLarge   = "BODY_TOO_LARGE"
	reasonTooSlow        = "REQUEST_TOO_SLOW"
	reasonBodies         = "TOO_MANY_BODIES"
	reasonMethod         = "METHOD_NOT_ALLOWED"
	reasonSuspended      = "ACCOUNT_SUSPENDED"
	reasonScalingUp      = "DEPLOYMENT_SCALING_UP"
	reasonStopping       = "SERVER_STOPPING"
	reasonNoPlace        = "DEPLOYMENT_HAS_NO_PLACE"
	reasonTooManyStreams = "TOO_MANY_STREAMS"
)

var reasonStatus = map[string]int{
	reasonBodyTooLarge: http.StatusRequestEntityTooLarge,
	reasonTooSlow:      http.StatusRequestTimeout,

	engines.RequestTooLarge: http.StatusRequestEntityTooLarge,
	reasonMethod:            http.StatusMethodNotAllowed,
}

// errorOf returns what a client is shown of an error. An error that is no *domain.Error is internal:
// its text is logged and not returned.
func errorOf(err error) *domain.Error {
	var fault *domain.Error
	var tooLarge *http.MaxBytesError
	var lost unrecorded
	switch {
	case errors.As(err, &fault):
		return fault
	case errors.As(err, &lost):
		return &domain.Error{Code: domain.Unavailable, Reason: "LOG_UNAVAILABLE",
			Message: "the log did not acknowledge the change: its disk may be full, or its server out of reach; look whether the change was made, then try again"}
	case errors.As(err, &tooLarge):
		return bodyTooLarge(tooLarge.Limit)
	case errors.Is(err, context.Canceled):
		return domain.Errorf(domain.Canceled, "the client closed the request")
	case errors.Is(err, context.DeadlineExceeded):
		return domain.Errorf(domain.DeadlineExceeded, "the request took too long: try again")
	}
	return domain.Errorf(domain.Internal, "the server failed to answer; the request's ID leads its operator to the reason")
}

func bodyTooLarge(limit int64) *domain.Error {
	return &domain.Error{Code: domain.OutOfRange, Reason: reasonBodyTooLarge,
		Message: "the body is larger than " + strconv.FormatInt(limit, 10) + " bytes: send less"}
}

func statusFor(f *domain.Error) int {
	if status, ok := reasonStatus[f.Reason]; ok {
		return status
	}
	if status, ok := httpStatus[f.Code]; ok {
		return status
	}
	return http.StatusInternalServerError
}

// managementError is the shape of a refusal on the management paths.
type managementError struct {
	Code    domain.Code `json:"code"`
	Message string      `json:"message"`
	Details []any       `json:"details"`
}

type errorInfo struct {
	Type     string            `json:"@type"`
	Reason   string            `json:"reason"`
	Domain   string            `json:"domain"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

type badRequest struct {
	Type       string             `json:"@type"`
	Violations []domain.Violation `json:"fieldViolations"`
}

func managementBody(f *domain.Error, requestID string) managementError {
	reason := f.Reason
	if reason == "" {
		reason = f.Code.String()
	}
	body := managementError{f.Code, f.Message, []any{
		errorInfo{"ErrorInfo", reason, "anneal", map[string]string{"requestId": requestID}}}}
	if len(f.Violations) > 0 {
		body.Details = append(body.Details, badRequest{"BadRequest", f.Violations})
	}
	return body
}

// inferenceError is the shape of a refusal on the inference and audio paths.
// All its keys are always present.
type inferenceError struct {
	Error     inferenceErrorBody `json:"error"`
	RequestID string             `json:"request_id"`
}

type inferenceErrorBody struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

var inferenceTypes = map[int]string{
	http.StatusBadRequest:            "invalid_request_error",
	http.StatusRequestEntityTooLarge: "invalid_request_error",
	http.StatusUnauthorized:          "authentication_error",
	http.StatusForbidden:             "permission_error",
	http.StatusNotFound:              "not_found_error",
	http.StatusMethodNotAllowed:      "invalid_request_error",
	http.StatusConflict:              "conflict_error",
	http.StatusPreconditionFailed:    "precondition_error",
	http.StatusTooManyRequests:       "rate_limit_error",
	http.StatusNotImplemented:        "unimplemented_error",
	http.StatusServiceUnavailable:    "unavailable_error",
}

func inferenceBody(f *domain.Error, requestID string) (int, inferenceError) {
	status, code := statusFor(f), f.Reason
	if f.Reason == reasonSuspended {
		status, code = http.StatusPreconditionFailed, "PRECONDITION_FAILED"
	}
	if code == "" {
		code = f.Code.String()
	}
	body := inferenceErrorBody{Message: f.Message, Type: inferenceTypes[status], Code: code}
	if body.Type == "" {
		body.Type = "server_error"
	}
	if len(f.Violations) > 0 {
		param, _, _ := strings.Cut(f.Violations[0].Field, "[")
		body.Param = &param
	}
	return status, inferenceError{body, requestID}
}

// isInference tells whether the path is one whose errors have the inference
// shape.
func isInference(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/inference/") || isAudio(r) || isDirect(r)
}

// isAudio tells whether the path is one that takes a key without a scheme word.
func isAudio(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/v1/audio/") || strings.HasPrefix(r.URL.Path, "/inference/v1/audio/")
}

// retrySeconds is how long a refused client should wait before it asks again.
const retrySeconds = "5"

// refuse answers a failed request in the shape of its path.
func refuse(w http.ResponseWriter, f *domain.Error, requestID string, inference bool) {
	f = printable(f)
	status, body := statusFor(f), any(managementBody(f, requestID))
	if inference {
		status, body = inferenceBody(f, requestID)
	}
	switch status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="anneal"`)
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		if w.Header().Get("Retry-After") == "" { // nobody knows better
			w.Header().Set("Retry-After", retrySeconds)
		}
	}
	writeJSON(w, status, body)
}

// printable is a fault that repeats no control character of the request.
func printable(f *domain.Error) *domain.Error {
	shown := *f
	shown.Message, shown.Violations = domain.Printable(f.Message), slices.Clone(f.Violations)
	for i, v := range shown.Violations {
		shown.Violations[i] = domain.Violation{Field: domain.Printable(v.Field), Description: domain.Printable(v.Description)}
	}
	return &shown
}

// A textAnswer is an answer that is not JSON.
type textAnswer struct{ media, text string }

// answerWith sends what a handler answered.
func answerWith(w http.ResponseWriter, result any) {
	plain, ok := result.(textAnswer)
	if !ok {
		writeJSON(w, http.StatusOK, result)
		return
	}
	w.Header().Set("Content-Type", plain.media)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, plain.text)
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	var data bytes.Buffer
	encoder := json.NewEncoder(&data)
	encoder.SetEscapeHTML(false)                 // nobody takes this for HTML, and signed URLs stay readable
	if err := encoder.Encode(body); err != nil { // only a wire type that JSON cannot hold does this: a fault of ours
		status = http.StatusInternalServerError
		data.Reset()
		data.WriteString(`{"code":13,"message":"the answer cannot be written as JSON","details":[]}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(data.Bytes())
}
