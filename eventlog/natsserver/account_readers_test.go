package natsserver

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/integrity"
	"anneal/eventlog/logtest"
	"anneal/eventlog/metering"
	"anneal/eventlog/pubsub"
)

// startWithReaders starts a server that accepts the reader ACCOUNT.ID for every account and ID,
// such as acme.r1.
func startWithReaders(t testing.TB, change ...func(*Options)) *Server {
	return start(t, append([]func(*Options){func(o *Options) {
		o.VerifyReader = func(_ context.Context, user, password string) (Reader, bool) {
			account, id, _ := strings.Cut(user, ".")
			return Reader{Account: account, ID: id}, password == tokenOf(user)
		}
	}}, change...)...)
}

func accountReader(t testing.TB, s *Server, user string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	return connect(t, s.URL(), append([]nats.Option{nats.UserInfo(user, tokenOf(user))}, opts...)...)
}

// of returns the write of the first event of a new counter of an account.
func of(account, id string) eventlog.Write {
	w := logtest.Write(id, 0)
	w.Name = domain.NewName(account, logtest.Counters.Collection, id)
	return w
}

func TestAccountReadersReadTheirEvents(t *testing.T) {
	s := startWithReaders(t)
	var want []uint64
	for i := range 30 {
		position := logtest.Append(t, s.Log(), of([]string{"acme", "other", "acme-2"}[i%3], fmt.Sprint("c", i)))
		if i%3 == 0 {
			want = append(want, position)
		}
	}
	nc := accountReader(t, s, "acme.r1")
	js := jetstreamOf(t, nc)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	consumers := map[string]func() (jetstream.Consumer, error){
		"ordered": func() (jetstream.Consumer, error) {
			return js.OrderedConsumer(ctx, eventlog.Stream, jetstream.OrderedConsumerConfig{})
		},
		"durable": func() (jetstream.Consumer, error) {
			return js.CreateOrUpdateConsumer(ctx, eventlog.Stream,
				jetstream.ConsumerConfig{Durable: "d", AckPolicy: jetstream.AckExplicitPolicy})
		},
	}
	for what, consumer := range consumers {
		t.Run(what, func(t *testing.T) {
			c, err := consumer()
			require.NoError(t, err)
			messages, err := c.Messages()
			require.NoError(t, err)
			defer messages.Stop()
			next := func() eventlog.Event {
				m, err := messages.Next(jetstream.NextContext(ctx))
				require.NoError(t, err)
				_ = m.Ack()
				e, err := eventIn(m)
				require.NoError(t, err)
				require.Equal(t, "acme", e.Name.Account())
				return e
			}
			for _, position := range want {
				require.Equal(t, position, next().Position, "the mirror has the log's positions")
			}
			w := of("acme", "live-"+what)
			logtest.Append(t, s.Log(), of("other", "live-"+what))
			position := logtest.Append(t, s.Log(), w)
			live := next()
			require.Equal(t, w.ID, live.ID)
			require.Equal(t, position, live.Position)
			want = append(want, position)
		})
	}
	stream, err := js.Stream(ctx, eventlog.Stream)
	require.NoError(t, err)
	m, err := stream.GetMsg(ctx, want[2])
	require.NoError(t, err)
	assert.Equal(t, want[2], m.Sequence)
	_, err = stream.GetMsg(ctx, want[2]+1)
	require.ErrorIs(t, err, jetstream.ErrMsgNotFound, "another account's")
}

func TestAccountReadersReadTheirUsage(t *testing.T) {
	s := startWithReaders(t)
	meter := meterOf(t, s, t.TempDir(), slog.New(slog.DiscardHandler))
	for _, account := range []string{"other", "acme", "other", "acme"} {
		require.NoError(t, meter.Record(usageOf(account, metering.Chat)))
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	require.NoError(t, meter.Drain(ctx))
	c, err := jetstreamOf(t, accountReader(t, s, "acme.r1")).OrderedConsumer(ctx, metering.Stream,
		jetstream.OrderedConsumerConfig{})
	require.NoError(t, err)
	messages, err := c.Messages()
	require.NoError(t, err)
	defer messages.Stop()
	for _, position := range []uint64{2, 4} {
		m, err := messages.Next(jetstream.NextContext(ctx))
		require.NoError(t, err)
		require.Equal(t, "usage.acme.chat", m.Subject())
		meta, err := m.Metadata()
		require.NoError(t, err)
		require.Equal(t, position, meta.Sequence.Stream)
	}
}

func TestAccountReadersSubscribeWithWatermill(t *testing.T) {
	s := startWithReaders(t, func(o *Options) { o.NoSync = false }) // a reader cannot request the disk sync
	var want []string
	for i, account := range []string{"acme", "other", "acme"} {
		w := of(account, fmt.Sprint("c", i))
		logtest.Append(t, s.Log(), w)
		if account == "acme" {
			want = append(want, w.ID)
		}
	}
	subscriber, err := pubsub.NewSubscriber(accountReader(t, s, "acme.r1"),
		pubsub.SubscriberConfig{Topics: pubsub.Events, Group: "g"})
	require.NoError(t, err)
	defer subscriber.Close()
	messages, err := subscriber.Subscribe(t.Context(), "events.acme.>")
	require.NoError(t, err)
	for _, id := range want {
		m := <-messages
		e, err := pubsub.EventOf(m)
		require.NoError(t, err)
		require.Equal(t, id, e.ID)
		m.Ack()
	}
}

// TestAnAccountsMirrorThatIsAheadIsRecreated checks that readers of an account can connect when the
// log lost events that its mark does not require: the account's mirror, which has these events, is
// created again.
func TestAnAccountsMirrorThatIsAheadIsRecreated(t *testing.T) {
	dir := t.TempDir()
	s := startWithReaders(t, func(o *Options) { o.Dir = dir })
	for i := range 5 {
		logtest.Append(t, s.Log(), of("acme", fmt.Sprint("old", i)))
	}
	reader, err := eventlog.OpenReader(t.Context(), accountReader(t, s, "acme.r1"))
	require.NoError(t, err)
	for last := (eventlog.Checkpoint{}); last.Position < 5; {
		last, err = reader.Last(t.Context())
		require.NoError(t, err)
	}
	s.Close()
	for _, account := range []string{"CONTROL", "READERS"} {
		require.NoError(t, os.RemoveAll(filepath.Dir(integrity.BlockDir(dir, account, eventlog.Stream))))
	}
	s = startWithReaders(t, func(o *Options) { o.Dir = dir })
	w := of("acme", "new")
	logtest.Append(t, s.Log(), w)
	reader, err = eventlog.OpenReader(t.Context(), accountReader(t, s, "acme.r1"))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	for e, err := range reader.Follow(ctx, "", 0) {
		require.NoError(t, err)
		require.Equal(t, w.ID, e.ID)
		break
	}
}
