package domain

import (
	"fmt"
	"log/slog"
)

const redacted = "[redacted]"

// A SecretValue is a text that must not be shown: printed, logged or encoded
// it is [redacted]. Reveal is the only way to it.
type SecretValue string

// Reveal is the text itself, for the one place that needs it.
func (s SecretValue) Reveal() string { return string(s) }

// String is [redacted].
func (SecretValue) String() string { return redacted }

// GoString is [redacted].
func (SecretValue) GoString() string { return redacted }

// Format writes [redacted], whatever the verb.
func (SecretValue) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// MarshalJSON is "[redacted]".
func (SecretValue) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText is [redacted].
func (SecretValue) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue is [redacted].
func (SecretValue) LogValue() slog.Value { return slog.StringValue(redacted) }
