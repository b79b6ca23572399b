// Package eventlog is the log of events: ordered, durable, append-only. It has the Log on JetStream
// and in memory, the envelope of events, and Do, which decides commands and appends their events.
// Its subpackages have the embedded NATS server, the checks of the log's files, sealed values,
// idempotency keys, usage records and the Watermill bridge.
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

// ErrConflict is returned by Append when another event was appended to the subject first. Nothing
// was recorded. The caller reads the subject and decides again.
var ErrConflict = errors.New("version conflict: the resource was changed at the same time, so nothing was recorded")

// ErrUncertain is returned by Append when the acknowledgement of the server was lost, so that the
// event may or may not be recorded. To find out, the caller reads the subject and looks for the
// command's ID.
var ErrUncertain = errors.New("the event log did not acknowledge the event: it may or may not be recorded")

// An Event is a domain.Record with the attributes of its envelope (CloudEvents 1.0).
type Event struct {
	domain.Record
	Position    uint64      // position in the log, from 1; 0 before it is appended
	ID          string      // ce-id: ID of the event, a UUIDv7
	Name        domain.Name // resource of the event: ce-subject, and the subject in NATS
	Time        time.Time   // ce-time: when the event was decided
	Actor       string      // ce-actor: the API key, scheduler or node that caused the event
	Command     string      // ce-command: ID of the command on which the event was decided
	Cause       string      // ce-cause: ID of the event to which this event is a reaction; "" when a request caused it
	Correlation string      // ce-correlation: ID of the first request in the chain of causes; "" when there is none
	// Trace is the trace context of the first request in the chain of causes; empty when it has none.
	// It is in ce-traceparent and ce-tracestate (CloudEvents distributed tracing extension).
	Trace domain.Trace
	// ControlPlane is ce-controlplane: the ID of the control plane that decided the event; "" in
	// events of earlier versions. It is for readers of the log: no decision depends on it.
	ControlPlane string
	// ClientAddress is ce-clientaddress: the IP address of the client whose request caused the event.
	// It is "" in reactions to events, in events of earlier versions, and when the server does not
	// record addresses.
	ClientAddress string
}

// A Write is an event to append. Expect is the expected position of the last event on the same
// subject; 0 means that the subject has no event. If the last event has another position, Append
// returns ErrConflict.
type Write struct {
	Event
	Expect uint64
	// Stored is called with the position of the event when the log has stored the event, and before it
	// is durable. Logs that store and sync an event in one step do not call it. It may be nil.
	Stored func(position uint64)
}

// A Checkpoint is a position of the log and the ID of the event at the position.
type Checkpoint = integrity.Checkpoint

// A Log is a totally ordered, append-only sequence of events.
//
// A filter selects events by their NATS subject: an exact subject such as
// "events.acme.deployments.d1", or one with wildcards such as "events.acme.>".
type Log interface {
	// Append appends an event and returns its position. Unless the error is ErrUncertain, an error
	// means that nothing was recorded.
	Append(ctx context.Context, w Write) (position uint64, err error)
	// Read yields the events that match a filter, from the position after the given one up to the
	// current end of the log.
	Read(ctx context.Context, filter string, cursor uint64) iter.Seq2[Event, error]
	// Count returns the number of events that match a filter.
	Count(ctx context.Context, filter string) (uint64, error)
	// Follow yields the existing events after a position that match a filter, and then new events as
	// they are appended, until ctx is done. The last pair that it yields has the error that ended it.
	Follow(ctx context.Context, filter string, cursor uint64) iter.Seq2[Event, error]
	// At returns the event at a position, or a NotFound error.
	At(ctx context.Context, position uint64) (Event, error)
	// Last returns the position and ID of the newest event; the zero Checkpoint for an empty log.
	Last(ctx context.Context) (Checkpoint, error)
}

// Follows returns a DataLoss error unless the position of e is previous+1. Readers of all events
// call it to notice a missing event.
func Follows(e Event, previous uint64) error {
	if e.Position != previous+1 {
		return fmt.Errorf("event %s of %s: %w", e.ID, e.Name, integrity.GapError(previous+1, e.Position))
	}
	return nil
}
