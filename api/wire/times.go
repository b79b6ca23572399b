package wire

import (
	"time"
)

// Timestamp returns a time as responses carry it: in UTC, nil for the zero time.
func Timestamp(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// TimestampOf is Timestamp without a copy, for times of rows, which never change.
func TimestampOf(t *time.Time) *time.Time {
	if t.IsZero() || t.Location() != time.UTC {
		return Timestamp(*t)
	}
	return t
}
