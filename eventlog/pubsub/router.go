package pubsub

import (
	"anneal/eventlog"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Tasks are small pieces of work that processes compete for, kept for a month.
var Tasks = Topics{Stream: "TASKS", Prefix: "tasks."}

const tasksKept = 30 * 24 * time.Hour

func EnsureTasks(ctx context.Context, js jetstream.JetStream, replicas int) error {
	return eventlog.EnsureStream(ctx, js, jetstream.StreamConfig{
		Name:        Tasks.Stream,
		Description: "Small pieces of work, and in tasks.poison.> those that would not succeed",
		Subjects:    []string{Tasks.Prefix + ">"},
		Storage:     jetstream.FileStorage,
		Replicas:    max(1, replicas),
		MaxAge:      tasksKept,
		MaxMsgSize:  eventlog.MaxEvent,
		Duplicates:  time.Minute,
	}, replicas)
}

// RouterConfig says how hard a handler tries. Zero values are good.
type RouterConfig struct {
	Timeout      time.Duration // of one try; 0 is 30 s
	Tries        int           // before a message is poison; 0 is 5
	FirstPause   time.Duration // between two tries, doubled each time; 0 is 200 ms
	LongestPause time.Duration // 0 is 10 s
	AckWait      time.Duration // before what a silent process works on is given to another; 0 is 10 s
	CloseTimeout time.Duration // for handlers at work when the router closes; 0 is 10 s
	Log          *slog.Logger  // nil is silence
}

func (c *RouterConfig) setDefaults() {
	set := func(d *time.Duration, value time.Duration) {
		if *d <= 0 {
			*d = value
		}
	}
	set(&c.Timeout, 30*time.Second)
	set(&c.FirstPause, 200*time.Millisecond)
	set(&c.LongestPause, 10*time.Second)
	set(&c.AckWait, 10*time.Second)
	set(&c.CloseTimeout, 10*time.Second)
	if c.Tries <= 0 {
		c.Tries = 5
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// A Router runs handlers of Watermill messages. A panic is an error; an error
// is tried again after a pause; what never succeeds goes to the stream TASKS,
// on tasks.poison.<handler>, and is done with.
type Router struct {
	*message.Router
	nc     *nats.Conn
	poison *Publisher
	config RouterConfig
}

// NewRouter makes a router without handlers. Add them, then Run it.
func NewRouter(nc *nats.Conn, config RouterConfig) (*Router, error) {
	config.setDefaults()
	inner, err := message.NewRouter(message.RouterConfig{CloseTimeout: config.CloseTimeout}, watermill.NewSlogLogger(config.Log))
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	poison, err := NewPublisher(nc, Tasks)
	if err != nil {
		return nil, err
	}
	return &Router{inner, nc, poison, config}, nil
}

// HandleEvents gives every event under a filter to handler, from the beginning
// of the log, at least once and not always in order; of all processes with a
// handler of this name one gets it. onPoison, if any, is told of an event that
// would not succeed before it is put aside; when it fails, all begins anew.
func HandleEvents(r *Router, name, filter string, handler func(context.Context, eventlog.Event) error, onPoison func(context.Context, eventlog.Event, error) error) error {
	handle := func(m *message.Message) error {
		e, err := EventOf(m)
		if err != nil {
			return err
		}
		return handler(m.Context(), e)
	}
	return r.handle(name, Events, eventlog.FilterOf(filter), handle, func(m *message.Message, cause error) error {
		if e, err := EventOf(m); err == nil && onPoison != nil {
			return onPoison(m.Context(), e, cause)
		}
		return nil
	})
}

func (r *Router) handle(name string, from Topics, topic string, handler func(*message.Message) error, onPoison func(*message.Message, error) error) error {
	subscriber, err := NewSubscriber(r.nc, SubscriberConfig{Topics: from, Durable: name, AckWait: r.config.AckWait, CloseTimeout: r.config.CloseTimeout,
		synced: from.Stream == eventlog.Stream})
	if err != nil {
		return err
	}
	retry := middleware.Retry{
		MaxRetries: r.config.Tries - 1, InitialInterval: r.config.FirstPause, MaxInterval: r.config.LongestPause,
		Multiplier: 2, RandomizationFactor: 0.2, ResetContextOnRetry: true,
	}
	r.AddConsumerHandler(name, topic, subscriber, handler).AddMiddleware(
		r.putAside(name, onPoison), retry.Middleware, middleware.Recoverer, middleware.Timeout(r.config.Timeout))
	return nil
}

// Bound of the reason that is kept with a poison message.
const maxReason = 4 << 10

// putAside publishes what would not succeed as poison. A try that ended only
// because the router closes is no failure: it is nacked, and made elsewhere.
func (r *Router) putAside(name string, onPoison func(*message.Message, error) error) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(m *message.Message) ([]*message.Message, error) {
			ctx := m.Context()
			produced, err := next(m)
			if err == nil || ctx.Err() != nil {
				return produced, err
			}
			m.SetContext(ctx)
			r.config.Log.Error("a message would not succeed and was put aside", "handler", name, "message", m.UUID, "error", err)
			if onPoison != nil {
				if told := onPoison(m, err); told != nil {
					return nil, errors.Join(err, told)
				}
			}
			reason := err.Error()
			aside := m.CopyWithContext()
			aside.Metadata.Set(middleware.ReasonForPoisonedKey, reason[:min(len(reason), maxReason)])
			aside.Metadata.Set(middleware.PoisonedHandlerKey, name)
			if err := r.poison.Publish("poison."+name, aside); err != nil {
				return nil, err
			}
			return nil, eventlog.RequestSync(ctx, r.nc, Tasks.Stream)
		}
	}
}
