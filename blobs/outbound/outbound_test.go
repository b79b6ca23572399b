package outbound

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPublicAddresses(t *testing.T) {
	for _, text := range []string{"1.1.1.1", "93.184.216.34", "100.63.255.255", "100.128.0.1", "172.32.0.1",
		"2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"} {
		require.True(t, IsPublic(netip.MustParseAddr(text)), text)
	}
	for _, text := range []string{
		"0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.8.9.1", "169.254.169.254",
		"172.16.0.1", "172.31.255.255", "192.0.0.8",
		"192.0.2.1", "192.168.1.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1",
		"255.255.255.255",
		"::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
		"64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1",
		"2002:7f00:1::", "fc00::1", "fd12:3456::1", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "2606:4700::1%eth0",
	} {
		require.False(t, IsPublic(netip.MustParseAddr(text)), text)
	}
}

// TestClientConnectsToPublicAddresses checks that a client does not connect to this machine, unless
// private addresses are allowed, and that the cause of an error does not contain the URL.
func TestClientConnectsToPublicAddresses(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(web.Close)
	_, err := Client(false, time.Minute).Get(web.URL + "/?signature=secret")
	require.ErrorIs(t, err, ErrPrivate)
	require.NotContains(t, Cause(err).Error(), "secret")
	response, err := Client(true, time.Minute).Get(web.URL)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
}
