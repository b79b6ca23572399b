package domain

import (
	"errors"
	"fmt"
	"strings"
)

// A Code is the canonical RPC code of an error. The set is closed; the api package maps it to HTTP
// status codes in one table.
type Code int

// The canonical codes, numbered as in RPC status.
const (
	OK                 Code = 0
	Canceled           Code = 1
	Unknown            Code = 2
	InvalidArgument    Code = 3
	DeadlineExceeded   Code = 4
	NotFound           Code = 5
	AlreadyExists      Code = 6
	PermissionDenied   Code = 7
	ResourceExhausted  Code = 8
	FailedPrecondition Code = 9
	Aborted            Code = 10
	OutOfRange         Code = 11
	Unimplemented      Code = 12
	Internal           Code = 13
	Unavailable        Code = 14
	DataLoss           Code = 15
	Unauthenticated    Code = 16
)

var codeNames = [...]string{"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
	"ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
	"UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"}

func (c Code) String() string {
	if c < 0 || int(c) >= len(codeNames) {
		return "UNKNOWN"
	}
	return codeNames[c]
}

// A Violation describes a rule that a field of a request violates.
type Violation struct {
	Field       string `json:"field"`       // path of the field in the JSON of the request, such as trainingConfig.epochs
	Description string `json:"description"` // the rule, and how to fix the request
}

// An Error is an error for the user of the API, in the user's terms. It never contains a secret
// value.
type Error struct {
	Code       Code
	Reason     string // stable identifier in UPPER_SNAKE_CASE that programs compare; can be empty
	Message    string // text for the user; never empty
	Violations []Violation
}

func (e *Error) Error() string { return e.Message }

// Errorf returns an Error with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// CodeOf returns the code of err: OK for nil, Unknown when err is no *Error.
func CodeOf(err error) Code {
	if err == nil {
		return OK
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Unknown
}

// Violations collects all violations of a request, so that one response lists them all.
type Violations []Violation

// MaxViolations is the maximum number of violations that an error lists, so that a response is not
// many times as large as the refused request. An additional entry reports that the list is
// truncated.
const MaxViolations = 128

// Add records a violation of a field.
func (v *Violations) Add(field, format string, args ...any) {
	*v = append(*v, Violation{Field: field, Description: fmt.Sprintf(format, args...)})
}

// Require records a violation of a field unless ok is true.
func (v *Violations) Require(ok bool, field, format string, args ...any) {
	if !ok {
		v.Add(field, format, args...)
	}
}

// InvalidFields is the reason of an error that lists violations.
const InvalidFields = "INVALID_FIELDS"

// Err returns nil, or an InvalidArgument error that lists the violations, at most MaxViolations of
// them.
func (v Violations) Err() error {
	if len(v) == 0 {
		return nil
	}
	if len(v) > MaxViolations {
		v = v[:MaxViolations:MaxViolations]
		v.Add("request", "has more than %d violations: fix the listed violations first", MaxViolations)
	}
	parts := make([]string, len(v))
	for i, violation := range v {
		parts[i] = violation.Field + ": " + violation.Description
	}
	return &Error{Code: InvalidArgument, Reason: InvalidFields, Message: strings.Join(parts, "; "), Violations: v}
}

// A Status is the result of the most recent operation on a resource.
type Status struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// StatusOf returns the status of a resource whose last operation returned err; for nil, the status
// is OK.
func StatusOf(err error) Status {
	if err == nil {
		return Status{Code: OK.String()}
	}
	return Status{Code: CodeOf(err).String(), Message: err.Error()}
}
