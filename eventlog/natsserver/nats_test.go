package natsserver

import (
	"anneal/eventlog"
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

// start runs an embedded server that knows the token of every node. It syncs
// nothing, for the sake of slow disks, unless the test asks for it.
func start(t testing.TB, change ...func(*Options)) *Server {
	t.Helper()
	opts := Options{
		Dir: t.TempDir(), Listen: "127.0.0.1:0", NoSync: true,
		VerifyNode: verifyTokenOf,
	}
	for _, c := range change {
		c(&opts)
	}
	s, err := Start(opts)
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

func connect(t testing.TB, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, opts...)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// syncWith replaces the sync of the log's block files.
func syncWith(s *Server, sync func(*os.File) error) {
	files := s.files
	files.Sync = sync
	s.log.UseFiles(files)
}

// eventIn is the event in a message that a consumer delivered.
func eventIn(m jetstream.Msg) (eventlog.Event, error) {
	meta, err := m.Metadata()
	if err != nil {
		return eventlog.Event{}, err
	}
	return eventlog.Decode(m.Subject(), nats.Header(m.Headers()), m.Data(), meta.Sequence.Stream)
}
