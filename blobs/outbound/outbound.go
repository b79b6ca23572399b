// Package outbound connects to addresses that clients name. To prevent server-side request forgery
// it connects only to public addresses, unless configured otherwise. It checks the address of each
// connection and not the host name, because a host name may resolve differently each time.
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

// DialTimeout bounds the time to connect to an address.
const DialTimeout = 10 * time.Second

// ErrPrivate is the error of a connection to an address that is not public.
var ErrPrivate = errors.New("the address is not public, and this server connects only to public addresses")

// Dialer returns a function that connects to public addresses only, or, if private is true, to all
// addresses.
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

// Client returns a client that connects as Dialer does, uses no proxy and follows no redirects.
// timeout bounds a whole request.
func Client(private bool, timeout time.Duration) *http.Client {
	return &http.Client{Timeout: timeout,
		Transport: &http.Transport{DialContext: Dialer(private), TLSHandshakeTimeout: DialTimeout,
			MaxResponseHeaderBytes: 64 << 10, DisableCompression: true, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// KeepAliveClient is like Client, and uses connections again, for many requests to the same servers.
func KeepAliveClient(private bool, timeout time.Duration) *http.Client {
	client := Client(private, timeout)
	transport := client.Transport.(*http.Transport)
	transport.DisableKeepAlives, transport.IdleConnTimeout = false, idleTimeout
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = maxIdle, maxIdlePerHost
	transport.ForceAttemptHTTP2 = true // DialContext disables it by default
	return client
}

const (
	idleTimeout    = 30 * time.Second
	maxIdle        = 100
	maxIdlePerHost = 8
)

// Cause returns the error of a request without its URL, which may be signed.
func Cause(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}

// specialNetworks are the networks of IANA's special-purpose address registries that no method of
// netip.Addr reports.
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
