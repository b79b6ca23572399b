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

// ErrConflict reports that nothing was recorded, because another event was appended to the subject
// first. The caller should read the subject and decide again.
var ErrConflict = errors.New("version conflict: another event was appended to the subject first")

// ErrUncertain reports that the event may or may not be recorded, because its acknowledgement was
// lost. The caller can find out by reading the subject and looking for the command's ID.
var ErrUncertain = errors.New("append not acknowledged: the event may be recorded")

// An Event is a record in its envelope (CloudEvents 1.0).
type Event struct {
	domain.Record
	Position    uint64      // position in the log, from 1; 0 before the event is appended
	ID          string      // ce-id, a UUIDv7
	Name        domain.Name // ce-subject, and the log's subject
	Time        time.Time   // ce-time
	Actor       string      // ce-actor: the API key, scheduler or node that caused the event
	Command     string      // ce-command: ID of the command that decided the event
	Cause       string      // ce-cause: ID of the event to which this one is a reaction, or ""
	Correlation string      // ce-correlation: ID of the request at the root of the chain, or ""
	// Trace is ce-traceparent and ce-tracestate (CloudEvents distributed tracing extension): the trace
	// context of the request at the root of the chain, or no trace.
	Trace domain.Trace
	// ControlPlane is ce-controlplane: the control plane that decided the event; "" in events of
	// earlier versions. It informs readers of the log: no decision depends on it.
	ControlPlane string
	// ClientAddress is ce-clientaddress: the IP address of the client whose request caused the event;
	// "" in reactions, in events of earlier versions, and when addresses are not recorded.
	ClientAddress string
}

// A Write is an event to append on the condition that Expect is the position of the last event of
// its subject. An Expect of 0 means that the subject must have no event.
type Write struct {
	Event
	Expect uint64
}

// A Checkpoint is a position of the log and the ID of the event at the position.
type Checkpoint = integrity.Checkpoint

// A Log is a totally ordered, append-only sequence of events.
//
// A filter is an exact subject, "events.acme.deployments.d1", or one with
// NATS wildcards, "events.acme.>".
type Log interface {
	// Append appends the event of a write and returns its position. After any error except
	// ErrUncertain nothing was recorded.
	Append(ctx context.Context, w Write) (position uint64, err error)
	// Read yields the events after a position that match a filter, up to the log's current end.
	Read(ctx context.Context, filter string, after uint64) iter.Seq2[Event, error]
	// Count returns how many events match a filter, without reading them.
	Count(ctx context.Context, filter string) (uint64, error)
	// Follow yields the events after a position that match a filter, and then new ones until ctx is
	// done. The last pair that it yields has the error.
	Follow(ctx context.Context, filter string, after uint64) iter.Seq2[Event, error]
	// At returns the event at a position. The error is NotFound when there is none.
	At(ctx context.Context, position uint64) (Event, error)
	// Last returns the checkpoint of the newest event; zero for an empty log.
	Last(ctx context.Context) (Checkpoint, error)
}

// Follows returns a DataLoss error unless the position of e is after+1. A projection calls it so
// that it does not skip missing events.
func Follows(e Event, after uint64) error {
	if e.Position != after+1 {
		return fmt.Errorf("event %s of %s: %w", e.ID, e.Name, integrity.GapError(after+1, e.Position))
	}
	return nil
}
