// Package natsconn connects to NATS servers over a network with timeouts of seconds. With the
// defaults of nats.go, a client would take minutes to notice that its server hangs. All network
// connections of anneal to NATS are made by Connect.
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

// NoticeTime is the longest time until a client notices that its server hangs. It includes one
// interval more than maxPings, because the server may hang directly after a response.
const NoticeTime = (maxPings + 1) * pingInterval

// writeTime is the longest time for which a write to a server may block. A client that sends a lot
// blocks in a write before its pings fail, so the default of nats.go would be too long.
const writeTime = 2 * time.Second

// Connect connects to one of the servers in url, a list separated by commas. options override the
// timeouts that this package sets.
func Connect(url string, options ...nats.Option) (*nats.Conn, error) {
	return nats.Connect(url, append([]nats.Option{nats.Timeout(5 * time.Second), nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(maxPings), nats.FlusherTimeout(writeTime)}, options...)...)
}
