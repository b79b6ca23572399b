package eventlog

import (
	"context"
	"encoding/json"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/domain"
	"anneal/eventlog/integrity"
)

// Observe makes each follower of all events call observe with the event as it is stored, before the
// follower yields the event. observe must return at once. Two followers call it twice for an event.
// Call Observe before Follow.
func (l *JetStream) Observe(observe func(integrity.Message)) { l.observe = observe }

// Messages reads the events of a log as they are stored.
type Messages struct{ log *JetStream }

// MessagesOf returns the stored events of a log.
func MessagesOf(log *JetStream) Messages { return Messages{log} }

// Last returns the checkpoint of the newest event; zero for an empty log.
func (s Messages) Last(ctx context.Context) (Checkpoint, error) { return s.log.Last(ctx) }

// Each calls the function each with every event whose position is greater than after and at most
// upTo, in order, once the event is on disk.
func (s Messages) Each(ctx context.Context, after, upTo uint64, each func(integrity.Message) error) error {
	return s.log.messages(ctx, after, upTo, func(position uint64, m jetstream.Msg) error {
		if position != after+1 {
			return integrity.GapError(after+1, position)
		}
		after = position
		if err := s.log.disk.wait(ctx, position); err != nil {
			return err
		}
		return each(integrity.MessageOf(position, m.Subject(), nats.Header(m.Headers()), m.Data()))
	})
}

// At returns the event at a position. The error is NotFound when there is none.
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
		return m, domain.Errorf(domain.NotFound, "event at position %d not found", position)
	}
	if err := s.log.disk.wait(ctx, position); err != nil {
		return m, err
	}
	return integrity.MessageOf(position, stored.Subject, stored.Header, stored.Data), nil
}
