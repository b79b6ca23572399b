// Package outbound connects to addresses that clients of the API name. To prevent server-side
// request forgery (SSRF), it connects only to public addresses, unless the operator permits others.
// It checks the address of each connection instead of the host name, because a host name may
// resolve to another address each time.
package outbound

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"
)

// DialTimeout is the maximum time to connect to an address.
const DialTimeout = 10 * time.Second

// ErrPrivate is the error for a connection to an address that is not public.
var ErrPrivate = errors.New("the address is not public, and this server connects only to public addresses")

// Dialer returns a function for http.Transport.DialContext that connects only to public addresses,
// or to all addresses if private is true.
func Dialer(private bool) func(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: DialTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err == nil && (private || IsPublic(at.Addr())) {
			return nil
		}
		return ErrPrivate
	}}
	return dialer.DialContext
}

// Client returns an HTTP client that connects with Dialer, uses no proxy and follows no redirects.
// timeout is the maximum time of a request, including its response.
func Client(private bool, timeout time.Duration) *http.Client {
	return &http.Client{Timeout: timeout,
		Transport: &http.Transport{DialContext: Dialer(private), TLSHandshakeTimeout: DialTimeout,
			MaxResponseHeaderBytes: 64 << 10, DisableCompression: true, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// KeepAliveClient returns a client like Client that reuses connections, for many requests to the
// same servers.
func KeepAliveClient(private bool, timeout time.Duration) *http.Client {
	client := Client(private, timeout)
	transport := client.Transport.(*http.Transport)
	transport.DisableKeepAlives, transport.IdleConnTimeout = false, idleTimeout
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = maxIdle, maxIdlePerHost
	transport.ForceAttemptHTTP2 = true // net/http disables HTTP/2 by default for a transport with DialContext
	return client
}

const (
	idleTimeout    = 30 * time.Second
	maxIdle        = 100
	maxIdlePerHost = 8
)

// Cause returns the cause of a failed request, without the URL of the request, which may contain a
// signature.
func Cause(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}

// specialNetworks are the networks in IANA's special-purpose address registries that are not
// public, and for which netip.Addr has no method.
var specialNetworks = func() (all []netip.Prefix) {
	for _, text := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24",
		"203.0.113.0/24", "240.0.0.0/4",
		"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
	} {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}()

var (
	global = netip.MustParsePrefix("2000::/3")
	nat64  = netip.MustParsePrefix("64:ff9b::/96")
)

// IsPublic reports whether an address belongs to the public internet. An IPv4-mapped or NAT64 IPv6
// address is public when its IPv4 address is.
func IsPublic(a netip.Addr) bool {
	a = a.Unmap()
	if a.Is6() {
		if bytes := a.As16(); nat64.Contains(a) {
			return IsPublic(netip.AddrFrom4([4]byte(bytes[12:])))
		}
		if !global.Contains(a) || a.Zone() != "" {
			return false
		}
	}
	if a.IsUnspecified() || a.IsLoopback() || a.IsPrivate() || a.IsLinkLocalUnicast() || a.IsMulticast() {
		return false
	}
	for _, p := range specialNetworks {
		if p.Contains(a) {
			return false
		}
	}
	return true
}
