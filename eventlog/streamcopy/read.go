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
// missing.
func Read(ctx context.Context, nc *nats.Conn, stream string, cursor, last uint64) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		fail := func(err error) {
			yield(Message{}, fmt.Errorf("read stream %s after position %d: %w", stream, cursor, err))
		}
		if cursor >= last {
			return
		}
		messages, err := consume(ctx, nc, stream, cursor)
		if err != nil {
			fail(err)
			return
		}
		defer messages.Stop()
		for cursor < last {
			next, err := nextMessage(ctx, messages)
			if err != nil {
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

func consume(ctx context.Context, nc *nats.Conn, stream string, after uint64) (jetstream.MessagesContext, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	consumer, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: after + 1})
	if err != nil {
		return nil, err
	}
	return consumer.Messages()
}

func nextMessage(ctx context.Context, from jetstream.MessagesContext) (Message, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	m, err := from.Next(jetstream.NextContext(ctx))
	if err != nil {
		return Message{}, err
	}
	meta, err := m.Metadata()
	if err != nil {
		return Message{}, err
	}
	header := nats.Header{}
	for name, values := range m.Headers() {
		// headers of the NATS server concern the publishing of the message, not its content
		if !strings.HasPrefix(name, "Nats-") {
			header[name] = values
		}
	}
	return Message{meta.Sequence.Stream, m.Subject(), header, m.Data()}, nil
}

// Last returns the position of the newest message of a stream; 0 when the stream is empty or does
// not exist.
func Last(ctx context.Context, nc *nats.Conn, stream string) (uint64, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return 0, err
	}
	s, err := js.Stream(ctx, stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look up stream %s: %w", stream, err)
	}
	return s.CachedInfo().State.LastSeq, nil
}
