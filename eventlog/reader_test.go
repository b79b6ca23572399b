package eventlog_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/natsserver"
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
	for e, err := range reader.Follow(t.Context(), "events.>", 0) { // waits until the mirror has the events
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
