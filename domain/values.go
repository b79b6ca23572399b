package domain

import (
	"encoding/json"
	"strconv"
	"time"
)

// A Count is a number of things; on the wire and in the log it is a decimal
// string, as the interface demands of 64-bit counts.
type Count int64

// Of is the count with what it counts, as a sentence says it: 1 row, 2 rows.
func (c Count) Of(noun string) string {
	if c == 1 {
		return "1 " + noun
	}
	return strconv.FormatInt(int64(c), 10) + " " + noun + "s"
}

// MarshalJSON writes the decimal string.
func (c Count) MarshalJSON() ([]byte, error) {
	return strconv.AppendQuote(nil, strconv.FormatInt(int64(c), 10)), nil
}

// UnmarshalJSON reads a decimal string or a whole number. null changes nothing,
// as everywhere in JSON.
func (c *Count) UnmarshalJSON(data []byte) error {
	text := string(data)
	if text == "null" {
		return nil
	}
	if len(data) > 1 && data[0] == '"' {
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	*c = Count(n)
	return err
}

// Int64 is the number.
func (c Count) Int64() int64 { return int64(c) }

// A Sealed value is encrypted with a data key of its own, which is kept
// outside the log; when that key is deleted the value is gone for ever.
//
// The ciphertext is bound to its place by additional data. Scheme says by which:
// 1 by the resource's name and the key ID. Ciphertexts of earlier versions have
// scheme 0 and are bound to the resource's name and to Bound, which the fold
// fills in for them.
type Sealed struct {
	KeyID      string `json:"keyId"`
	Ciphertext []byte `json:"ciphertext"`
	Scheme     int    `json:"scheme,omitempty"`
	Bound      string `json:"bound,omitempty"` // key name and version of a value of scheme 0
}

// SealScheme is the scheme of values that are sealed now.
const SealScheme = 1

// Bounds of free text, in characters. The interface bounds the display names of
// deployments, shapes and accounts alone, at MaxShortName.
const (
	MaxShortName   = 63
	MaxDisplayName = 255
	MaxDescription = 1000
)

func checkShortName(v *Violations, displayName string) {
	v.Require(len([]rune(displayName)) <= MaxShortName, "displayName", "must have fewer than %d characters", MaxShortName+1)
}

func checkText(v *Violations, displayName, description string) {
	v.Require(len([]rune(displayName)) <= MaxDisplayName, "displayName", "must have at most %d characters", MaxDisplayName)
	v.Require(len([]rune(description)) <= MaxDescription, "description", "must have at most %d characters", MaxDescription)
}

// oneOf requires an enumeration's value; "" stands for the unspecified one.
func oneOf(v *Violations, field, value string, allowed ...string) {
	if value == "" {
		return
	}
	for _, a := range allowed {
		if a == value {
			return
		}
	}
	v.Add(field, "must be one of %s", join(allowed))
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

// indexed is the path of a list's element: criteria[2].
func indexed(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }

func reference(v *Violations, field, value, collection string) {
	if value == "" {
		return
	}
	_, ok := ParseName(value, collection)
	v.Require(ok, field, "must be a name like accounts/ACCOUNT/%s/ID", collection)
}

func inFuture(v *Violations, field string, t *time.Time, now time.Time) {
	v.Require(t == nil || t.After(now), field, "must lie in the future")
}

// gone is the fault of a command on a resource that does not exist.
func gone(what string) error {
	return &Error{Code: NotFound, Reason: "NOT_FOUND", Message: "there is no such " + what}
}

func exists(what string) error {
	return &Error{Code: AlreadyExists, Reason: "ALREADY_EXISTS", Message: what + " with this ID already exists: choose another ID, or leave it out"}
}

func precondition(reason, format string, args ...any) error {
	f := Errorf(FailedPrecondition, format, args...)
	f.Reason = reason
	return f
}

// sameJSON reports whether two values are written alike.
func sameJSON(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}
