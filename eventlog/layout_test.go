package eventlog

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// A server that keeps its messages elsewhere than in the block files that are
// synced here must sync each of them itself, and says so.
func TestUnknownLayoutIsSyncedByTheServer(t *testing.T) {
	var said bytes.Buffer
	s := start(t, func(o *ServerOptions) {
		o.NoSync, o.Log = false, slog.New(slog.NewTextHandler(&said, nil))
		o.inBlocks = func(string, []byte) bool { return false }
	})
	require.Nil(t, s.Log().disk)
	require.True(t, s.nats.JetStreamConfig().SyncAlways)
	require.Contains(t, said.String(), "each message is synced by NATS")
	mustAppend(t, s.Log(), write("a", 0))
	lazy, err := lazyServers(t.Context(), s.warden, serversSubject)
	require.NoError(t, err)
	require.Empty(t, lazy)
}

func TestKnownLayoutIsSyncedHere(t *testing.T) {
	s := start(t, func(o *ServerOptions) { o.NoSync = false })
	require.NotNil(t, s.Log().disk)
	_, err := s.Log().js.Stream(t.Context(), layoutStream)
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)
	lazy, err := lazyServers(t.Context(), s.warden, serversSubject)
	require.NoError(t, err)
	require.Equal(t, []string{"anneal"}, lazy)
	_, err = lazyServers(t.Context(), s.Control(), serversSubject)
	require.Error(t, err, "who cannot be asked is not believed")
}

// A log that another version of NATS has written into files of its own is not
// taken for one that has lost its blocks: its positions are checked once it runs.
func TestForeignFilesAreNoDamage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "msgs")
	require.Empty(t, foreign(dir), "there is nothing")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "index.db"), nil, 0o600))
	require.Empty(t, foreign(dir), "the blocks are gone")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "1.seg"), []byte("x"), 0o600))
	require.Contains(t, foreign(dir), "1.seg")
}
