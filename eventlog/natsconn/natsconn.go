// Package natsconn connects to NATS servers over a network, such that a client notices within
// seconds when its server hangs. All connections of anneal over a network are made by Connect, so
// that none waits for minutes, as it would with the defaults of nats.go.
package natsconn

import (
	"time"

	"github.com/nats-io/nats.go"
)

// A client sends a ping every pingInterval. When maxPings pings have no response, the client closes
// the connection and connects to the next server of its list.
const (
	pingInterval = 2 * time.Second
	maxPings     = 2
)

// NoticeTime is the longest time until a client notices that its server hangs. It has one more
// interval than maxPings, because the server may hang just after its response to a ping.
const NoticeTime = (maxPings + 1) * pingInterval

// writeTime is the longest time that a write to a server may block. It is shorter than the default
// of nats.go, because a client that sends much blocks in a write before its pings fail.
const writeTime = 2 * time.Second

// Connect connects to a server of url, a list separated by commas. The options come after those of
// this package and so override them.
func Connect(url string, options ...nats.Option) (*nats.Conn, error) {
	return nats.Connect(url, append([]nats.Option{nats.Timeout(5 * time.Second), nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(maxPings), nats.FlusherTimeout(writeTime)}, options...)...)
}
