// Package eventlog keeps what happened: in order, durably, for ever.
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

// ErrConflict means that another write to a subject came first: nothing was
// recorded. Look at the subject again and decide anew.
var ErrConflict = errors.New("eventlog: another event came first")

// ErrUncertain means that it is not known whether the events were recorded: an
// acknowledgement was lost. Look for the command's ID on the subject.
var ErrUncertain = errors.New("eventlog: the acknowledgement was lost")

// An Event is a record in its envelope, CloudEvents 1.0.
type Event struct {
	domain.Record
	Position    uint64      // in the log, from 1; 0 before it is appended
	ID          string      // ce-id, a UUIDv7
	Name        domain.Name // ce-subject, and the log's subject
	Time        time.Time   // ce-time
	Actor       string      // ce-actor: who wanted it: an API key's name, a scheduler, a node
	Command     string      // ce-command: ID of the command that decided it
	Cause       string      // ce-cause: ID of the event that led to it, or ""
	Correlation string      // ce-correlation: ID of the request that began it all, or ""
}

// A Write adds one event to its subject, provided that the last event there
// still has position Expect (0: the subject has none).
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
	// Append records a write and returns its position. It returns ErrConflict,
	// ErrUncertain, or another error after which nothing was recorded.
	Append(ctx context.Context, w Write) (position uint64, err error)
	// Read yields the events after a position, up to what the log holds now.
	Read(ctx context.Context, filter string, after uint64) iter.Seq2[Event, error]
	// Count is how many events match a filter, found without reading them.
	Count(ctx context.Context, filter string) (uint64, error)
	// Follow yields the events after a position, then waits for more until ctx
	// is done; its last pair carries the error.
	Follow(ctx context.Context, filter string, after uint64) iter.Seq2[Event, error]
	// At is the event at a position; NotFound when the log has none there.
	At(ctx context.Context, position uint64) (Event, error)
	// Last is the place of the newest event, zero in an empty log.
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
