// Package eventlog is the log of events: ordered, durable, append-only. It holds the Log on
// JetStream and in memory, the envelope of events, and Do, which decides commands and appends
// their events. Its sub-packages hold the NATS server, the integrity of the log's files, sealed
// values, idempotency keys, usage records and the Watermill bridge.
package eventlog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"anneal/domain"
	"anneal/eventlog/integrity"
)

// ErrConflict reports that another event was appended to the subject first: nothing was
// recorded. Read the subject again and decide again.
var ErrConflict = errors.New("version conflict: another event was appended to the subject first")

// ErrUncertain reports that the event may or may not be recorded: its acknowledgement was lost.
// Look for the command's ID on the subject.
var ErrUncertain = errors.New("append not acknowledged: the event may be recorded")

// An Event is a record in its envelope (CloudEvents 1.0).
type Event struct {
	domain.Record
	Position    uint64      // in the log, from 1; 0 before it is appended
	ID          string      // ce-id, a UUIDv7
	Name        domain.Name // ce-subject, and the log's subject
	Time        time.Time   // ce-time
	Actor       string      // ce-actor: the API key, scheduler or node that caused it
	Command     string      // ce-command: ID of the command that decided it
	Cause       string      // ce-cause: ID of the event that led to it, or ""
	Correlation string      // ce-correlation: ID of the request at the root of the chain, or ""
}

// A Write appends one event to its subject if the subject's last event has position Expect
// (0: the subject has no event).
type Write struct {
	Event
	Expect uint64
}

// A Checkpoint identifies a position of the log by the ID of its event, too.
type Checkpoint = integrity.Checkpoint

// A Log is a totally ordered, append-only sequence of events.
//
// A filter is an exact subject, "events.acme.deployments.d1", or one with
// NATS wildcards, "events.acme.>".
type Log interface {
	// Append records a write and returns its position. After ErrConflict, and after any other
	// error except ErrUncertain, nothing was recorded.
	Append(ctx context.Context, w Write) (position uint64, err error)
	// Read yields the events after a position, up to the log's current end.
	Read(ctx context.Context, filter string, after uint64) iter.Seq2[Event, error]
	// Count returns how many events match a filter, without reading them.
	Count(ctx context.Context, filter string) (uint64, error)
	// Follow yields the events after a position and then new ones until ctx is done; its last
	// pair carries the error.
	Follow(ctx context.Context, filter string, after uint64) iter.Seq2[Event, error]
	// At returns the event at a position, or NotFound.
	At(ctx context.Context, position uint64) (Event, error)
	// Last returns the checkpoint of the newest event; zero for an empty log.
	Last(ctx context.Context) (Checkpoint, error)
}

// Follows returns a DataLoss error unless e directly follows the position after.
// It keeps a projection from skipping missing events.
func Follows(e Event, after uint64) error {
	if e.Position != after+1 {
		return fmt.Errorf("event %s of %s: %w", e.ID, e.Name, integrity.GapError(after+1, e.Position))
	}
	return nil
}
