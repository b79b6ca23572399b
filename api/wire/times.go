package wire

import (
	"encoding/json"
	"strconv"
	"time"
)

// Timestamp returns a pointer to t in UTC, for a response; nil for the zero time.
func Timestamp(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// TimestampOf is like Timestamp, but returns the pointer t itself if its time is in UTC. The time
// must not be modified later.
func TimestampOf(t *time.Time) *time.Time {
	if t.IsZero() || t.Location() != time.UTC {
		return Timestamp(*t)
	}
	return t
}

// Seconds returns a duration as a JSON number: seconds with six decimals.
func Seconds(d time.Duration) json.Number {
	return json.Number(strconv.FormatFloat(d.Seconds(), 'f', 6, 64))
}
