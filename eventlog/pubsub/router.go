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

// Tasks is for publishers and subscribers of tasks, which are in a stream of their own for a month.
// One process executes each task.
var Tasks = Topics{Stream: "TASKS", Prefix: "tasks."}

const tasksKept = 30 * 24 * time.Hour

func EnsureTasks(ctx context.Context, js jetstream.JetStream, replicas int) error {
	return eventlog.EnsureStream(ctx, js, jetstream.StreamConfig{
		Name:        Tasks.Stream,
		Description: "Tasks, and in tasks.poison.> the messages whose handlers failed in every attempt",
		Subjects:    []string{Tasks.Prefix + ">"},
		Storage:     jetstream.FileStorage,
		Replicas:    max(1, replicas),
		MaxAge:      tasksKept,
		MaxMsgSize:  eventlog.MaxEvent,
		Duplicates:  time.Minute,
	}, replicas)
}

// RouterConfig configures timeouts and retries of handlers. Fields that are 0 have defaults.
type RouterConfig struct {
	Timeout        time.Duration // maximum duration of one attempt; 0 means 30 s
	MaxAttempts    int           // number of failed attempts after which a message becomes poison; 0 means 5
	InitialBackoff time.Duration // pause after the first attempt, doubled after each further one; 0 means 200 ms
	MaxBackoff     time.Duration // maximum pause between attempts; 0 means 10 s
	// time after which a message is redelivered: see SubscriberConfig.AckWait; 0 means 10 s
	AckWait      time.Duration
	CloseTimeout time.Duration // how long Close waits for running handlers; 0 means 10 s
	Log          *slog.Logger  // receives the messages of the Router; nil discards them
}

func (c *RouterConfig) setDefaults() {
	set := func(d *time.Duration, value time.Duration) {
		if *d <= 0 {
			*d = value
		}
	}
	set(&c.Timeout, 30*time.Second)
	set(&c.InitialBackoff, 200*time.Millisecond)
	set(&c.MaxBackoff, 10*time.Second)
	set(&c.AckWait, 10*time.Second)
	set(&c.CloseTimeout, 10*time.Second)
	if c.MaxAttempts <= 0 {
		c.MaxAttempts = 5
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// A Router calls handlers with Watermill messages. An error or panic of a handler makes the Router
// retry the message after a pause. After the last attempt, the message becomes poison: it is
// acknowledged and published to the subject tasks.poison.<handler> of the stream TASKS.
type Router struct {
	*message.Router
	nc     *nats.Conn
	poison *Publisher
	config RouterConfig
}

// NewRouter returns a Router without handlers. The caller adds handlers and then calls Run.
func NewRouter(nc *nats.Conn, config RouterConfig) (*Router, error) {
	config.setDefaults()
	inner, err := message.NewRouter(message.RouterConfig{CloseTimeout: config.CloseTimeout},
		watermill.NewSlogLogger(config.Log))
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	poison, err := NewPublisher(nc, Tasks)
	if err != nil {
		return nil, err
	}
	return &Router{inner, nc, poison, config}, nil
}

// HandleEvents calls handler with each event that matches a filter, from the beginning of the log,
// at least once and not always in order. When several processes have a handler with this name, one
// of them receives each event.
//
// onPoison may be nil. Otherwise it is called with an event whose last attempt failed, before the
// event is published as poison. When onPoison fails, the attempts begin again.
func HandleEvents(r *Router, name, filter string, handler func(context.Context, eventlog.Event) error,
	onPoison func(context.Context, eventlog.Event, error) error) error {
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

func (r *Router) handle(name string, from Topics, topic string, handler func(*message.Message) error,
	onPoison func(*message.Message, error) error) error {
	subscriber, err := NewSubscriber(r.nc,
		SubscriberConfig{Topics: from, Durable: name, AckWait: r.config.AckWait, CloseTimeout: r.config.CloseTimeout,
			synced: from.Stream == eventlog.Stream})
	if err != nil {
		return err
	}
	retry := middleware.Retry{
		MaxRetries: r.config.MaxAttempts - 1, InitialInterval: r.config.InitialBackoff, MaxInterval: r.config.MaxBackoff,
		Multiplier: 2, RandomizationFactor: 0.2, ResetContextOnRetry: true,
	}
	r.AddConsumerHandler(name, topic, subscriber, handler).AddMiddleware(
		r.publishPoison(name, onPoison), retry.Middleware, middleware.Recoverer, middleware.Timeout(r.config.Timeout))
	return nil
}

// maxReason is the maximum length in bytes of the error message that is stored with a poison
// message.
const maxReason = 4 << 10

// publishPoison returns a middleware for handlers: when the last attempt with a message has failed,
// it publishes the message as poison. When the attempt failed because the router is closing, it
// nacks the message instead, so that the message is redelivered.
func (r *Router) publishPoison(name string, onPoison func(*message.Message, error) error) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(m *message.Message) ([]*message.Message, error) {
			ctx := m.Context()
			produced, err := next(m)
			if err == nil || ctx.Err() != nil {
				return produced, err
			}
			m.SetContext(ctx)
			r.config.Log.Error("a handler failed in every attempt with a message: publishing the message to tasks.poison; "+
				"it is not handled again", "handler", name, "message",
				m.UUID, "error", err)
			if onPoison != nil {
				if reportErr := onPoison(m, err); reportErr != nil {
					return nil, errors.Join(err, reportErr)
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
