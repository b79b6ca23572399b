package pubsub_test

import (
	"anneal/eventlog"
	"anneal/eventlog/logtest"
	"anneal/eventlog/pubsub"
	"anneal/eventlog/servertest"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func quickRouter(t testing.TB, nc *nats.Conn) *pubsub.Router {
	r, err := pubsub.NewRouter(nc,
		pubsub.RouterConfig{Timeout: 5 * time.Second, MaxAttempts: 3, InitialBackoff: time.Millisecond,
			MaxBackoff: 2 * time.Millisecond, CloseTimeout: 5 * time.Second})
	require.NoError(t, err)
	return r
}

// run starts a router, which runs until the test ends, and returns when the router is running.
func run(t testing.TB, r *pubsub.Router) {
	done := make(chan error, 1)
	go func() { done <- r.Run(context.Background()) }()
	select {
	case <-r.Running():
	case err := <-done:
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		assert.NoError(t, r.Close())
		assert.NoError(t, <-done)
	})
}

func publishTasks(t testing.TB, nc *nats.Conn, topic string, ids ...string) {
	p, err := pubsub.NewPublisher(nc, pubsub.Tasks)
	require.NoError(t, err)
	for _, id := range ids {
		require.NoError(t, p.Publish(topic, message.NewMessage(id, []byte(`{}`))))
	}
}

func TestTasksAreRetriedAndThenPoison(t *testing.T) {
	tests := []struct {
		name   string
		handle func(try int) error
		tries  int
		poison string
	}{
		{"succeeds", func(int) error { return nil }, 1, ""},
		{"fails-once", func(try int) error {
			if try == 1 {
				return errors.New("not yet")
			}
			return nil
		}, 2, ""},
		{"panics-once", func(try int) error {
			if try == 1 {
				panic("oh")
			}
			return nil
		}, 2, ""},
		{"always-fails", func(int) error { return errors.New("never") }, 3, "never"},
		{"always-panics", func(int) error { panic("oh no") }, 3, "oh no"},
		{"fails-at-length", func(int) error { return errors.New(strings.Repeat("x", 1<<20)) }, 3, "xxx"},
	}
	s := servertest.Start(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := quickRouter(t, s.Control())
			tries := 0
			var reported error
			over := make(chan string, 2)
			handle := func(m *message.Message) error {
				if m.UUID == "mark" {
					over <- ""
					return nil
				}
				if _, limited := m.Context().Deadline(); !limited {
					return errors.New("no deadline")
				}
				tries++
				return test.handle(tries)
			}
			require.NoError(t, r.Handle(test.name, pubsub.Tasks, test.name, handle,
				func(_ *message.Message, err error) error { reported = err; return nil }))
			poison := func(m *message.Message) error {
				over <- m.UUID + ": " + m.Metadata.Get(middleware.ReasonForPoisonedKey)
				return nil
			}
			require.NoError(t, r.Handle("inspector-"+test.name, pubsub.Tasks, "poison."+test.name, poison, nil))
			publishTasks(t, s.Control(), test.name, "task")
			if test.poison == "" {
				publishTasks(t, s.Control(), test.name, "mark")
			}
			run(t, r)
			reason := <-over
			assert.Equal(t, test.tries, tries)
			if test.poison == "" {
				assert.Empty(t, reason)
				assert.NoError(t, reported)
				return
			}
			assert.True(t, strings.HasPrefix(reason, "task: "), reason)
			assert.Contains(t, reason, test.poison)
			assert.LessOrEqual(t, len(reason), pubsub.MaxReason+len("task: "))
			assert.ErrorContains(t, reported, test.poison)
		})
	}
}

func TestTimeoutEndsAnAttempt(t *testing.T) {
	s := servertest.Start(t)
	r, err := pubsub.NewRouter(s.Control(),
		pubsub.RouterConfig{Timeout: 20 * time.Millisecond, MaxAttempts: 2, InitialBackoff: time.Millisecond})
	require.NoError(t, err)
	reported := make(chan error, 1)
	require.NoError(t, r.Handle("slow", pubsub.Tasks, "slow", func(m *message.Message) error {
		<-m.Context().Done()
		return m.Context().Err()
	}, func(_ *message.Message, err error) error { reported <- err; return nil }))
	publishTasks(t, s.Control(), "slow", "task")
	run(t, r)
	assert.ErrorIs(t, <-reported, context.DeadlineExceeded)
}

