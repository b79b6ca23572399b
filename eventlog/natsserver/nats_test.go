package natsserver

import (
	"anneal/eventlog"
	"anneal/eventlog/integrity"
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"
)

// start runs an embedded server that accepts all nodes until the test ends. It does not sync to
// disk, which is slow, unless change sets NoSync to false.
func start(t testing.TB, change ...func(*Options)) *Server {
	t.Helper()
	opts := Options{
		Dir: t.TempDir(), Listen: "127.0.0.1:0", NoSync: true,
		VerifyNode: verifyTokenOf,
	}
	for _, c := range change {
		c(&opts)
	}
	s := mustStart(t, opts)
	t.Cleanup(s.Close)
	return s
}

func verifyTokenOf(_ context.Context, login NodeLogin) error {
	if login.PublicKey == "" || login.Token != tokenOf(login.Node) {
		return errors.New("the node's ID, key or token is invalid")
	}
	return nil
}

func tokenOf(node string) string { return "token-of-" + strings.ToUpper(node) }

// keyOf returns an NKey that is derived from the ID of a node.
func keyOf(t testing.TB, node string) nkeys.KeyPair {
	seed := sha256.Sum256([]byte(node))
	key, err := nkeys.FromRawSeed(nkeys.PrefixByteUser, seed[:])
	require.NoError(t, err)
	return key
}

func agentOptions(t testing.TB, node string) []nats.Option {
	return AgentOptions(node, tokenOf(node), keyOf(t, node))
}

func connect(t testing.TB, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, opts...)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// syncWith replaces the function that syncs a block file of the log.
func syncWith(s *Server, sync func(*os.File) error) {
	files := s.files
	files.Sync = sync
	s.log.UseFiles(files)
}

// eventIn returns the event in a message that a consumer delivered.
func eventIn(m jetstream.Msg) (eventlog.Event, error) {
	meta, err := m.Metadata()
	if err != nil {
		return eventlog.Event{}, err
	}
	return eventlog.Decode(m.Subject(), nats.Header(m.Headers()), m.Data(), meta.Sequence.Stream)
}

// mustStart starts a server, which the caller closes.
func mustStart(t testing.TB, opts Options) *Server {
	t.Helper()
	s, err := Start(opts)
	require.NoError(t, err)
	return s
}

func mustReadMark(t testing.TB, path string) integrity.HighWaterMark {
	t.Helper()
	mark, err := integrity.ReadMark(path)
	require.NoError(t, err)
	return mark
}
