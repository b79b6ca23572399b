package domain

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A Count is a 64-bit integer that JSON in the API and in the log represents as a decimal string,
// because not every JSON parser reads all 64-bit numbers exactly.
type Count int64

// Of formats the count with the singular or plural of noun, for messages: "1 row", "2 rows".
func (c Count) Of(noun string) string {
	if c == 1 {
		return "1 " + noun
	}
	return strconv.FormatInt(int64(c), 10) + " " + noun + "s"
}

// MarshalJSON returns the count as a decimal string.
func (c Count) MarshalJSON() ([]byte, error) {
	return strconv.AppendQuote(nil, strconv.FormatInt(int64(c), 10)), nil
}

// UnmarshalJSON accepts a decimal string or an integer. null leaves the count unchanged, as usual
// in encoding/json.
func (c *Count) UnmarshalJSON(data []byte) error {
	text := string(data)
	if text == "null" {
		return nil
	}
	if len(data) > 1 && data[0] == '"' {
		if text = text[1 : len(text)-1]; strings.ContainsRune(text, '\\') {
			if err := json.Unmarshal(data, &text); err != nil {
				return err
			}
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	*c = Count(n)
	return err
}

// Int64 returns the count as an int64.
func (c Count) Int64() int64 { return int64(c) }

// A Sealed value is encrypted with a separate data key, which is stored outside of the log.
// Deleting the key erases the value.
//
// The ciphertext is bound to its context by additional authenticated data. With scheme 1, the
// additional data are the resource's name and the key ID. Ciphertexts of earlier versions have
// scheme 0 and are bound to the resource's name and to Bound, which the event's Evolve sets.
type Sealed struct {
	KeyID      string `json:"keyId"`
	Ciphertext []byte `json:"ciphertext"`
	Scheme     int    `json:"scheme,omitempty"`
	Bound      string `json:"bound,omitempty"` // key name and version to which a value of scheme 0 is bound
}

// SealScheme is the Sealed.Scheme of values that this version of anneal seals.
const SealScheme = 1

// Limits of text fields, in characters. MaxShortName applies to the display names of deployments,
// shapes and accounts.
const (
	MaxShortName   = 63
	MaxDisplayName = 255
	MaxDescription = 1000
)

func checkShortName(v *Violations, displayName string) {
	v.Require(len([]rune(displayName)) <= MaxShortName, "displayName", "must have at most %d characters", MaxShortName)
}

func checkText(v *Violations, displayName, description string) {
	v.Require(len([]rune(displayName)) <= MaxDisplayName, "displayName", "must have at most %d characters", MaxDisplayName)
	v.Require(len([]rune(description)) <= MaxDescription, "description", "must have at most %d characters", MaxDescription)
}

// oneOf adds a violation of field to v unless value is one of the allowed values or "". Its message
// suggests similar values.
func oneOf(v *Violations, field, value string, allowed ...string) {
	if value == "" {
		return
	}
	for _, a := range allowed {
		if a == value {
			return
		}
	}
	v.Add(field, "%s", OneOfRule(value, allowed))
}

func join(words []string) string {
	text := ""
	for i, w := range words {
		if i > 0 {
			text += ", "
		}
		text += w
	}
	return text
}

// indexed returns the path of element i of a list field, such as criteria[2].
func indexed(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }

func reference(v *Violations, field, value, collection string) {
	if value == "" {
		return
	}
	_, ok := ParseName(value, collection)
	v.Require(ok, field, "must be a name like accounts/ACCOUNT/%s/ID", collection)
}

func inFuture(v *Violations, field string, t *time.Time, now time.Time) {
	v.Require(t == nil || t.After(now), field, "must be in the future")
}

// notFound returns the error of a command on a resource that does not exist. what names the kind of
// the resource, such as "job".
func notFound(what string) error {
	return &Error{Code: NotFound, Reason: "NOT_FOUND", Message: "the " + what + " does not exist"}
}

// alreadyExists returns the error of a command that creates a resource that exists. what names the
// kind of the resource with its article, such as "a job". Intent.Decide adds the ID to the message:
// see existing.
func alreadyExists(what string) *Error {
	return &Error{Code: AlreadyExists, Reason: reasonAlreadyExists, Message: what + thisIDExists}
}

const (
	reasonAlreadyExists = "ALREADY_EXISTS"
	thisIDExists        = " with this ID already exists: choose another ID"
)

// existing returns err. If alreadyExists returned err, existing adds the ID of the resource and how
// to see the resource to the message.
func existing(err error, name Name) error {
	var e *Error
	if !errors.As(err, &e) || e.Reason != reasonAlreadyExists {
		return err
	}
	what, wayOut, ok := strings.Cut(e.Message, thisIDExists)
	if !ok {
		return err
	}
	named := *e
	named.Message = fmt.Sprintf("%s with the ID %q already exists: choose another ID%s, or see the existing one "+
		"with GET /v1/%s", what, name.ID(), wayOut, name)
	return &named
}

func precondition(reason, format string, args ...any) error {
	err := Errorf(FailedPrecondition, format, args...)
	err.Reason = reason
	return err
}

// sameJSON reports whether two values have the same JSON encoding.
func sameJSON(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}
