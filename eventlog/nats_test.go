package eventlog

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// start runs an embedded server that knows the token of every node. It syncs
// nothing, for the sake of slow disks, unless the test asks for it.
func start(t testing.TB, change ...func(*ServerOptions)) *Server {
	t.Helper()
	opts := ServerOptions{
		Dir: t.TempDir(), Listen: "127.0.0.1:0", NoSync: true,
		VerifyNode: func(node, token string) bool { return token == tokenOf(node) },
	}
	for _, c := range change {
		c(&opts)
	}
	s, err := StartServer(opts)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func tokenOf(node string) string { return "token-of-" + strings.ToUpper(node) }

func startLog(t testing.TB) *JetStream { return start(t).Log() }

func connect(t testing.TB, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, opts...)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// Who stops early has not fetched the rest, and a count fetches one event.
func TestReadsFetchWhatTheyAreAskedFor(t *testing.T) {
	log, last := startLog(t), uint64(0)
	for range 4 * firstEvents {
		last = mustAppend(t, log, write("a", last))
	}
	fetched := func(read func()) uint64 {
		before := log.nc.Stats().InMsgs
		read()
		return log.nc.Stats().InMsgs - before
	}
	require.LessOrEqual(t, fetched(func() {
		for _, err := range log.Read(t.Context(), "events.acme.>", 0) {
			require.NoError(t, err)
			return
		}
	}), uint64(firstEvents+2), "one page, its end, and the place of the newest event")
	require.Equal(t, uint64(2), fetched(func() {
		n, err := log.Count(t.Context(), "events.acme.>")
		require.NoError(t, err)
		require.Equal(t, last, n)
	}))
}
