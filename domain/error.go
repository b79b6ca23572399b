package domain

import (
	"errors"
	"fmt"
	"strings"
)

// A Code is the canonical RPC code of a fault. The set is closed; the api
// package maps it to HTTP in one table.
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

// A Violation is one rule that one field of a request breaks.
type Violation struct {
	Field       string `json:"field"`       // path in the wire's spelling, such as trainingConfig.epochs
	Description string `json:"description"` // the rule, and the way out
}

// A Error says why something cannot be so now, in words for its user. It never
// carries a secret value.
type Error struct {
	Code       Code
	Reason     string // UPPER_SNAKE_CASE, stable, for programs; may be empty
	Message    string // never empty
	Violations []Violation
}

func (f *Error) Error() string { return f.Message }

// Errorf makes a fault with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// CodeOf is the code of err: OK for nil, Unknown for what is not a fault.
func CodeOf(err error) Code {
	if err == nil {
		return OK
	}
	var f *Error
	if errors.As(err, &f) {
		return f.Code
	}
	return Unknown
}

// Violations collects what a request does wrong, so that all of it is answered
// at once.
type Violations []Violation

// MaxViolations is how many violations are listed one by one: an answer must not
// be many times as large as the request that it refuses. Of those beyond it is
// counted only.
const MaxViolations = 128

// Add records that field breaks a rule.
func (v *Violations) Add(field, format string, args ...any) {
	*v = append(*v, Violation{Field: field, Description: fmt.Sprintf(format, args...)})
}

// Require records the violation unless ok holds.
func (v *Violations) Require(ok bool, field, format string, args ...any) {
	if !ok {
		v.Add(field, format, args...)
	}
}

// Err is nil, or one InvalidArgument fault that names every violation, or the
// first MaxViolations of them.
func (v Violations) Err() error {
	if len(v) == 0 {
		return nil
	}
	if len(v) > MaxViolations {
		v = v[:MaxViolations:MaxViolations]
		v.Add("request", "breaks rules in more places than these %d: mend them first", MaxViolations)
	}
	parts := make([]string, len(v))
	for i, one := range v {
		parts[i] = one.Field + ": " + one.Description
	}
	return &Error{Code: InvalidArgument, Reason: "INVALID_FIELDS", Message: strings.Join(parts, "; "), Violations: v}
}

// A Status describes the most recent operation on a resource.
type Status struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// StatusOf is the status that err leaves on a resource; nil is OK.
func StatusOf(err error) Status {
	if err == nil {
		return Status{Code: OK.String()}
	}
	return Status{Code: CodeOf(err).String(), Message: err.Error()}
}
