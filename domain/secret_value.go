package domain

import (
	"fmt"
	"log/slog"
)

const redacted = "[redacted]"

// A SecretValue is a confidential text. It is printed, logged and encoded as [redacted], so that it
// cannot leak by accident.
type SecretValue string

// Reveal returns the confidential text itself.
func (s SecretValue) Reveal() string { return string(s) }

// String implements fmt.Stringer: it returns [redacted].
func (SecretValue) String() string { return redacted }

// GoString implements fmt.GoStringer: it returns [redacted].
func (SecretValue) GoString() string { return redacted }

// Format implements fmt.Formatter: it writes [redacted] for every verb.
func (SecretValue) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// MarshalJSON implements json.Marshaler: it returns "[redacted]".
func (SecretValue) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText implements encoding.TextMarshaler: it returns [redacted].
func (SecretValue) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue implements slog.LogValuer: it returns [redacted].
func (SecretValue) LogValue() slog.Value { return slog.StringValue(redacted) }
