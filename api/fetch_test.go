package api

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"anneal/api/request"

	"github.com/stretchr/testify/require"
)

// recordingServer returns a server with recordings, on the loopback interface.
func recordingServer(t *testing.T) *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("/speech.wav", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "go forward") })
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) {
		_,
			_ = io.WriteString(w, strings.Repeat("a", 101))
	})
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

func TestRecordingsFromURLs(t *testing.T) {
	from := recordingServer(t)
	s := newHarness(t, request.Limits{Audio: 100})
	s.deploySpeechReplicas(1)
	patient := s.another(func(o *Options) { o.Private, o.Limits.Fetch = true, patience })
	hasty := s.another(func(o *Options) { o.Private, o.Limits.Fetch = true, 200*time.Millisecond })
	for path, c := range map[string]struct {
		status  int
		message string
	}{
		"/speech.wav":  {200, "go forward"},
		"/hops/4":      {200, "go forward"},
		"/hops/5":      {400, "is redirected more than 5 times"},
		"/large":       {400, "refers to a file that is larger than the limit of 100 bytes"},
		"/unannounced": {400, "refers to a file that is larger than the limit of 100 bytes"},
		"/empty":       {400, "refers to an empty file"},
		"/half":        {400, "could not be downloaded completely"},
		"/slow":        {400, "was not downloaded within 200ms"},
		"/missing":     {400, "returns HTTP status 404"},
		"/to?at=" + url.QueryEscape("file:///etc/passwd"):          {400, "is redirected to a URL that is not http or https"},
		"/to?at=" + url.QueryEscape("http://a:b@127.0.0.1/"):       {400, "is redirected to a URL that is not http or https"},
		"/to?at=" + url.QueryEscape("http://127.0.0.1:1/"):         {400, "refers to a server that cannot be reached"},
		"/to?at=" + url.QueryEscape("http://no.such.host.invalid"): {400, "file: "},
	} {
		for _, field := range []string{"file", "url"} {
			// resolving a host name that does not exist may take long
			at := patient
			if path == "/slow" || strings.HasSuffix(path, "invalid") {
				at = hasty
			}
			a := at.send(at.parts(part{field, "", from.URL + path}, part{"model", "", hearer}))
			require.Equal(t, c.status, a.status, "%s: %s", path, a.body)
			require.Contains(t, string(a.body), strings.Replace(c.message, "file: ", field+": ", 1))
			require.NotContains(t, string(a.body), from.URL, "a URL may carry a signature")
			s.requireNoRecordings()
		}
	}
}

// TestNoRecordingsFromPrivateAddresses checks that the server does not download recordings from
// private addresses, whether a URL contains the IP address or a host name.
func TestNoRecordingsFromPrivateAddresses(t *testing.T) {
	from := recordingServer(t)
	s := speechHarness(t, 1)
	at, err := url.Parse(from.URL)
	require.NoError(t, err)
	port := at.Port()
	for _, host := range []string{"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433",
		"0x7f000001", "[64:ff9b::7f00:1]", "169.254.169.254", "10.0.0.1"} {
		a := s.send(s.parts(part{"url", "", "http://" + host + ":" + port + "/speech.wav"}, part{"model", "", hearer}))
		require.Equal(t, 400, a.status, "%s: %s", host, a.body)
		require.Regexp(t, "refers to a private address|has a host name that does not "+
			"resolve", string(a.body), host)
	}
	require.Empty(t, s.replicas.requestIDs())
}

// TestInvalidRequestsFetchNothing checks that a request with an invalid option or model is rejected
// before the recording is downloaded.
func TestInvalidRequestsFetchNothing(t *testing.T) {
	requests := 0
	from := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests++ }))
	t.Cleanup(from.Close)
	s := speechHarness(t, 1)
	s = s.another(func(o *Options) { o.Private, o.Limits.Fetch = true, time.Second })
	link := part{"url", "", from.URL}
	rejectedWith(t, s.send(s.parts(link, part{"model", "", hearer}, part{"temperature", "", "2"})), 400, "temperature")
	rejectedWith(t, s.send(s.parts(link, part{"model", "", "accounts/acme/deployments/none"})), 404)
	require.Zero(t, requests)
}
