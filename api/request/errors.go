package request

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"anneal/domain"
	"anneal/engines"
)

func NotFoundReason(reason, format string, args ...any) error {
	f := domain.Errorf(domain.NotFound, format, args...)
	f.Reason = reason
	return f
}

func NotFound(noun string, name domain.Name) error {
	f := domain.Errorf(domain.NotFound, "there is no %s named %s: list what exists with GET /v1/%s", noun, name,
		parentPath(name))
	f.Reason = "NOT_FOUND"
	return f
}

// StatusOfCode maps canonical error codes (google.rpc.Code) to HTTP statuses.
var StatusOfCode = map[domain.Code]int{
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

const statusClientClosed = 499 // status of a request whose client disconnected before the response

// Reasons of errors. Some reasons have a more specific HTTP status than their code: see
// reasonStatus.
const (
	ReasonBodyTooLarge   = "BODY_TOO_LARGE"
	ReasonTooSlow        = "REQUEST_TOO_SLOW"
	ReasonBodies         = "TOO_MANY_BODIES"
	ReasonMethod         = "METHOD_NOT_ALLOWED"
	reasonSuspended      = "ACCOUNT_SUSPENDED"
	reasonUnknownKey     = "API_KEY_UNKNOWN"
	ReasonScalingUp      = "DEPLOYMENT_SCALING_UP"
	ReasonStopping       = "SERVER_STOPPING"
	ReasonNoPlace        = "DEPLOYMENT_HAS_NO_PLACE"
	ReasonTooManyStreams = "TOO_MANY_STREAMS"
	ReasonQuotaTooSmall  = "QUOTA_TOO_SMALL"
)

var reasonStatus = map[string]int{
	ReasonBodyTooLarge: http.StatusRequestEntityTooLarge,
	ReasonTooSlow:      http.StatusRequestTimeout,

	engines.RequestTooLarge: http.StatusRequestEntityTooLarge,
	ReasonMethod:            http.StatusMethodNotAllowed,
}

// ErrorOf returns the error that a client gets for err. If err is not a *domain.Error or another
// known error, it returns an internal error without the text of err, which only the server's log
// may contain.
func ErrorOf(err error) *domain.Error {
	var fault *domain.Error
	var tooLarge *http.MaxBytesError
	var lost unrecorded
	switch {
	case errors.As(err, &fault):
		return fault
	case errors.As(err, &lost):
		return &domain.Error{Code: domain.Unavailable, Reason: "LOG_UNAVAILABLE",
			Message: "the log did not acknowledge the change: its disk may be full, or its server unreachable; check " +
				"whether the change was made, then try again"}
	case errors.As(err, &tooLarge):
		return BodyTooLarge(tooLarge.Limit)
	case errors.Is(err, context.Canceled):
		return domain.Errorf(domain.Canceled, "the client disconnected before the response")
	case errors.Is(err, context.DeadlineExceeded):
		return domain.Errorf(domain.DeadlineExceeded, "the request took too long: try again")
	}
	return domain.Errorf(domain.Internal, "internal error: report the request ID to the server's operator")
}

func BodyTooLarge(limit int64) *domain.Error {
	return &domain.Error{Code: domain.OutOfRange, Reason: ReasonBodyTooLarge,
		Message: "the body is larger than " + strconv.FormatInt(limit, 10) + " bytes: send a smaller body"}
}

// BodyOfSizeTooLarge returns the error of BodyTooLarge with a message that also states the size of
// the body, in bytes.
func BodyOfSizeTooLarge(limit, size int64) *domain.Error {
	f := BodyTooLarge(limit)
	f.Message = fmt.Sprintf("the body has %[2]d bytes, more than the limit of %[1]d: send a smaller body", limit, size)
	return f
}

func HTTPStatus(f *domain.Error) int {
	if status, ok := reasonStatus[f.Reason]; ok {
		return status
	}
	if status, ok := StatusOfCode[f.Code]; ok {
		return status
	}
	return http.StatusInternalServerError
}

// ManagementError is the JSON body of an error response of all operations that do not have an
// InferenceError.
type ManagementError struct {
	Code    domain.Code `json:"code"`
	Message string      `json:"message"`
	Details []any       `json:"details"`
}

type ErrorInfo struct {
	Type     string            `json:"@type"`
	Reason   string            `json:"reason"`
	Domain   string            `json:"domain"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

type BadRequest struct {
	Type       string             `json:"@type"`
	Violations []domain.Violation `json:"fieldViolations"`
}

func ManagementBody(f *domain.Error, requestID string) ManagementError {
	reason := f.Reason
	if reason == "" {
		reason = f.Code.String()
	}
	body := ManagementError{f.Code, f.Message, []any{
		ErrorInfo{"ErrorInfo", reason, "anneal", map[string]string{"requestId": requestID}}}}
	if len(f.Violations) > 0 {
		body.Details = append(body.Details, BadRequest{"BadRequest", f.Violations})
	}
	return body
}

// InferenceError is the JSON body of an error response in the format of the OpenAI API: see
// Operation.HasInferenceErrors. All of its keys are always present.
type InferenceError struct {
	Error     InferenceErrorBody `json:"error"`
	RequestID string             `json:"request_id"`
}

type InferenceErrorBody struct {
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

func InferenceBody(f *domain.Error, requestID string) (int, InferenceError) {
	status, code := HTTPStatus(f), f.Reason
	if f.Reason == reasonSuspended {
		status, code = http.StatusPreconditionFailed, "PRECONDITION_FAILED"
	}
	if code == "" {
		code = f.Code.String()
	}
	body := InferenceErrorBody{Message: f.Message, Type: inferenceTypes[status], Code: code}
	if body.Type == "" {
		body.Type = "server_error"
	}
	if len(f.Violations) > 0 {
		param, _, _ := strings.Cut(f.Violations[0].Field, "[")
		body.Param = &param
	}
	return status, InferenceError{body, requestID}
}

// RetryAfterSeconds is the value of the header Retry-After for errors without a known waiting time,
// in seconds.
const RetryAfterSeconds = "5"

// NoRetryHeader is a response header. Its value "false" in a response with 429 says that no retry
// can succeed; without it, clients of OpenAI retry a 429.
const NoRetryHeader = "X-Should-Retry"

// TicketHeader is the header of the ticket that promises an overloaded deployment's client to be
// admitted: the client sends it back with the request.
const TicketHeader = "anneal-ticket"

// PriorityHeader is the request header that names the class of an inference request: interactive or
// batch.
const PriorityHeader = "anneal-priority"

// WriteError writes the response to a request that failed with the error f: an InferenceError if
// inference is true, otherwise a ManagementError.
func WriteError(w http.ResponseWriter, f *domain.Error, requestID string, inference bool) {
	ObserveError(w, f)
	f = printable(f)
	status, body := HTTPStatus(f), any(ManagementBody(f, requestID))
	if inference {
		status, body = InferenceBody(f, requestID)
	}
	switch status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="anneal"`)
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		if f.Reason == ReasonQuotaTooSmall {
			w.Header().Set(NoRetryHeader, "false")
		} else if w.Header().Get("Retry-After") == "" {
			w.Header().Set("Retry-After", RetryAfterSeconds)
		}
	}
	writeJSON(w, status, body)
}

