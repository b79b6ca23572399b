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

// Topics says where a Publisher and a Subscriber of Watermill find a topic: on
// the subject Prefix+topic of a stream.
type Topics struct {
	Stream string
	Prefix string
}

// Events are the events of the log; a topic is a filter: events.acme.>.
var Events = Topics{Stream: eventlog.Stream}

// MetadataPosition is the metadata key with the position of a message in the
// stream that it was first read from.
const MetadataPosition = "position"

// ErrClosed is the answer of a Publisher or Subscriber after its Close.
var ErrClosed = errors.New("eventlog: closed")

// A Publisher is Watermill's, over JetStream. A message is stored before
// Publish returns; its UUID and metadata become headers.
type Publisher struct {
	js     jetstream.JetStream
	topics Topics
	closed atomic.Bool
}

// NewPublisher publishes to topics of a stream that exists.
func NewPublisher(nc *nats.Conn, topics Topics) (*Publisher, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	return &Publisher{js: js, topics: topics}, nil
}

// Publish stores the messages in order. On an error the ones after it are not
// stored; the same message may be published again within a minute without
// being stored twice.
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
			return fmt.Errorf("eventlog: publishing to %s: %w", topic, err)
		}
	}
	return nil
}

// Close makes every later Publish fail. The connection stays open: it is the
// caller's.
func (p *Publisher) Close() error {
	p.closed.Store(true)
	return nil
}

func headerOf(m *message.Message) (nats.Header, error) {
	header := make(nats.Header, len(m.Metadata)+2)
	for key, value := range m.Metadata {
		if key == "" || strings.HasPrefix(strings.ToLower(key), "nats-") || strings.ContainsAny(key, ": \t\r\n") {
			return nil, fmt.Errorf("eventlog: the metadata key %q cannot be sent: it must not begin with nats-, be empty or hold spaces or colons", key)
		}
		header[key] = []string{eventlog.EscapeHeader(value)}
	}
	header[eventlog.HeaderID] = []string{eventlog.EscapeHeader(m.UUID)}
	return header, nil
}

// SubscriberConfig says how messages are shared and given again. Zero values
// are good, except that Group must be set.
type SubscriberConfig struct {
	Topics
	Group        string                                // subscribers of one group share a topic's messages
	Durable      string                                // name of the consumer; "" is made of Group and topic
	AckWait      time.Duration                         // before a silent process counts as gone; 0 is 30 s
	Prefetch     int                                   // messages a subscriber holds ready; 0 is 1
	NackDelay    func(deliveries uint64) time.Duration // nil doubles from 100 ms to 30 s
	CloseTimeout time.Duration                         // for handlers after their context ended; 0 is 5 s
	synced       bool                                  // events wait for the disk: only the control account can ask for that
}

func (c *SubscriberConfig) setDefaults() error {
	if c.Group == "" && c.Durable == "" {
		return errors.New("eventlog: a subscriber needs a group: its name is how it is found again")
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

// A Subscriber is Watermill's, over a durable pull consumer: its place is kept
// by the server, and several processes may share it. A message that is worked
// on is kept from others as long as its process lives.
type Subscriber struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	config  SubscriberConfig
	closing context.Context
	close   context.CancelFunc
	mu      sync.Mutex // orders Subscribe before Close's wait
	running sync.WaitGroup
}

// NewSubscriber subscribes to topics of a stream that exists.
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

// SubscribeInitialize makes the group's place on the topic, at its beginning.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	return s.ensure(s.closing, topic)
}

// Subscribe gives the topic's messages one after another: the next one when
// this one is acked or nacked.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Err() != nil {
		return nil, ErrClosed
	}
	if err := s.ensure(ctx, topic); err != nil {
		return nil, err
	}
	mend := func(ctx context.Context) error { return s.ensure(ctx, topic) }
	messages, err := newPuller(s.nc, s.config.Stream, s.durable(topic), s.config.Prefetch, mend)
	if err != nil {
		return nil, fmt.Errorf("eventlog: subscribing to %s: %w", topic, err)
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

// Close ends all subscriptions: the contexts of messages at work end, what is
// not acked in time is given to others. Acknowledgements are sent before it
// returns.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	s.close()
	s.mu.Unlock()
	s.running.Wait()
	if s.nc.IsClosed() {
		return nil
	}
	if err := s.nc.FlushTimeout(s.config.CloseTimeout); err != nil {
		return fmt.Errorf("eventlog: closing a subscriber: %w", err)
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

// ensure makes the consumer that keeps the group's place on the topic.
func (s *Subscriber) ensure(ctx context.Context, topic string) error {
	_, err := s.js.CreateOrUpdateConsumer(ctx, s.config.Stream, jetstream.ConsumerConfig{
		Durable:       s.durable(topic),
		FilterSubject: s.config.Prefix + topic,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       s.config.AckWait,
		MaxDeliver:    -1,
	})
	if err != nil {
		return fmt.Errorf("eventlog: subscribing to %s: %w", topic, err)
	}
	return nil
}

// deliver hands messages out until ctx ends, and gives back what is left.
func (s *Subscriber) deliver(ctx context.Context, messages *puller, out chan<- *message.Message) {
	defer messages.end()
	for {
		m, err := messages.next(ctx)
		if err != nil {
			return
		}
		s.hand(ctx, m, out)
	}
}

// hand sees one message through: out, then its ack or nack. An answer that is
// lost on the way means that the message comes again.
func (s *Subscriber) hand(ctx context.Context, m *nats.Msg, out chan<- *message.Message) {
	meta, err := m.Metadata()
	if err != nil {
		return
	}
	if s.config.synced && eventlog.RequestLogSync(ctx, s.nc, meta.Sequence.Stream) != nil {
		_ = m.NakWithDelay(s.config.NackDelay(meta.NumDelivered)) // no handler sees an event that is not on disk
		return
	}
	msg := messageOf(m, meta.Sequence.Stream)
	work, cancel := context.WithCancel(ctx)
	defer cancel()
	msg.SetContext(work)
	beat := time.NewTicker(s.config.AckWait / 3)
	defer beat.Stop()
	for handed := false; !handed; {
		select {
		case out <- msg:
			handed = true
		case <-beat.C:
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
				_ = m.Nak() // another process may have more luck at once
			} else {
				_ = m.NakWithDelay(s.config.NackDelay(meta.NumDelivered))
			}
			return
		case <-beat.C:
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

// EventOf is the event that a message from the log holds.
func EventOf(m *message.Message) (eventlog.Event, error) {
	header := make(nats.Header, len(m.Metadata))
	for key, value := range m.Metadata {
		header[key] = []string{eventlog.EscapeHeader(value)}
	}
	position, err := strconv.ParseUint(m.Metadata.Get(MetadataPosition), 10, 64)
	if err != nil {
		return eventlog.Event{}, fmt.Errorf("eventlog: the message %s has no position: %w", m.UUID, err)
	}
	return eventlog.Decode(domain.Name(m.Metadata.Get(eventlog.HeaderSubject)).Subject(), header, m.Payload, position)
}
