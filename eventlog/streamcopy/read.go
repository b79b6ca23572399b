// Package streamcopy copies a JetStream stream. It reads the messages of one stream as they are
// stored, and publishes them to an empty stream at the same positions.
package streamcopy

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/eventlog"
	"anneal/eventlog/integrity"
)

// A Message is a message of a JetStream stream, with its position in the stream.
type Message struct {
	Position uint64      `json:"p"`
	Subject  string      `json:"s"`
	Header   nats.Header `json:"h"`
	Data     []byte      `json:"d"`
}

// Event returns the event that a message of the log contains.
func (m Message) Event() (eventlog.Event, error) {
	return eventlog.Decode(m.Subject, m.Header, m.Data, m.Position)
}

// Extend adds the event that a message of the log contains to a hash chain.
func (m Message) Extend(chain *integrity.HashChain) error {
	return chain.Extend(integrity.MessageOf(m.Position, m.Subject, m.Header, m.Data))
}

// Time returns the time of the CloudEvent in the message; zero when it contains none.
func (m Message) Time() time.Time {
	at, _ := time.Parse(time.RFC3339Nano, eventlog.HeaderValue(m.Header, "ce-time"))
	return at
}

const readTimeout = 30 * time.Second // maximum time until the next message arrives

// Read yields the messages of a stream after the position cursor, up to last. Positions may be
// missing, also the last ones: the stream has deleted messages that expired.
func Read(ctx context.Context, nc *nats.Conn, stream string, cursor, last uint64) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		fail := func(err error) {
			yield(Message{}, fmt.Errorf("read stream %s after position %d: %w", stream, cursor, err))
		}
		if cursor >= last {
			return
		}
		messages, pending, err := consume(ctx, nc, stream, cursor)
		if err != nil {
			fail(err)
			return
		}
		defer messages.Stop()
		for cursor < last && pending > 0 {
			var next Message
			if next, pending, err = nextMessage(ctx, messages); err != nil {
				fail(err)
				return
			}
			if next.Position > last {
				return
			}
			if cursor = next.Position; !yield(next, nil) {
				return
			}
		}
	}
}

// consume returns the messages of a stream after the position cursor, and how many there are.
func consume(ctx context.Context, nc *nats.Conn, stream string, cursor uint64) (messages jetstream.MessagesContext,
	pending uint64, err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, 0, err
	}
	consumer, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: cursor + 1})
	if err != nil {
		return nil, 0, err
	}
	messages, err = consumer.Messages()
	return messages, consumer.CachedInfo().NumPending, err
}

// nextMessage returns the next message, and how many messages the stream has after it.
func nextMessage(ctx context.Context, from jetstream.MessagesContext) (next Message, pending uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	m, err := from.Next(jetstream.NextContext(ctx))
	if err != nil {
		return Message{}, 0, err
	}
	meta, err := m.Metadata()
	if err != nil {
		return Message{}, 0, err
	}
	header := nats.Header{}
	for name, values := range m.Headers() {
		// headers of the NATS server concern the publishing of the message, not its content
		if !strings.HasPrefix(name, "Nats-") {
			header[name] = values
		}
	}
	return Message{meta.Sequence.Stream, m.Subject(), header, m.Data()}, meta.NumPending, nil
}

// A State describes a stream. Its positions begin at 1 when it is created, so a position has a
// meaning only together with the time of the creation.
type State struct {
	Created time.Time // to the millisecond
	// Last is the position of the newest message that the stream ever had, which it may have deleted.
	Last uint64
}

// StateOf returns the state of a stream; the zero State when the stream does not exist.
func StateOf(ctx context.Context, nc *nats.Conn, stream string) (State, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return State{}, err
	}
	s, err := js.Stream(ctx, stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return State{}, nil
	}
	if err != nil {
		return State{}, fmt.Errorf("look up stream %s: %w", stream, err)
	}
	info := s.CachedInfo()
	return State{info.Created.UTC().Truncate(time.Millisecond), info.State.LastSeq}, nil
}

// Last returns the field Last of StateOf.
func Last(ctx context.Context, nc *nats.Conn, stream string) (uint64, error) {
	state, err := StateOf(ctx, nc, stream)
	return state.Last, err
}
