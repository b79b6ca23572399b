package api

import (
	"container/list"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"anneal/api/request"
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
// them. It never stops accepting, so that refused clients are told. When all
// places are taken, a new connection takes that of the oldest one on which no
// known account has asked anything: a flood without keys, from however many
// addresses, replaces its own connections.
type limitedListener struct {
	net.Listener
	limits   ConnectionLimits
	refusals chan struct{}

	mu        sync.Mutex
	open      int
	addresses map[netip.Addr]int
	strangers list.List      // of *limitedConn of no known account, oldest first
	accounts  map[string]int // connections that are known to be theirs
}

// LimitConnections bounds the connections of a listener. What is accepted
// counts until it is closed.
func LimitConnections(listener net.Listener, limits ConnectionLimits) net.Listener {
	return &limitedListener{Listener: listener, limits: limits, refusals: make(chan struct{}, maxRefusals), addresses: map[netip.Addr]int{}, accounts: map[string]int{}}
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		accepted := &limitedConn{Conn: conn, listener: l, from: addressOf(conn)}
		why := l.enter(accepted)
		if why == "" {
			return accepted, nil
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
func (l *limitedListener) enter(c *limitedConn) (why string) {
	why, replaced := l.admit(c)
	if replaced != nil {
		_ = replaced.Conn.Close()
	}
	return why
}

func (l *limitedListener) admit(c *limitedConn) (why string, replaced *limitedConn) {
	if l.limits.Spare != nil && !l.limits.Spare() {
		return "the server has no file descriptors left for more connections: try again shortly, or ask its operator to raise its limit (ulimit -n)", nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.limits.PerAddress > 0 && l.addresses[c.from] >= l.limits.PerAddress:
		return fmt.Sprintf("your address has %d connections, as many as one may have: reuse them, or ask the server's operator to raise --max-connections-per-address", l.addresses[c.from]), nil
	case l.limits.Total > 0 && l.open >= l.limits.Total:
		oldest := l.strangers.Front()
		if oldest == nil {
			return fmt.Sprintf("the server has %d connections, as many as it takes: try again shortly, or ask its operator to raise --max-connections", l.open), nil
		}
		replaced = oldest.Value.(*limitedConn)
		l.leave(replaced)
	}
	l.open++
	l.addresses[c.from]++
	c.stranger = l.strangers.PushBack(c)
	return "", replaced
}

// leave frees a connection's place, once.
func (l *limitedListener) leave(c *limitedConn) {
	if c.left {
		return
	}
	c.left = true
	l.open--
	if l.addresses[c.from]--; l.addresses[c.from] == 0 {
		delete(l.addresses, c.from)
	}
	if c.stranger != nil {
		l.strangers.Remove(c.stranger)
	} else if l.accounts[c.account]--; l.accounts[c.account] == 0 {
		delete(l.accounts, c.account)
	}
}

// know keeps a connection's place for an account that has asked something on
// it. One account keeps an eighth of all places at most: what it has beyond them
// gives way when all are taken.
func (l *limitedListener) know(c *limitedConn, account string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.left || c.stranger == nil || l.limits.Total > 0 && l.accounts[account] >= max(2, l.limits.Total/8) {
		return
	}
	l.strangers.Remove(c.stranger)
	c.stranger, c.account = nil, account
	l.accounts[account]++
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
	_, err := fmt.Fprintf(conn, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", request.RetryAfterSeconds, len(body), body)
	half, ok := conn.(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, conn, writePiece) // closed with its request unread, the client would lose the answer
}

// A limitedConn gives its place back when it is closed.
type limitedConn struct {
	net.Conn
	listener *limitedListener
	from     netip.Addr

	// Under the listener's lock:
	left     bool
	stranger *list.Element // among the listener's strangers; nil when its account is known
	account  string
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.listener.mu.Lock()
	c.listener.leave(c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

type connKey struct{}

// withConn lets know find the connection of a request.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	if c, ok := conn.(*limitedConn); ok {
		return context.WithValue(ctx, connKey{}, c)
	}
	return ctx
}

// know keeps the place of a request's connection: an account that is known has
// asked something on it.
func know(ctx context.Context, account string) {
	if c, ok := ctx.Value(connKey{}).(*limitedConn); ok {
		c.listener.know(c, account)
	}
}

// CloseWrite ends what is sent, for net/http's orderly end of a connection.
func (c *limitedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