func TestHandleEvents(t *testing.T) {
	s := servertest.Start(t)
	const events = 60
	type seen struct {
		process int
		eventlog.Event
	}
	all := make(chan seen, 2*events)
	poisoned := make(chan eventlog.Event, events)
	for process := range 2 {
		r := quickRouter(t, s.Control())
		require.NoError(t, pubsub.HandleEvents(r, "audit", "events.acme.counters.*",
			func(_ context.Context, e eventlog.Event) error {
				if e.Name == logtest.Name("e7") {
					return errors.New("never seven")
				}
				all <- seen{process, e}
				return nil
			}, func(_ context.Context, e eventlog.Event, err error) error {
				assert.ErrorContains(t, err, "never seven")
				poisoned <- e
				return nil
			}))
		run(t, r)
	}
	written := map[uint64]eventlog.Event{}
	for i := range events {
		w := logtest.Write(fmt.Sprint("e", i), 0)
		w.Actor = "Zoë 100%"
		w.Position = logtest.Append(t, s.Log(), w)
		written[w.Position] = w.Event
	}
	assert.Equal(t, logtest.Name("e7"), (<-poisoned).Name)
	got := map[uint64]eventlog.Event{}
	for len(got) < events-1 {
		e := <-all
		got[e.Position] = e.Event
	}
	delete(written, 8)
	assert.Equal(t, written, got)
}

func TestCloseUnderLoadLosesNothing(t *testing.T) {
	s := servertest.Start(t)
	const tasks = 600
	var ids []string
	for i := range tasks {
		ids = append(ids, strconv.Itoa(i))
	}
	publishTasks(t, s.Control(), "load", ids...)
	var mu sync.Mutex
	done := map[string]int{}
	whole := make(chan struct{})
	begin := func(enough int) (*pubsub.Router, chan struct{}) {
		r := quickRouter(t, s.Control())
		reached := make(chan struct{})
		count := 0
		for i := range 4 { // the four subscriptions share one consumer
			handler := fmt.Sprint("load-", i)
			sub, err := pubsub.NewSubscriber(s.Control(),
				pubsub.SubscriberConfig{Topics: pubsub.Tasks, Durable: "load", Prefetch: 8})
			require.NoError(t, err)
			r.AddConsumerHandler(handler, "load", sub, func(m *message.Message) error {
				mu.Lock()
				if count++; count == enough {
					close(reached)
				}
				if count >= enough { // this handler stays in progress until the router closes
					mu.Unlock()
					<-m.Context().Done()
					return m.Context().Err()
				}
				defer mu.Unlock()
				if done[m.UUID]++; len(done) == tasks && done[m.UUID] == 1 {
					close(whole)
				}
				return nil
			})
		}
		return r, reached
	}
	for range 5 {
		r, reached := begin(50)
		ended := make(chan error, 1)
		go func() { ended <- r.Run(context.Background()) }()
		<-reached
		require.NoError(t, r.Close(), "while messages are in progress")
		require.NoError(t, <-ended)
	}
	last, _ := begin(1 << 30)
	run(t, last)
	<-whole
	mu.Lock()
	defer mu.Unlock()
	assert.Len(t, done, tasks)
	twice := 0
	for _, times := range done {
		if times > 1 {
			twice++
		}
	}
	assert.Less(t, twice, tasks/10, "nearly all run only once")
}

func TestMessagesInProgressAreNotRedelivered(t *testing.T) {
	s := servertest.Start(t)
	config := pubsub.SubscriberConfig{Topics: pubsub.Tasks, Group: "g", AckWait: 1500 * time.Millisecond}
	one, err := pubsub.NewSubscriber(s.Control(), config)
	require.NoError(t, err)
	other, err := pubsub.NewSubscriber(s.Control(), config)
	require.NoError(t, err)
	publishTasks(t, s.Control(), "long", "task")
	heartbeats, err := s.Control().SubscribeSync("$JS.ACK.TASKS.>")
	require.NoError(t, err)

	held := <-subscribe(t, one, "long")
	idle := subscribe(t, other, "long")
	for range 4 { // 4 × 500 ms is 2 s, longer than AckWait
		heartbeat, err := heartbeats.NextMsgWithContext(t.Context())
		require.NoError(t, err)
		require.Equal(t, "+WPI", string(heartbeat.Data))
	}
	held.Ack()
	ack, err := heartbeats.NextMsgWithContext(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "+ACK", string(ack.Data))
	publishTasks(t, s.Control(), "long", "next")
	select {
	case m := <-idle:
		assert.Equal(t, "next", m.UUID)
		m.Ack()
	case <-t.Context().Done():
	}
	require.NoError(t, one.Close())
	require.NoError(t, other.Close())
	_, err = one.Subscribe(t.Context(), "long")
	assert.ErrorIs(t, err, pubsub.ErrClosed)
}

func subscribe(t testing.TB, s *pubsub.Subscriber, topic string) <-chan *message.Message {
	messages, err := s.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	return messages
}

func TestMetadataCannotForgeHeaders(t *testing.T) {
	s := servertest.Start(t)
	p, err := pubsub.NewPublisher(s.Control(), pubsub.Tasks)
	require.NoError(t, err)
	for _, key := range []string{"", "Nats-Rollup", "nats-expected-last-sequence", "a b", "a:b", "a\r\nb"} {
		m := message.NewMessage("x", nil)
		m.Metadata.Set(key, "1")
		assert.ErrorContains(t, p.Publish("x", m), "invalid metadata key", "%q", key)
	}
	require.NoError(t, p.Close())
	assert.ErrorIs(t, p.Publish("x", message.NewMessage("x", nil)), pubsub.ErrClosed)
}
