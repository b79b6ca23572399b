package api

import (
	"context"
	"errors"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/disk"
	"anneal/projections"
)

// TestReadiness checks when a server is ready to read and infer, and when it is ready to write.
func TestReadiness(t *testing.T) {
	for name, one := range map[string]struct {
		change      func(*testing.T, *Options)
		read, write int
		reason      string
	}{
		"running": {func(*testing.T, *Options) {}, 200, 200, ""},
		"the log does not respond": {func(_ *testing.T, o *Options) { o.Log = brokenLog{o.Log} }, 200, 503,
			"log cannot be read"},
		"the disk is full": {func(_ *testing.T, o *Options) {
			o.Space = disk.New(func() (uint64, error) { return 1, nil })
		}, 200, 503, "disk is nearly full"},
		"no connection to NATS": {func(_ *testing.T, o *Options) {
			o.Link = func() error { return errors.New("not connected") }
		}, 503, 503, "not connected"},
		"the world does not follow it": {stopFollowing, 503, 503, "has been behind the log"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newHarness(t, request.Limits{})
			s = s.another(func(o *Options) { one.change(t, o) })
			require.Eventually(t, func() bool { return s.call("GET", "/readyz", "", "").status == one.read }, patience,
				time.Millisecond)
			a := s.call("GET", "/readyz/write", "", "")
			require.Equal(t, one.write, a.status, "%s", a.body)
			if one.write != 200 {
				require.Contains(t, string(a.body), one.reason)
				require.Equal(t, "5", a.header.Get("Retry-After"))
			}
			s.deploy("d1", 1)
			if one.read == 200 {
				require.Equal(t, 200, s.call("GET", "/v1/accounts/acme/deployments/d1", "user", "").status)
				require.Equal(t, "one two ", textOf(t, s.complete(`"prompt": "one two"`)))
			}
		})
	}
}

// stopFollowing gives the server a world that learns of events of the log, but does not fold them.
func stopFollowing(t *testing.T, o *Options) {
	w := projections.NewWorld()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = w.KeepConfirming(ctx, o.Log)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	o.World = w
}

// TestLameDuck checks that a server that is about to stop reports that it is not ready, and still
// serves requests, after which it closes their connections.
func TestLameDuck(t *testing.T) {
	s := servingHarness(t, 1)
	connection := func() string { // a client does not see the header
		w := httptest.NewRecorder()
		s.server.ServeHTTP(w, s.request("GET", "/healthz", "", nil))
		require.Equal(t, 200, w.Code)
		return w.Header().Get("Connection")
	}
	require.Empty(t, connection())
	s.server.LameDuck()
	for _, path := range []string{"/readyz", "/readyz/write"} {
		a := s.call("GET", path, "", "")
		require.Equal(t, 503, a.status)
		require.Contains(t, string(a.body), "shutting down")
	}
	require.Equal(t, "one two ", textOf(t, s.complete(`"prompt": "one two"`)))
	require.Equal(t, "close", connection())
}
