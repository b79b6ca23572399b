package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"anneal/eventlog/pubsub"
)

// receivedEvent is one event as a subscriber received it.
type receivedEvent struct {
	position uint64
	id, kind string // CloudEvents' id and type
	subject  string // the resource's name
	attempt  string
	data     object
}

// A recorder collects the events that a subscriber receives.
type recorder struct {
	mu     sync.Mutex
	events []receivedEvent
}

func (e *recorder) add(h receivedEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events = append(e.events, h)
}

func (e *recorder) all() []receivedEvent {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]receivedEvent(nil), e.events...)
}

// upTo waits for the event at a position, and returns all events up to it.
func (e *recorder) upTo(t testing.TB, position uint64) []receivedEvent {
	t.Helper()
	var events []receivedEvent
	eventually(t, fmt.Sprintf("a subscriber receives position %d", position), func() bool {
		events = e.all()
		return len(events) > 0 && events[len(events)-1].position >= position
	})
	for i, h := range events {
		if h.position > position {
			return events[:i]
		}
	}
	return events
}

// kinds returns the types of the events of one resource, in order.
func kinds(events []receivedEvent, subject string) (all []string) {
	for _, h := range events {
		if h.subject == subject {
			all = append(all, h.kind)
		}
	}
	return all
}

// reader connects with the credentials of a context file. Errors that the server sends go to errs.
func (s *plane) reader(with contextFile, errs chan<- error) *nats.Conn {
	s.t.Helper()
	nc, err := nats.Connect(with.NATSURL, nats.UserInfo(with.NATSUser, with.NATSPassword), nats.MaxReconnects(-1),
		nats.ReconnectWait(50*time.Millisecond), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			select {
			case errs <- err:
			default: // no test waits for it
			}
		}))
	require.NoError(s.t, err)
	s.t.Cleanup(nc.Close)
	return nc
}

// tail returns a recorder that receives every event from the first one on, with nats.go and the
// credentials of the operator.
func (s *plane) tail() *recorder {
	s.t.Helper()
	js, err := jetstream.New(s.reader(s.operator(), nil))
	require.NoError(s.t, err)
	consumer, err := js.OrderedConsumer(s.t.Context(), "EVENTS", jetstream.OrderedConsumerConfig{})
	require.NoError(s.t, err)
	e := &recorder{}
	consuming, err := consumer.Consume(func(m jetstream.Msg) {
		meta, err := m.Metadata()
		h := receivedEvent{kind: m.Headers().Get("ce-type"), id: m.Headers().Get("ce-id"),
			subject: m.Headers().Get("ce-subject"),
			attempt: m.Headers().Get("ce-attempt")}
		if err == nil {
			h.position = meta.Sequence.Stream
		}
		_ = json.Unmarshal(m.Data(), &h.data) // an event without fields is {}
		e.add(h)
	})
	require.NoError(s.t, err)
	s.t.Cleanup(consuming.Stop)
	return e
}

// tailWithWatermill returns a recorder that receives the events of account default through the
// Watermill bridge.
func (s *plane) tailWithWatermill() *recorder {
	s.t.Helper()
	subscriber, err := pubsub.NewSubscriber(s.reader(s.context, nil),
		pubsub.SubscriberConfig{Topics: pubsub.Events, Group: "watch"})
	require.NoError(s.t, err)
	messages, err := subscriber.Subscribe(context.Background(), "events.default.>")
	require.NoError(s.t, err)
	e := &recorder{}
	var reading sync.WaitGroup
	reading.Go(func() {
		for m := range messages {
			event, err := pubsub.EventOf(m)
			if err != nil {
				e.add(receivedEvent{kind: err.Error()})
			} else {
				e.add(receivedEvent{position: event.Position, id: event.ID, kind: event.Type, subject: string(event.Name)})
			}
			m.Ack()
		}
	})
	s.t.Cleanup(func() {
		_ = subscriber.Close() // the connection may be closed already
		reading.Wait()
	})
	return e
}
