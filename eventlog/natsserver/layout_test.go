package natsserver

import (
	"anneal/eventlog/logtest"
	"bytes"
	"log/slog"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// TestUnknownLayoutIsSyncedByNATS checks that Start logs a warning and has the NATS server sync
// each message when the server does not store messages in the block files that diskSync syncs.
func TestUnknownLayoutIsSyncedByNATS(t *testing.T) {
	var output bytes.Buffer
	s := start(t, func(o *Options) {
		o.NoSync, o.Log = false, slog.New(slog.NewTextHandler(&output, nil))
		o.inBlocks = func(string, []byte) bool { return false }
	})
	require.Empty(t, s.files.Blocks)
	require.True(t, s.nats.JetStreamConfig().SyncAlways)
	require.Contains(t, output.String(), "so each message is synced separately")
	logtest.Append(t, s.Log(), logtest.Write("a", 0))
	unsynced, err := unsyncedServers(t.Context(), s.warden, serversSubject)
	require.NoError(t, err)
	require.Empty(t, unsynced)
}

func TestKnownLayoutIsSyncedHere(t *testing.T) {
	s := start(t, func(o *Options) { o.NoSync = false })
	require.NotEmpty(t, s.files.Blocks)
	_, err := s.js.Stream(t.Context(), layoutStream)
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)
	unsynced, err := unsyncedServers(t.Context(), s.warden, serversSubject)
	require.NoError(t, err)
	require.Equal(t, []string{"anneal"}, unsynced)
	_, err = unsyncedServers(t.Context(), s.Control(), serversSubject)
	require.Error(t, err, "an unreachable server is an error")
}
