package pubsub

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/domain"
	"anneal/eventlog"
)

// Topics maps the topics of a Watermill Publisher or Subscriber to subjects of the stream Stream:
// the subject of a topic is Prefix+topic.
type Topics struct {
	Stream string
	Prefix string
}

// Events maps topics to the events of the log. A topic is a subject or a filter, such as
// events.acme.>.
var Events = Topics{Stream: eventlog.Stream}

// MetadataPosition is the metadata key of a message's position in the stream from which it was
// read.
const MetadataPosition = "position"

// ErrClosed is returned by a Publisher or Subscriber after Close.
var ErrClosed = errors.New("eventlog: closed")

// A Publisher is a Watermill publisher on JetStream. The UUID and the metadata of a message become
// headers.
type Publisher struct {
	js     jetstream.JetStream
	topics Topics
	closed atomic.Bool
}

// NewPublisher returns a publisher to topics of an existing stream.
func NewPublisher(nc *nats.Conn, topics Topics) (*Publisher, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	return &Publisher{js: js, topics: topics}, nil
}

// Publish stores the messages in order and returns when they are stored. After an error, the failed
// message may be stored, and the messages after it are not. A message with the same UUID that is
// published again within a minute is not stored twice.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	for _, m := range messages {
		if p.closed.Load() {
			return ErrClosed
		}
		header, err := headerOf(m)
		if err != nil {
			return err
		}
		header[jetstream.MsgIDHeader] = []string{eventlog.EscapeHeader(m.UUID) + "@" + topic}
		out := &nats.Msg{Subject: p.topics.Prefix + topic, Header: header, Data: m.Payload}
		if _, err := p.js.PublishMsg(m.Context(), out, jetstream.WithExpectStream(p.topics.Stream)); err != nil {
			return fmt.Errorf("eventlog: publish to %s: %w", topic, err)
		}
	}
	return nil
}

// Close makes later calls of Publish fail. It does not close the connection, which the caller owns.
func (p *Publisher) Close() error {
	p.closed.Store(true)
	return nil
}

func headerOf(m *message.Message) (nats.Header, error) {
	header := make(nats.Header, len(m.Metadata)+2)
	for key, value := range m.Metadata {
		if key == "" || strings.HasPrefix(strings.ToLower(key), "nats-") || strings.ContainsAny(key, ": \t\r\n") {
			return nil, fmt.Errorf("eventlog: invalid metadata key %q: must not begin with nats-, be empty "+
				"or contain spaces or colons", key)
		}
		header[key] = []string{eventlog.EscapeHeader(value)}
	}
	header[eventlog.HeaderID] = []string{eventlog.EscapeHeader(m.UUID)}
	return header, nil
}

// SubscriberConfig configures how messages are shared and redelivered. Group or Durable is
// required. Zero values of other fields are replaced by defaults.
type SubscriberConfig struct {
	Topics
	Group   string // name of the group of subscribers that share a topic's messages
	Durable string // name of the consumer; "" derives it from Group and topic
	// AckWait is the time after which the messages of a process that does not respond are
	// redelivered. 0 is 30 s.
	AckWait      time.Duration
	Prefetch     int                                   // number of messages that a subscriber buffers; 0 is 1
	NackDelay    func(deliveries uint64) time.Duration // delay of redelivery after a nack; nil doubles 100 ms up to 30 s
	CloseTimeout time.Duration                         // how long Close waits for handlers; 0 is 5 s
	// synced makes events wait until they are on disk. Only the NATS account CONTROL can request
	// the sync.
	synced bool
}

func (c *SubscriberConfig) setDefaults() error {
	if c.Group == "" && c.Durable == "" {
		return errors.New("eventlog: a subscriber needs a Group or a Durable, which names its consumer")
	}
	if c.AckWait <= 0 {
		c.AckWait = 30 * time.Second
	}
	if c.Prefetch <= 0 {
		c.Prefetch = 1
	}
	if c.NackDelay == nil {
		c.NackDelay = func(deliveries uint64) time.Duration {
			return min(100*time.Millisecond<<min(deliveries-1, 10), 30*time.Second)
		}
	}
	if c.CloseTimeout <= 0 {
		c.CloseTimeout = 5 * time.Second
	}
	return nil
}

// A Subscriber is a Watermill subscriber on a durable pull consumer. The server keeps the position
// of the consumer, and several processes can share it. A message is not redelivered while the
// process that handles it is alive.
type Subscriber struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	config  SubscriberConfig
	closing context.Context
	close   context.CancelFunc
	mu      sync.Mutex // no Subscribe adds to running after Close began to wait
	running sync.WaitGroup
}

// NewSubscriber returns a subscriber to topics of an existing stream.
func NewSubscriber(nc *nats.Conn, config SubscriberConfig) (*Subscriber, error) {
	if err := config.setDefaults(); err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	s := &Subscriber{nc: nc, js: js, config: config}
	s.closing, s.close = context.WithCancel(context.Background())
	return s, nil
}

// SubscribeInitialize creates the group's consumer of the topic, or updates its configuration. A
// new consumer begins at the topic's first message.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	return s.ensure(s.closing, topic)
}

