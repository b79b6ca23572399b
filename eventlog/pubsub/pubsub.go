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

// Topics maps the topics of a Watermill Publisher or Subscriber to subjects of a JetStream stream:
// a topic's subject is Prefix+topic.
type Topics struct {
	Stream string
	Prefix string
}

// Events is for subscribers to the log. A topic is a NATS subject of events, or a filter such as
// events.acme.>.
var Events = Topics{Stream: eventlog.Stream}

// MetadataPosition is the key of the message metadata with the message's position in its stream.
const MetadataPosition = "position"

// ErrClosed is returned by a Publisher or Subscriber after Close.
var ErrClosed = errors.New("eventlog: the publisher or subscriber is closed")

// A Publisher publishes Watermill messages to a JetStream stream. The UUID and the metadata of a
// message become NATS headers.
type Publisher struct {
	js     jetstream.JetStream
	topics Topics
	closed atomic.Bool
}

// NewPublisher returns a Publisher to a stream, which must exist.
func NewPublisher(nc *nats.Conn, topics Topics) (*Publisher, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	return &Publisher{js: js, topics: topics}, nil
}

// Publish stores messages in order and returns when all are stored. After an error, the message
// that failed may be stored, and those after it are not. The stream drops a message with the same
// UUID for a minute.
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

// Close makes later calls of Publish fail. It leaves the NATS connection open, because the caller
// owns it.
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

// SubscriberConfig configures how subscribers share messages and when messages are redelivered.
// Group or Durable is required. Other fields have defaults.
type SubscriberConfig struct {
	Topics
	Group   string // name of a group of subscribers; each message of a topic goes to one of them
	Durable string // name of the JetStream consumer; "" derives the name from Group and topic
	// AckWait is the time after which a message is redelivered when its process does not respond. 0
	// means 30 s.
	AckWait time.Duration
	// number of messages that a subscriber requests in advance; 0 means 1
	Prefetch int
	// delay of the redelivery after a nack; nil means 100 ms, doubled each time up to 30 s
	NackDelay    func(deliveries uint64) time.Duration
	CloseTimeout time.Duration // how long Close waits for handlers; 0 means 5 s
	// synced delays a message until it is synced to disk. That needs a connection into the NATS
	// account CONTROL.
	synced bool
}

func (c *SubscriberConfig) setDefaults() error {
	if c.Group == "" && c.Durable == "" {
		return errors.New("eventlog: SubscriberConfig needs Group or Durable as the name of the JetStream consumer")
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

// A Subscriber is a Watermill subscriber on a durable pull consumer. The NATS server keeps the
// consumer's position, and several processes can share the consumer. A message is not redelivered
// while the process that handles it runs.
type Subscriber struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	config  SubscriberConfig
	closing context.Context
	close   context.CancelFunc
	mu      sync.Mutex // guards closed, so that Subscribe adds nothing to running after Close began to wait
	running sync.WaitGroup
}

// NewSubscriber returns a Subscriber to a stream, which must exist.
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

// SubscribeInitialize creates the consumer of the group and topic, or updates its configuration. A
// new consumer begins at the first message of the topic.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	return s.ensure(s.closing, topic)
}

// Subscribe returns a channel of the topic's messages. The next message is delivered when the
// previous one is acked or nacked. Subscribe returns an error when the NATS servers refuse the
// topic, or when ctx is done. When the servers have no quorum, it returns the channel, and messages
// arrive once they have one.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Err() != nil {
		return nil, ErrClosed
	}
	if err := s.ensure(ctx, topic); err != nil && (ctx.Err() != nil || refused(err)) {
		return nil, err // after other errors, the puller creates the consumer when the servers respond
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

// Close ends all subscriptions. It cancels the contexts of the messages in progress and waits up to
// CloseTimeout for their handlers. Messages that are not acked then are redelivered to other
// subscribers.
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

// ensure creates the consumer of the group and topic, or updates its configuration.
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

// refused reports whether err is a response of the NATS servers that would not change after a
// retry.
func refused(err error) bool {
	var response *jetstream.APIError
	return errors.As(err, &response) && response.Code < 500
}

// deliver sends messages to out until ctx is done. It then releases the messages that were
// requested in advance, so that they are redelivered immediately.
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

// deliverOne sends one message to out, waits until it is acked or nacked, and sends the result to
// the NATS server.
func (s *Subscriber) deliverOne(ctx context.Context, m *nats.Msg, out chan<- *message.Message) {
	meta, err := m.Metadata()
	if err != nil {
		return
	}
	if s.config.synced && eventlog.RequestLogSync(ctx, s.nc, meta.Sequence.Stream) != nil {
		// the event is not on disk yet, so no handler may receive it
		_ = m.NakWithDelay(s.config.NackDelay(meta.NumDelivered))
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
				_ = m.Nak() // redeliver the message immediately to another process
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

// EventOf returns the event in a message from a Subscriber of Events.
func EventOf(m *message.Message) (eventlog.Event, error) {
	header := make(nats.Header, len(m.Metadata))
	for key, value := range m.Metadata {
		header[key] = []string{eventlog.EscapeHeader(value)}
	}
	position, err := strconv.ParseUint(m.Metadata.Get(MetadataPosition), 10, 64)
	if err != nil {
		return eventlog.Event{}, fmt.Errorf("read the position of event %s from the message's metadata: %w", m.UUID, err)
	}
	return eventlog.Decode(domain.Name(m.Metadata.Get(eventlog.HeaderSubject)).Subject(), header, m.Payload, position)
}
