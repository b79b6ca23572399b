package wire

import (
	"encoding/json"
	"strconv"
	"time"
)

// Timestamp returns a time for a response: a copy in UTC, or nil for the zero time.
func Timestamp(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// TimestampOf is like Timestamp, but returns t itself if t is in UTC. t must be immutable, as the
// times of rows are.
func TimestampOf(t *time.Time) *time.Time {
	if t.IsZero() || t.Location() != time.UTC {
		return Timestamp(*t)
	}
	return t
}

// Seconds returns a duration as a JSON number of seconds with six decimals.
func Seconds(d time.Duration) json.Number {
	return json.Number(strconv.FormatFloat(d.Seconds(), 'f', 6, 64))
}
