package natsserver

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/logtest"
	"anneal/eventlog/metering"
)

var usageTime = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func usageOf(account, kind string) metering.Record {
	return metering.Record{Time: usageTime, Request: "r-1", Kind: kind, Account: account, Key: "accounts/acme/apiKeys/k1",
		Deployment: "accounts/acme/deployments/d1",
		Model:      "speech-v3", Complete: true, AudioSeconds: 2.5}
}

// meterOf returns a meter that is closed at the end of the test.
func meterOf(t *testing.T, s *Server, dir string, logger *slog.Logger) *metering.Meter {
	t.Helper()
	meter, err := metering.NewMeter(metering.MeterOptions{Conn: s.control, Dir: dir, ID: "cp-1", Logger: logger})
	require.NoError(t, err)
	t.Cleanup(func() { _ = meter.Close() })
	return meter
}

func TestReadersReadUsage(t *testing.T) {
	s := start(t)
	meter := meterOf(t, s, t.TempDir(), slog.New(slog.DiscardHandler))
	require.NoError(t, meter.Record(usageOf("acme", metering.Transcription)))
	require.NoError(t, meter.Record(usageOf("other", metering.Chat)))
	require.ErrorContains(t, meter.Record(usageOf("*", metering.Chat)), "both must be set and valid")
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	require.NoError(t, meter.Drain(ctx))

	errs := make(chan error, 16)
	reader := readerOf(t, s, errs)
	consumer, err := jetstreamOf(t, reader).OrderedConsumer(ctx, metering.Stream,
		jetstream.OrderedConsumerConfig{FilterSubjects: []string{"usage.acme.>"}})
	require.NoError(t, err)
	messages, err := consumer.Messages(jetstream.PullMaxMessages(10))
	require.NoError(t, err)
	defer messages.Stop()
	m, err := messages.Next(jetstream.NextContext(ctx))
	require.NoError(t, err)
	require.Equal(t, "usage.acme.transcription", m.Subject())
	for header, want := range map[string]string{
		"ce-specversion": "1.0", "ce-type": "usage.recorded.v1", "ce-source": "anneal",
		"ce-subject": "accounts/acme/deployments/d1",
		"ce-time":    usageTime.UTC().Format(time.RFC3339Nano), "ce-actor": "accounts/acme/apiKeys/k1",
		"ce-correlation": "r-1", "ce-controlplane": "cp-1", "content-type": "application/json",
	} {
		require.Equal(t, want, m.Headers().Get(header), header)
	}
	require.NotEmpty(t, m.Headers().Get("ce-id"))
	require.JSONEq(t, `{"kind": "transcription", "account": "acme", "apiKey": "accounts/acme/apiKeys/k1",
		"deployment": "accounts/acme/deployments/d1", "number": 1,
		"model": "speech-v3", "complete": true, "audioSeconds": 2.5}`, string(m.Data()))

	for _, subject := range []string{"usage.acme.chat", "$JS.API.STREAM.DELETE.USAGE", "$JS.API.STREAM.PURGE.USAGE",
		"$JS.API.STREAM.UPDATE.USAGE", "$JS.API.STREAM.MSG.DELETE.USAGE"} {
		require.NoError(t, reader.Publish(subject, []byte("{}")))
		require.NoError(t, reader.Flush())
		require.ErrorContains(t, <-errs, "Permissions Violation for Publish", subject)
	}
}

// largestRecord returns the record with the largest encoding that the limits of requests allow.
func largestRecord(t *testing.T) metering.Record {
	id, text := strings.Repeat("i", 63), strings.Repeat("\x01", 512)
	record := usageOf(id, metering.Chat)
	record.User, record.Model, record.Metadata = text, text, map[string]any{}
	record.Request, record.Key = strings.Repeat("r", 128), domain.NewName(id, domain.APIKeys.Collection, id)
	record.Deployment = domain.NewName(id, domain.Deployments.Collection, id)
	for i := range metering.MaxMetadata {
		record.Metadata[strings.Repeat("\x01", metering.MaxMetadataKey-1)+string(rune('a'+i))] = ""
	}
	for key := range record.Metadata {
		size, err := metering.MetadataSize(record.Metadata)
		require.NoError(t, err)
		record.Metadata[key] = strings.Repeat("\x01", min(metering.MaxMetadataValue, (metering.MaxMetadataSize-size)/6))
	}
	size, err := metering.MetadataSize(record.Metadata)
	require.NoError(t, err)
	require.Greater(t, size, metering.MaxMetadataSize*9/10)
	require.LessOrEqual(t, size, metering.MaxMetadataSize)
	return record
}

