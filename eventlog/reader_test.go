package eventlog_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/logtest"
	"anneal/eventlog/natsserver"
	"anneal/eventlog/servertest"
)

func TestAReaderSeesTheSameEventsAndCannotAppend(t *testing.T) {
	server, err := natsserver.Start(natsserver.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", NoSync: true})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	write := eventlog.Write{Event: eventlog.Event{Record: domain.Record{Type: "account.created.v1", Data: []byte(`{}`)},
		ID: "0190a000-0000-7000-8000-000000000001", Name: "accounts/acme", Time: time.Unix(1, 0)}}
	position, err := server.Log().Append(t.Context(), write)
	require.NoError(t, err)

	user, password := server.ReaderCredentials()
	nc, err := nats.Connect(server.URL(), nats.UserInfo(user, password))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	reader, err := eventlog.OpenReader(t.Context(), nc)
	require.NoError(t, err)
	for e, err := range reader.Follow(t.Context(), "events.>", 0) { // wait until the mirror has the events
		require.NoError(t, err)
		require.Equal(t, position, e.Position)
		require.Equal(t, write.ID, e.ID)
		break
	}
	count := 0
	for e, err := range reader.Read(t.Context(), "events.acme.>", 0) {
		require.NoError(t, err)
		require.Equal(t, write.Name, e.Name)
		count++
	}
	require.Equal(t, 1, count)
	write.ID, write.Name = "0190a000-0000-7000-8000-000000000002", "accounts/other"
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = reader.Append(ctx, write)
	require.Error(t, err)
	last, err := server.Log().Last(t.Context())
	require.NoError(t, err)
	require.Equal(t, position, last.Position)
}

// TestStalledConsumer checks that a follower that gets no events notices that the log has more.
func TestStalledConsumer(t *testing.T) {
	log := servertest.StartLog(t)
	logtest.Append(t, log, logtest.Write("a", 0))
	ctx, stop := context.WithCancelCause(t.Context())
	var position atomic.Uint64
	eventlog.WatchProgress(ctx, log, &position, stop)
	require.ErrorContains(t, context.Cause(ctx), "no events after position 0, but the log ends at 1")

	ctx, stop = context.WithCancelCause(t.Context())
	position.Store(1)
	time.AfterFunc(5*time.Second, func() { stop(nil) })
	eventlog.WatchProgress(ctx, log, &position, stop)
	require.Equal(t, context.Canceled, context.Cause(ctx), "it has all events")
}
