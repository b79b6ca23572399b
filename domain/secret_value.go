package domain

import (
	"fmt"
	"log/slog"
)

const redacted = "[redacted]"

// A SecretValue is a confidential text: it is printed, logged and encoded as [redacted].
type SecretValue string

// Reveal returns the confidential text.
func (s SecretValue) Reveal() string { return string(s) }

// String returns [redacted].
func (SecretValue) String() string { return redacted }

// GoString returns [redacted].
func (SecretValue) GoString() string { return redacted }

// Format writes [redacted], whatever the verb.
func (SecretValue) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// MarshalJSON returns "[redacted]".
func (SecretValue) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText returns [redacted].
func (SecretValue) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue returns [redacted].
func (SecretValue) LogValue() slog.Value { return slog.StringValue(redacted) }
