package api

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// ConnectionLimits bound the connections that a listener hands on.
type ConnectionLimits struct {
	Total      int         // at once; 0 is no limit
	PerAddress int         // at once from one IPv4 address, or one /64 of IPv6; 0 is no limit
	Spare      func() bool // tells whether the process has file descriptors left for one more; nil is always
}

// maxRefusals is how many refused connections are told so at once; any more
// are closed without a word.
const maxRefusals = 64

// refusalTime is how long a refused client has to take its answer.
const refusalTime = 500 * time.Millisecond

// A limitedListener answers connections beyond its limits with 503 and closes
// them. It never stops accepting, so that refused clients are told.
type limitedListener struct {
	net.Listener
	limits   ConnectionLimits
	refusals chan struct{}

	mu        sync.Mutex
	open      int
	addresses map[netip.Addr]int
}

// LimitConnections bounds the connections of a listener. What is accepted
// counts until it is closed.
func LimitConnections(listener net.Listener, limits ConnectionLimits) net.Listener {
	return &limitedListener{Listener: listener, limits: limits, refusals: make(chan struct{}, maxRefusals), addresses: map[netip.Addr]int{}}
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := addressOf(conn)
		why := l.enter(from)
		if why == "" {
			return &limitedConn{Conn: conn, leave: sync.OnceFunc(func() { l.leave(from) })}, nil
		}
		select {
		case l.refusals <- struct{}{}:
			go func() {
				defer func() { <-l.refusals }()
				refuseConnection(conn, why)
			}()
		default:
			_ = conn.Close()
		}
	}
}

// enter counts a connection, or says why there is no place for it.
func (l *limitedListener) enter(from netip.Addr) (why string) {
	if l.limits.Spare != nil && !l.limits.Spare() {
		return "the server has no file descriptors left for more connections: try again shortly, or ask its operator to raise its limit (ulimit -n)"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.limits.Total > 0 && l.open >= l.limits.Total:
		return fmt.Sprintf("the server has %d connections, as many as it takes: try again shortly, or ask its operator to raise --max-connections", l.open)
	case l.limits.PerAddress > 0 && l.addresses[from] >= l.limits.PerAddress:
		return fmt.Sprintf("your address has %d connections, as many as one may have: reuse them, or ask the server's operator to raise --max-connections-per-address", l.addresses[from])
	}
	l.open++
	l.addresses[from]++
	return ""
}

func (l *limitedListener) leave(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.addresses[from]--; l.addresses[from] == 0 {
		delete(l.addresses, from)
	}
}

// addressOf is what the connections of one client have in common.
func addressOf(conn net.Conn) netip.Addr {
	port, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return netip.Addr{}
	}
	address := port.Addr().Unmap()
	if network, err := address.Prefix(64); address.Is6() && err == nil {
		return network.Addr()
	}
	return address
}

// refuseConnection answers 503 to whatever the client asks, in the shapes of
// both interfaces, since its path is not read.
func refuseConnection(conn net.Conn, why string) {
	defer conn.Close() //nolint:errcheck // there is nothing left to lose
	_ = conn.SetDeadline(time.Now().Add(refusalTime))
	body := fmt.Sprintf(`{"code":14,"message":%[1]q,"details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"TOO_MANY_CONNECTIONS"}],`+
		`"error":{"message":%[1]q,"type":"unavailable_error","param":null,"code":"TOO_MANY_CONNECTIONS"}}`+"\n", why)
	_, err := fmt.Fprintf(conn, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", retrySeconds, len(body), body)
	half, ok := conn.(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, conn, writePiece) // closed with its request unread, the client would lose the answer
}

// A limitedConn gives its place back when it is closed.
type limitedConn struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// CloseWrite ends what is sent, for net/http's orderly end of a connection.
func (c *limitedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
