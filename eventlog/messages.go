package eventlog

import (
	"context"
	"encoding/json"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/domain"
	"anneal/eventlog/integrity"
)

// Observe makes each follower of all events call observe with every event, in the form in which it
// is stored, before the follower yields it. When the log has two followers, observe is called twice
// for each event. observe must not block, and must not keep the message: its memory is reused.
// Observe must be called before Follow.
func (l *JetStream) Observe(observe func(integrity.Message)) { l.observe = observe }

// Messages reads the events of a log in the form in which the NATS server stores them.
type Messages struct{ log *JetStream }

// MessagesOf returns the Messages of a log.
func MessagesOf(log *JetStream) Messages { return Messages{log} }

// Last returns the position and ID of the newest event; the zero Checkpoint for an empty log.
func (s Messages) Last(ctx context.Context) (Checkpoint, error) { return s.log.Last(ctx) }

// Each calls visit with every event after the position cursor, up to upTo, in order. An event is
// passed on only when it is on disk.
func (s Messages) Each(ctx context.Context, cursor, upTo uint64, visit func(integrity.Message) error) error {
	return s.log.messages(ctx, cursor, upTo, func(position uint64, m jetstream.Msg) error {
		if position != cursor+1 {
			return integrity.GapError(cursor+1, position)
		}
		cursor = position
		if err := s.log.disk.wait(ctx, position); err != nil {
			return err
		}
		return visit(integrity.MessageOf(position, m.Subject(), nats.Header(m.Headers()), m.Data()))
	})
}

// At returns the event at a position, or a NotFound error.
func (s Messages) At(ctx context.Context, position uint64) (m integrity.Message, err error) {
	request, err := json.Marshal(map[string]any{"seq": position})
	if err != nil {
		return m, err
	}
	var stored storedMessage
	found := false
	if position > 0 {
		err = s.log.retryRead(ctx, func(ctx context.Context) (err error) {
			stored, found, err = readLeader(ctx, s.log.nc, request)
			return err
		})
	}
	switch {
	case err != nil:
		return m, err
	case !found:
		return m, domain.Errorf(domain.NotFound, "the event log has no event at position %d", position)
	}
	if err := s.log.disk.wait(ctx, position); err != nil {
		return m, err
	}
	return integrity.MessageOf(position, stored.Subject, stored.Header, stored.Data), nil
}
