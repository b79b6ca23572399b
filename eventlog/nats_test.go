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