// TestLargestUsageRecord checks that the stream accepts the largest record.
func TestLargestUsageRecord(t *testing.T) {
	s := start(t)
	lost := &bytes.Buffer{}
	meter := meterOf(t, s, t.TempDir(), slog.New(slog.NewTextHandler(lost, nil)))
	require.NoError(t, meter.Record(largestRecord(t)))
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	require.NoError(t, meter.Drain(ctx))
	require.Empty(t, lost.String())
	stream, err := jetstreamOf(t, s.control).Stream(ctx, metering.Stream)
	require.NoError(t, err)
	require.Equal(t, uint64(1), stream.CachedInfo().State.Msgs)
	require.Less(t, stream.CachedInfo().Config.MaxMsgSize, int32(32<<10))
}

// TestUsageRecordsReserveTheirSpace checks that records that are not acknowledged reserve space on
// the disk, so that they cannot use the space for events, and that the acknowledgement or the
// failure of a record releases its space.
func TestUsageRecordsReserveTheirSpace(t *testing.T) {
	s := start(t)
	const left = 3 << 10 // bytes: enough for one record of the test and its copy
	space := disk.New(func() (uint64, error) { return uint64(disk.Requests) + left, nil })
	meter, err := metering.NewMeter(metering.MeterOptions{Conn: s.control, Dir: t.TempDir(), ID: "cp-1",
		Space: space, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, meter.Close()) })
	require.Equal(t, domain.ResourceExhausted, domain.CodeOf(meter.Record(largestRecord(t))))
	for range 50 {
		require.NoError(t, meter.Record(usageOf("acme", metering.Chat)))
		require.NoError(t, meter.Drain(t.Context()))
		require.Eventually(t, func() bool { return space.Check(disk.Requests, left) == nil }, startTimeout,
			time.Millisecond, "the acknowledgement releases the space")
	}
	js := jetstreamOf(t, s.control)
	require.NoError(t, js.DeleteStream(t.Context(), metering.Stream))
	require.NoError(t, meter.Record(usageOf("acme", metering.Chat)))
	require.Error(t, space.Check(disk.Requests, left), "the record is not acknowledged yet")
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: metering.Stream, Subjects: []string{"usage.>"},
		MaxMsgSize: 1})
	require.NoError(t, err)
	require.NoError(t, meter.Drain(t.Context()))
	require.Eventually(t, func() bool { return space.Check(disk.Requests, left) == nil }, startTimeout,
		time.Millisecond, "the failure releases the space")
}

// TestUsageOutlivesAnElection checks that records of requests are recorded that were answered while
// the stream had no leader, and that records that it will never accept are counted as lost, but
// keep back no other record.
func TestUsageOutlivesAnElection(t *testing.T) {
	s := start(t)
	logged := &bytes.Buffer{}
	meter := meterOf(t, s, t.TempDir(), slog.New(slog.NewTextHandler(logged, nil)))
	js := jetstreamOf(t, s.control)
	stream, err := js.Stream(t.Context(), metering.Stream)
	require.NoError(t, err)
	config := stream.CachedInfo().Config
	// without the stream, no server accepts records, as during an election
	require.NoError(t, js.DeleteStream(t.Context(), metering.Stream))
	sent := s.control.Stats().OutMsgs
	require.NoError(t, meter.Record(usageOf("acme", metering.Chat)))
	require.Eventually(t, func() bool { return s.control.Stats().OutMsgs >= sent+5 }, startTimeout, time.Millisecond)
	require.Equal(t, 1, meter.Waiting())
	_, err = js.CreateStream(t.Context(), config)
	require.NoError(t, err)
	require.NoError(t, meter.Drain(t.Context()))
	require.Empty(t, logged.String())
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, info.State.Msgs)

	config.MaxMsgSize = 1
	_, err = js.UpdateStream(t.Context(), config)
	require.NoError(t, err)
	for range 50 {
		require.NoError(t, meter.Record(usageOf("acme", metering.Chat)))
	}
	require.NoError(t, meter.Drain(t.Context()))
	require.Equal(t, 1, strings.Count(logged.String(), "usage records were lost"))
	config.MaxMsgSize = -1
	_, err = js.UpdateStream(t.Context(), config)
	require.NoError(t, err)
	require.NoError(t, meter.Record(usageOf("acme", metering.Chat)))
	require.NoError(t, meter.Drain(t.Context()))
	last, err := stream.GetLastMsgForSubject(t.Context(), "usage.acme.chat")
	require.NoError(t, err)
	require.Contains(t, string(last.Data), `"number":52`, "the numbers of lost records are missing")
}

// TestReadersCannotForgeUsage checks that a reader cannot add usage records with a consumer that
// delivers to the subjects of usage records in the readers' account.
func TestReadersCannotForgeUsage(t *testing.T) {
	s := start(t)
	logtest.Append(t, s.Log(), logtest.Write("a", 0))
	meter := meterOf(t, s, t.TempDir(), slog.New(slog.DiscardHandler))
	js := jetstreamOf(t, readerOf(t, s, make(chan error, 16)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // the server may refuse the request without a reply
	_, err := js.CreatePushConsumer(ctx, eventlog.Stream,
		jetstream.ConsumerConfig{Name: "forger", DeliverSubject: "usage.acme.chat",
			DeliverPolicy: jetstream.DeliverAllPolicy})
	cancel()
	t.Logf("push consumer into usage: %v", err)
	require.NoError(t, meter.Record(usageOf("acme", metering.Transcription)))
	require.NoError(t, meter.Drain(t.Context()))
	for _, nc := range []*nats.Conn{s.control, s.keeper} {
		stream, err := jetstreamOf(t, nc).Stream(t.Context(), metering.Stream)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			info, err := stream.Info(t.Context())
			return err == nil && info.State.Msgs == 1
		}, startTimeout, 10*time.Millisecond)
	}
}