// Subscribe returns a channel with the topic's messages. It delivers a message when the previous
// one is acked or nacked. If the NATS servers have no quorum now, the messages arrive when they
// have one: Subscribe returns an error only if the servers refuse the topic, or if ctx is done.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Err() != nil {
		return nil, ErrClosed
	}
	if err := s.ensure(ctx, topic); err != nil && (ctx.Err() != nil || refused(err)) {
		return nil, err // after another error, the puller finds no consumer and creates it
	}
	recreate := func(ctx context.Context) error { return s.ensure(ctx, topic) }
	messages, err := newPuller(s.nc, s.config.Stream, s.durable(topic), s.config.Prefetch, recreate)
	if err != nil {
		return nil, fmt.Errorf("eventlog: subscribe to %s: %w", topic, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.closing, cancel)
	out := make(chan *message.Message)
	s.running.Go(func() {
		defer close(out)
		defer cancel()
		defer stop()
		s.deliver(ctx, messages, out)
	})
	return out, nil
}

// Close ends all subscriptions and cancels the contexts of messages in progress. Messages that are
// not acked within CloseTimeout are redelivered to other subscribers. Close returns after the
// acknowledgements are sent.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	s.close()
	s.mu.Unlock()
	s.running.Wait()
	if s.nc.IsClosed() {
		return nil
	}
	if err := s.nc.FlushTimeout(s.config.CloseTimeout); err != nil {
		return fmt.Errorf("eventlog: close a subscriber: %w", err)
	}
	return nil
}

func (s *Subscriber) durable(topic string) string {
	durable := s.config.Durable
	if durable == "" {
		durable = s.config.Group + "-" + topic
	}
	return strings.NewReplacer(".", "_", "*", "-any", ">", "-all", " ", "_", "/", "_", "\\", "_").Replace(durable)
}

// ensure creates the group's consumer of the topic, or updates its configuration.
func (s *Subscriber) ensure(ctx context.Context, topic string) error {
	_, err := s.js.CreateOrUpdateConsumer(ctx, s.config.Stream, jetstream.ConsumerConfig{
		Durable:       s.durable(topic),
		FilterSubject: s.config.Prefix + topic,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       s.config.AckWait,
		MaxDeliver:    -1,
	})
	if err != nil {
		return fmt.Errorf("eventlog: subscribe to %s: %w", topic, err)
	}
	return nil
}

// refused returns true if err is a response of the NATS servers that a repetition would not change.
func refused(err error) bool {
	var response *jetstream.APIError
	return errors.As(err, &response) && response.Code < 500
}

// deliver delivers messages to out until ctx is done. It then releases the buffered messages, so
// that they are redelivered immediately.
func (s *Subscriber) deliver(ctx context.Context, messages *puller, out chan<- *message.Message) {
	defer messages.end()
	for {
		m, err := messages.next(ctx)
		if err != nil {
			return
		}
		s.deliverOne(ctx, m, out)
	}
}

// deliverOne delivers one message to out, waits until the message is acked or nacked, and informs
// the server.
func (s *Subscriber) deliverOne(ctx context.Context, m *nats.Msg, out chan<- *message.Message) {
	meta, err := m.Metadata()
	if err != nil {
		return
	}
	if s.config.synced && eventlog.RequestLogSync(ctx, s.nc, meta.Sequence.Stream) != nil {
		_ = m.NakWithDelay(s.config.NackDelay(meta.NumDelivered)) // a handler must not receive an event that is not on disk
		return
	}
	msg := messageOf(m, meta.Sequence.Stream)
	work, cancel := context.WithCancel(ctx)
	defer cancel()
	msg.SetContext(work)
	heartbeat := time.NewTicker(s.config.AckWait / 3)
	defer heartbeat.Stop()
	for handed := false; !handed; {
		select {
		case out <- msg:
			handed = true
		case <-heartbeat.C:
			_ = m.InProgress()
		case <-ctx.Done():
			_ = m.Nak()
			return
		}
	}
	var late <-chan time.Time
	done := ctx.Done()
	for {
		select {
		case <-msg.Acked():
			_ = m.Ack()
			return
		case <-msg.Nacked():
			if ctx.Err() != nil {
				_ = m.Nak() // redeliver the message immediately, to another process
			} else {
				_ = m.NakWithDelay(s.config.NackDelay(meta.NumDelivered))
			}
			return
		case <-heartbeat.C:
			_ = m.InProgress()
		case <-done:
			done = nil
			timer := time.NewTimer(s.config.CloseTimeout)
			defer timer.Stop()
			late = timer.C
		case <-late:
			_ = m.Nak()
			return
		}
	}
}

func messageOf(m *nats.Msg, position uint64) *message.Message {
	msg := message.NewMessage(eventlog.HeaderValue(m.Header, eventlog.HeaderID), m.Data)
	msg.Metadata.Set(MetadataPosition, fmt.Sprint(position))
	for key := range m.Header {
		if !strings.HasPrefix(strings.ToLower(key), "nats-") {
			msg.Metadata.Set(key, eventlog.HeaderValue(m.Header, key))
		}
	}
	return msg
}

// EventOf returns the event in a message that a Subscriber of Events delivered.
func EventOf(m *message.Message) (eventlog.Event, error) {
	header := make(nats.Header, len(m.Metadata))
	for key, value := range m.Metadata {
		header[key] = []string{eventlog.EscapeHeader(value)}
	}
	position, err := strconv.ParseUint(m.Metadata.Get(MetadataPosition), 10, 64)
	if err != nil {
		return eventlog.Event{}, fmt.Errorf("eventlog: message %s has no position: %w", m.UUID, err)
	}
	return eventlog.Decode(domain.Name(m.Metadata.Get(eventlog.HeaderSubject)).Subject(), header, m.Payload, position)
}
