package eventlog

import (
	"context"
	"crypto/sha256"
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"
)

// start runs an embedded server that knows the token of every node. It syncs
// nothing, for the sake of slow disks, unless the test asks for it.
func start(t testing.TB, change ...func(*ServerOptions)) *Server {
	t.Helper()
	opts := ServerOptions{
		Dir: t.TempDir(), Listen: "127.0.0.1:0", NoSync: true,
		VerifyNode: verifyTokenOf,
	}
	for _, c := range change {
		c(&opts)
	}
	s, err := StartServer(opts)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func verifyTokenOf(_ context.Context, login NodeLogin) error {
	if login.PublicKey == "" || login.Token != tokenOf(login.Node) {
		return errors.New("the node's id, key or token is wrong")
	}
	return nil
}

func tokenOf(node string) string { return "token-of-" + strings.ToUpper(node) }

// keyOf is a node's key, the same in every test.
func keyOf(t testing.TB, node string) nkeys.KeyPair {
	seed := sha256.Sum256([]byte(node))
	key, err := nkeys.FromRawSeed(nkeys.PrefixByteUser, seed[:])
	require.NoError(t, err)
	return key
}

func agentOptions(t testing.TB, node string) []nats.Option {
	return AgentOptions(node, tokenOf(node), keyOf(t, node))
}

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