// requireUsageLimits requires that the usage stream and its mirror delete their oldest records at a
// maximum number, size and age.
func requireUsageLimits(t *testing.T, s *Server, maxBytes int64) {
	t.Helper()
	for _, nc := range []*nats.Conn{s.control, s.keeper} {
		stream, err := jetstreamOf(t, nc).Stream(t.Context(), metering.Stream)
		require.NoError(t, err)
		config := stream.CachedInfo().Config
		require.Equal(t, jetstream.DiscardOld, config.Discard)
		require.EqualValues(t, 2_000_000, config.MaxMsgs)
		require.Equal(t, maxBytes, config.MaxBytes)
		require.Equal(t, 35*24*time.Hour, config.MaxAge)
	}
}

// TestUsageIsLimited checks the limits of the usage stream and of its mirror, that the stream
// refuses a record that is too large, and that the server starts on a nearly full disk: its
// MaxStore is larger than the maximum sizes of all streams.
func TestUsageIsLimited(t *testing.T) {
	s := start(t)
	requireUsageLimits(t, s, 2<<30)
	_, err := jetstreamOf(t, s.control).Publish(t.Context(), "usage.acme.chat", make([]byte, 28<<10))
	require.Error(t, err, "one record cannot fill it")
	require.Greater(t, s.nats.JetStreamConfig().MaxStore, int64(1)<<60, "a nearly full disk does not stop the start")
}

// TestUsageStreamIsUpgraded checks that the streams of an earlier version, which had no limit in
// bytes and larger records, get the limits and keep their records.
func TestUsageStreamIsUpgraded(t *testing.T) {
	dir := t.TempDir()
	s := mustStart(t, Options{Dir: dir, NoSync: true})
	for _, nc := range []*nats.Conn{s.control, s.keeper} {
		js := jetstreamOf(t, nc)
		stream, err := js.Stream(t.Context(), metering.Stream)
		require.NoError(t, err)
		earlier := stream.CachedInfo().Config
		earlier.MaxBytes = -1
		if earlier.Mirror == nil {
			earlier.MaxMsgSize = 64 << 10
		}
		_, err = js.UpdateStream(t.Context(), earlier)
		require.NoError(t, err)
	}
	requireUsageLimits(t, s, -1)
	for _, size := range []int{500, 60 << 10, 500} {
		_, err := jetstreamOf(t, s.control).Publish(t.Context(), "usage.acme.chat", make([]byte, size))
		require.NoError(t, err)
	}
	s.Close()

	s = mustStart(t, Options{Dir: dir, NoSync: true})
	t.Cleanup(s.Close)
	requireUsageLimits(t, s, 2<<30)
	for _, nc := range []*nats.Conn{s.control, s.keeper} {
		stream, err := jetstreamOf(t, nc).Stream(t.Context(), metering.Stream)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			m, err := stream.GetMsg(t.Context(), 3)
			return err == nil && len(m.Data) == 500
		}, startTimeout, 10*time.Millisecond)
		large, err := stream.GetMsg(t.Context(), 2)
		require.NoError(t, err)
		require.Len(t, large.Data, 60<<10)
	}
}

// TestUsageOnAServerWithoutSpace checks that a NATS server that cannot reserve the size of the
// usage stream gets a stream without a limit in bytes.
func TestUsageOnAServerWithoutSpace(t *testing.T) {
	for _, c := range []struct{ store, want int64 }{{1 << 30, -1}, {4 << 30, 2 << 30}} {
		ns, err := server.NewServer(&server.Options{JetStream: true, StoreDir: t.TempDir(), DontListen: true,
			JetStreamMaxStore: c.store, NoSigs: true})
		require.NoError(t, err)
		ns.Start()
		t.Cleanup(ns.Shutdown)
		require.True(t, ns.ReadyForConnections(startTimeout))
		nc, err := nats.Connect("", nats.InProcessServer(ns))
		require.NoError(t, err)
		t.Cleanup(nc.Close)
		js := jetstreamOf(t, nc)
		for range 2 { // the first call creates the stream, the second updates it
			require.NoError(t, metering.EnsureStream(t.Context(), js, 1))
			stream, err := js.Stream(t.Context(), metering.Stream)
			require.NoError(t, err)
			require.Equal(t, c.want, stream.CachedInfo().Config.MaxBytes)
			require.EqualValues(t, 2_000_000, stream.CachedInfo().Config.MaxMsgs)
		}
	}
}
