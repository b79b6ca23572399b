package connection

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

// Limits bounds the number of connections of a listener.
type Limits struct {
	Total      int // maximum number of open connections; 0 means no limit
	PerAddress int // maximum number from one IPv4 address or one IPv6 network (/64); 0 means no limit
	// reports whether a file descriptor is free for another connection; nil means no check
	Spare func() bool
}

// maxRejections bounds the rejected connections that get a response at the same time. Further
// rejected connections are closed without a response.
const maxRejections = 64

// rejectionTime bounds how long a rejected client may take to read its response.
const rejectionTime = 500 * time.Millisecond

// A limitedListener enforces Limits: it responds with 503 to excess connections and closes them. It
// always accepts, so that rejected clients get an error. When all Limits.Total connections are
// open, a new connection replaces the oldest one that has sent no authenticated request. So a flood
// of connections without API keys replaces only its own connections, even if it comes from many
// addresses.
type limitedListener struct {
	net.Listener
	limits     Limits
	rejections chan struct{}

	mu              sync.Mutex
	open            int
	addresses       map[netip.Addr]int
	unauthenticated list.List      // connections (*limitedConn) without an authenticated request, oldest first
	accounts        map[string]int // number of protected connections by account
}

// Limit returns a listener that accepts the connections of another listener within limits. A
// connection counts until it is closed.
func Limit(listener net.Listener, limits Limits) net.Listener {
	return &limitedListener{Listener: listener, limits: limits, rejections: make(chan struct{}, maxRejections),
		addresses: map[netip.Addr]int{}, accounts: map[string]int{}}
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
		case l.rejections <- struct{}{}:
			go func() {
				defer func() { <-l.rejections }()
				rejectConnection(conn, why)
			}()
		default:
			_ = conn.Close()
		}
	}
}

// enter counts a connection, and returns "". If the connection is rejected, enter returns the
// message for the client.
func (l *limitedListener) enter(c *limitedConn) (why string) {
	why, replaced := l.admit(c)
	if replaced != nil {
		_ = replaced.Conn.Close()
	}
	return why
}

func (l *limitedListener) admit(c *limitedConn) (why string, replaced *limitedConn) {
	if l.limits.Spare != nil && !l.limits.Spare() {
		return "the server has no file descriptors left for more connections: try again shortly, or ask the server's " +
			"operator to raise the limit (ulimit -n)", nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.limits.PerAddress > 0 && l.addresses[c.from] >= l.limits.PerAddress:
		return fmt.Sprintf("your IP address has %d open connections, which is the limit: reuse them, or ask the server's "+
			"operator to raise --max-connections-per-address", l.addresses[c.from]), nil
	case l.limits.Total > 0 && l.open >= l.limits.Total:
		oldest := l.unauthenticated.Front()
		if oldest == nil {
			return fmt.Sprintf("the server has %d open connections, which is the limit: try again shortly, or ask the server's "+
				"operator to raise --max-connections", l.open), nil
		}
		replaced = oldest.Value.(*limitedConn)
		l.leave(replaced)
	}
	l.open++
	l.addresses[c.from]++
	c.element = l.unauthenticated.PushBack(c)
	return "", replaced
}

// leave stops counting a connection. Further calls for the same connection do nothing.
func (l *limitedListener) leave(c *limitedConn) {
	if c.left {
		return
	}
	c.left = true
	l.open--
	if l.addresses[c.from]--; l.addresses[c.from] == 0 {
		delete(l.addresses, c.from)
	}
	if c.element != nil {
		l.unauthenticated.Remove(c.element)
	} else if l.accounts[c.account]--; l.accounts[c.account] == 0 {
		delete(l.accounts, c.account)
	}
}

// protect excludes a connection from replacement, because it has sent a request that was
// authenticated for the account. It protects at most an eighth of Limits.Total connections of one
// account; the account's other connections may be replaced.
func (l *limitedListener) protect(c *limitedConn, account string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.left || c.element == nil || l.limits.Total > 0 && l.accounts[account] >= max(2, l.limits.Total/8) {
		return
	}
	l.unauthenticated.Remove(c.element)
	c.element, c.account = nil, account
	l.accounts[account]++
}

// addressOf returns the address by which connections are counted: the client's IPv4 address, or the
// /64 network of its IPv6 address.
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

// rejectConnection responds with 503 and closes the connection. It does not know the request's
// path, so the body is valid both as a ManagementError and as an InferenceError.
func rejectConnection(conn net.Conn, why string) {
	defer conn.Close() //nolint:errcheck // the client has the response, or has disconnected
	_ = conn.SetDeadline(time.Now().Add(rejectionTime))
	body := fmt.Sprintf(`{"code":14,"message":%[1]q,`+
		`"details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"TOO_MANY_CONNECTIONS"}],`+
		`"error":{"message":%[1]q,"type":"unavailable_error","param":null,"code":"TOO_MANY_CONNECTIONS"}}`+"\n", why)
	_, err := fmt.Fprintf(conn,
		"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: %s\r\nConnection: "+
			"close\r\nContent-Length: %d\r\n\r\n%s", request.RetryAfterSeconds, len(body), body)
	half, ok := conn.(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil {
		return
	}
	// closing the connection before the request is read would reset it, and the client might lose
	// the response
	_, _ = io.CopyN(io.Discard, conn, writeChunk)
}

// A limitedConn is a connection that counts against the limits of its listener until Close.
type limitedConn struct {
	net.Conn
	listener *limitedListener
	from     netip.Addr

	// The fields below are guarded by listener.mu. left states that leave was called.
	left    bool
	element *list.Element // its element in listener.unauthenticated; nil once a request was authenticated
	account string
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.listener.mu.Lock()
	c.listener.leave(c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

type connKey struct{}

// withConn returns a context for the requests of a connection, from which Keep gets the connection.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	if c, ok := conn.(*limitedConn); ok {
		return context.WithValue(ctx, connKey{}, c)
	}
	return ctx
}

// Keep protects the connection of a request from being replaced by a new connection. ctx is the
// context of the request, and account is the authenticated account.
func Keep(ctx context.Context, account string) {
	if c, ok := ctx.Value(connKey{}).(*limitedConn); ok {
		c.listener.protect(c, account)
	}
}

// CloseWrite closes the sending direction of the connection, which net/http does to end a
// connection gracefully.
func (c *limitedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