// printable returns a copy of the error with all control characters of its texts escaped.
func printable(f *domain.Error) *domain.Error {
	shown := *f
	shown.Message, shown.Violations = domain.Printable(f.Message), slices.Clone(f.Violations)
	for i, v := range shown.Violations {
		shown.Violations[i] = domain.Violation{Field: domain.Printable(v.Field), Description: domain.Printable(v.Description)}
	}
	return &shown
}

// A TextResponse is a response that is not JSON.
type TextResponse struct{ Media, Text string }

// WriteResponse writes the response to a request whose handler returned result: a TextResponse as
// text, and any other value as JSON.
func WriteResponse(w http.ResponseWriter, result any) {
	plain, ok := result.(TextResponse)
	if !ok {
		writeJSON(w, http.StatusOK, result)
		return
	}
	w.Header().Set("Content-Type", plain.Media)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, plain.Text)
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	var data bytes.Buffer
	encoder := json.NewEncoder(&data)
	encoder.SetEscapeHTML(false)                 // keep & in signed URLs readable
	if err := encoder.Encode(body); err != nil { // only a bug in a wire type causes this error
		status = http.StatusInternalServerError
		data.Reset()
		data.WriteString(`{"code":13,"message":"the response cannot be encoded as JSON","details":[]}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(data.Len()))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(data.Bytes())
}

// ReasonOf returns the Reason of err if err is a *domain.Error, otherwise "".
func ReasonOf(err error) string {
	var f *domain.Error
	if errors.As(err, &f) {
		return f.Reason
	}
	return ""
}

// LogFailure logs an internal error as an error, and an exceeded deadline as a warning. It does not
// log other errors, which are caused by clients, unavailable dependencies or unsupported requests.
func (s *Core) LogFailure(r *http.Request, err error) {
	level := slog.LevelError
	switch code := domain.CodeOf(err); {
	case HTTPStatus(ErrorOf(err)) < http.StatusInternalServerError, code == domain.Unavailable,
		code == domain.Unimplemented:
		return
	case code == domain.DeadlineExceeded:
		level = slog.LevelWarn
	}
	s.Logger.Log(r.Context(), level, "request failed", "request", RequestID(r), "method", r.Method, "path", r.URL.Path,
		"error", err)
}
