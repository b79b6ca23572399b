package natsserver

import (
	"anneal/eventlog/logtest"
	"bytes"
	"log/slog"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// A server that keeps its messages elsewhere than in the block files that are
// synced here must sync each of them itself, and says so.
func TestUnknownLayoutIsSyncedByTheServer(t *testing.T) {
	var said bytes.Buffer
	s := start(t, func(o *Options) {
		o.NoSync, o.Log = false, slog.New(slog.NewTextHandler(&said, nil))
		o.inBlocks = func(string, []byte) bool { return false }
	})
	require.Empty(t, s.files.Blocks)
	require.True(t, s.nats.JetStreamConfig().SyncAlways)
	require.Contains(t, said.String(), "each message is synced by NATS")
	logtest.Append(t, s.Log(), logtest.Write("a", 0))
	lazy, err := lazyServers(t.Context(), s.warden, serversSubject)
	require.NoError(t, err)
	require.Empty(t, lazy)
}

func TestKnownLayoutIsSyncedHere(t *testing.T) {
	s := start(t, func(o *Options) { o.NoSync = false })
	require.NotEmpty(t, s.files.Blocks)
	_, err := s.js.Stream(t.Context(), layoutStream)
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)
	lazy, err := lazyServers(t.Context(), s.warden, serversSubject)
	require.NoError(t, err)
	require.Equal(t, []string{"anneal"}, lazy)
	_, err = lazyServers(t.Context(), s.Control(), serversSubject)
	require.Error(t, err, "who cannot be asked is not believed")
}
