// Package servertest starts embedded NATS servers for tests of other packages.
package servertest

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"anneal/eventlog"
	"anneal/eventlog/natsserver"
)

// Start runs an embedded NATS server until the test ends. change modifies its options. The server
// does not sync to disk, which is slow, unless change sets NoSync to false.
func Start(t testing.TB, change ...func(*natsserver.Options)) *natsserver.Server {
	t.Helper()
	opts := natsserver.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", NoSync: true}
	for _, c := range change {
		c(&opts)
	}
	s, err := natsserver.Start(opts)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// StartLog starts a server as Start does, and returns its log.
func StartLog(t testing.TB) *eventlog.JetStream { return Start(t).Log() }

// JetStream returns the JetStream context of a connection.
func JetStream(t testing.TB, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(t, err)
	return js
}
