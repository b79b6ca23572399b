package natsserver

import (
	"anneal/eventlog"
	"anneal/eventlog/logtest"
	"anneal/eventlog/metering"
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

var usageTime = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func usageOf(account, kind string) metering.Record {
	return metering.Record{Time: usageTime, Request: "r-1", Kind: kind, Account: account, Key: "accounts/acme/apiKeys/k1", Deployment: "accounts/acme/deployments/d1",
		Model: "speech-v3", Complete: true, AudioSeconds: 2.5}
}

func TestReadersReadUsage(t *testing.T) {
	s := start(t)
	meter, err := metering.NewMeter(s.control, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.NoError(t, meter.Record(usageOf("acme", metering.Transcription)))
	require.NoError(t, meter.Record(usageOf("other", metering.Chat)))
	require.ErrorContains(t, meter.Record(usageOf("*", metering.Chat)), "needs an account")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, meter.Close(ctx))

	errs := make(chan error, 16)
	reader := readerOf(t, s, errs)
	consumer, err := jetstreamOf(t, reader).OrderedConsumer(ctx, metering.Stream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{"usage.acme.>"}})
	require.NoError(t, err)
	messages, err := consumer.Messages(jetstream.PullMaxMessages(10))
	require.NoError(t, err)
	defer messages.Stop()
	m, err := messages.Next(jetstream.NextContext(ctx))
	require.NoError(t, err)
	require.Equal(t, "usage.acme.transcription", m.Subject())
	for header, want := range map[string]string{
		"ce-specversion": "1.0", "ce-type": "usage.recorded.v1", "ce-source": "anneal", "ce-subject": "accounts/acme/deployments/d1",
		"ce-time": usageTime.UTC().Format(time.RFC3339Nano), "ce-actor": "accounts/acme/apiKeys/k1", "ce-correlation": "r-1", "content-type": "application/json",
	} {
		require.Equal(t, want, m.Headers().Get(header), header)
	}
	require.NotEmpty(t, m.Headers().Get("ce-id"))
	require.JSONEq(t, `{"kind": "transcription", "account": "acme", "apiKey": "accounts/acme/apiKeys/k1", "deployment": "accounts/acme/deployments/d1",
		"model": "speech-v3", "complete": true, "audioSeconds": 2.5}`, string(m.Data()))

	for _, subject := range []string{"usage.acme.chat", "$JS.API.STREAM.DELETE.USAGE", "$JS.API.STREAM.PURGE.USAGE", "$JS.API.STREAM.UPDATE.USAGE", "$JS.API.STREAM.MSG.DELETE.USAGE"} {
		require.NoError(t, reader.Publish(subject, []byte("{}")))
		require.NoError(t, reader.Flush())
		require.ErrorContains(t, <-errs, "Permissions Violation for Publish", subject)
	}
}

// A reader can have a consumer write in the readers' account, and forges no
// usage with it.
func TestReadersForgeNoUsage(t *testing.T) {
	s := start(t)
	logtest.Append(t, s.Log(), logtest.Write("a", 0))
	meter, err := metering.NewMeter(s.control, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	js := jetstreamOf(t, readerOf(t, s, make(chan error, 16)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // it may not be answered
	_, err = js.CreatePushConsumer(ctx, eventlog.Stream, jetstream.ConsumerConfig{Name: "forger", DeliverSubject: "usage.acme.chat", DeliverPolicy: jetstream.DeliverAllPolicy})
	cancel()
	t.Logf("push consumer into usage: %v", err)
	require.NoError(t, meter.Record(usageOf("acme", metering.Transcription)))
	require.NoError(t, meter.Close(t.Context()))
	for _, nc := range []*nats.Conn{s.control, s.keeper} {
		stream, err := jetstreamOf(t, nc).Stream(t.Context(), metering.Stream)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			info, err := stream.Info(t.Context())
			return err == nil && info.State.Msgs == 1
		}, patience, 10*time.Millisecond)
	}
}

// Usage is bounded, and what is old goes first.
func TestUsageIsBounded(t *testing.T) {
	s := start(t)
	for _, nc := range []*nats.Conn{s.control, s.keeper} {
		stream, err := jetstreamOf(t, nc).Stream(t.Context(), metering.Stream)
		require.NoError(t, err)
		config := stream.CachedInfo().Config
		require.Equal(t, jetstream.DiscardOld, config.Discard)
		require.EqualValues(t, 2_000_000, config.MaxMsgs)
		require.EqualValues(t, -1, config.MaxBytes, "nothing is set aside")
		require.Equal(t, 35*24*time.Hour, config.MaxAge)
	}
	_, err := jetstreamOf(t, s.control).Publish(t.Context(), "usage.acme.chat", make([]byte, 8<<10))
	require.Error(t, err, "one record cannot fill it")
}
