package api

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPublicAddresses(t *testing.T) {
	for _, text := range []string{"1.1.1.1", "93.184.216.34", "100.63.255.255", "100.128.0.1", "172.32.0.1", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"} {
		require.True(t, public(netip.MustParseAddr(text)), text)
	}
	for _, text := range []string{
		"0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.8.9.1", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.8",
		"192.0.2.1", "192.168.1.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1",
		"2002:7f00:1::", "fc00::1", "fd12:3456::1", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "2606:4700::1%eth0",
	} {
		require.False(t, public(netip.MustParseAddr(text)), text)
	}
}

// lends is a server with recordings, at an address of the loopback.
func lends(t *testing.T) *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("/speech.wav", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "go forward") })
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("a", 101)) })
	mux.HandleFunc("/unannounced", func(w http.ResponseWriter, _ *http.Request) {
		for range 101 {
			_, _ = io.WriteString(w, "a")
			_ = http.NewResponseController(w).Flush()
		}
	})
	mux.HandleFunc("/empty", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/half", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "50")
		_, _ = io.WriteString(w, "half")
	})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "go")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("/hops/{n}", func(w http.ResponseWriter, r *http.Request) {
		var n int
		_, _ = fmt.Sscan(r.PathValue("n"), &n)
		if n == 0 {
			http.Redirect(w, r, "/speech.wav", http.StatusFound)
			return
		}
		http.Redirect(w, r, fmt.Sprintf("/hops/%d", n-1), http.StatusFound)
	})
	mux.HandleFunc("/to", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", r.URL.Query().Get("at"))
		w.WriteHeader(http.StatusTemporaryRedirect)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

func TestRecordingsFromElsewhere(t *testing.T) {
	from := lends(t)
	s := newStage(t, Limits{Audio: 100})
	s.hearers(1)
	patient, hasty := newFetcher(patience, true), newFetcher(200*time.Millisecond, true)
	for path, c := range map[string]struct {
		status int
		says   string
	}{
		"/speech.wav":  {200, "go forward"},
		"/hops/4":      {200, "go forward"},
		"/hops/5":      {400, "leads on more than 5 times"},
		"/large":       {400, "leads to a file larger than the 100 bytes"},
		"/unannounced": {400, "leads to a file larger than the 100 bytes"},
		"/empty":       {400, "leads to an empty file"},
		"/half":        {400, "could not be read to its end"},
		"/slow":        {400, "was not read within 200ms"},
		"/missing":     {400, "is answered with status 404"},
		"/to?at=" + url.QueryEscape("file:///etc/passwd"):          {400, "leads to what is no URL of http or https"},
		"/to?at=" + url.QueryEscape("http://a:b@127.0.0.1/"):       {400, "leads to what is no URL of http or https"},
		"/to?at=" + url.QueryEscape("http://127.0.0.1:1/"):         {400, "leads to a server that does not answer"},
		"/to?at=" + url.QueryEscape("http://no.such.host.invalid"): {400, "file: "},
	} {
		for _, field := range []string{"file", "url"} {
			if s.server.fetcher = patient; path == "/slow" || strings.HasSuffix(path, "invalid") { // a name server may be slow, too
				s.server.fetcher = hasty
			}
			a := s.send(s.parts(part{field, "", from.URL + path}, part{"model", "", hearer}))
			require.Equal(t, c.status, a.status, "%s: %s", path, a.body)
			require.Contains(t, string(a.body), strings.Replace(c.says, "file: ", field+": ", 1))
			require.NotContains(t, string(a.body), from.URL, "a URL may carry a signature")
			s.nothingStays()
		}
	}
}

// Nothing leads to addresses that are not public: neither numbers nor names nor
// what is public and leads on.
func TestNoRecordingsFromInside(t *testing.T) {
	from := lends(t)
	s := newStage(t, Limits{})
	s.hearers(1)
	at, err := url.Parse(from.URL)
	require.NoError(t, err)
	port := at.Port()
	for _, host := range []string{"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433", "0x7f000001", "[64:ff9b::7f00:1]", "169.254.169.254", "10.0.0.1"} {
		a := s.send(s.parts(part{"url", "", "http://" + host + ":" + port + "/speech.wav"}, part{"model", "", hearer}))
		require.Equal(t, 400, a.status, "%s: %s", host, a.body)
		require.Regexp(t, "leads to an address that is not public|names a host that is not found", string(a.body), host)
	}
	require.Empty(t, s.replicas.asks())

	inside := newFetcher(patience, false)
	stranger := inside.client.Transport.(*http.Transport).DialContext
	first := true
	inside.client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if first { // as if the first were public
			first = false
			return newFetcher(patience, true).client.Transport.(*http.Transport).DialContext(ctx, network, address)
		}
		return stranger(ctx, network, address)
	}
	_, _, err = inside.get(t.Context(), from.URL+"/hops/0")
	require.ErrorIs(t, err, errPrivate, "what leads on is judged again")
	require.False(t, first)
}

// What is wrong with the options, or with the model, is told before anything is
// fetched.
func TestNothingIsFetchedForNothing(t *testing.T) {
	asked := 0
	from := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	t.Cleanup(from.Close)
	s := newStage(t, Limits{})
	s.hearers(1)
	s.server.fetcher = newFetcher(time.Second, true)
	link := part{"url", "", from.URL}
	refusedWith(t, s.send(s.parts(link, part{"model", "", hearer}, part{"temperature", "", "2"})), 400, "temperature")
	refusedWith(t, s.send(s.parts(link, part{"model", "", "accounts/acme/deployments/none"})), 404)
	require.Zero(t, asked)
}
