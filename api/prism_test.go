package api

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const prism = "../cmd/anneal/testdata/clients/node/node_modules/.bin/prism"

// TestPrismSeesNoViolation sends the request of every row through prism, which
// holds it and its answer against the document that the server serves.
func TestPrismSeesNoViolation(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after the other, and long")
	}
	if _, err := os.Stat(prism); err != nil {
		t.Skip("prism is not installed: make clients")
	}
	var current atomic.Pointer[Server]
	first := newStage(t, Limits{})
	current.Store(first.server)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { current.Load().ServeHTTP(w, r) }))
	t.Cleanup(upstream.Close)
	data, _ := first.server.about.bytes()
	file := filepath.Join(t.TempDir(), "openapi.json")
	require.NoError(t, os.WriteFile(file, data, 0o644))
	between := startPrism(t, file, upstream.URL)
	for _, r := range operationRows() {
		t.Run(r.id, func(t *testing.T) {
			s := newStage(t, Limits{})
			if r.stage != nil {
				r.stage(s)
			}
			s.set(r.scene)
			current.Store(s.server)
			through := *s
			through.url = between
			request := parseRequest(r.request).on(&through)
			if request.Header.Get("Content-Type") == "" && request.ContentLength > 0 {
				request.Header.Set("Content-Type", "application/json") // without it prism takes a body for text
			}
			a := through.send(request)
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
			require.Empty(t, a.header.Get("sl-violations"))
			require.NotContains(t, a.header.Get("Content-Type"), "problem+json")
		})
	}
}

// startPrism starts prism before a server, and answers its URL once it listens.
func startPrism(t *testing.T, document, upstream string) string {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(free.Addr().String())
	require.NoError(t, err)
	require.NoError(t, free.Close())
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	command := exec.CommandContext(ctx, prism, "proxy", document, upstream, "--errors", "--host", "127.0.0.1", "--port", port)
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	command.Stderr = command.Stdout
	require.NoError(t, command.Start())
	said, listening := bufio.NewScanner(out), false
	var lines []string
	for !listening && said.Scan() {
		lines = append(lines, said.Text())
		listening = strings.Contains(said.Text(), "Prism is listening")
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for said.Scan() { // so that it never waits to be heard
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		_ = command.Wait()
	})
	require.True(t, listening, "%s", strings.Join(lines, "\n"))
	return "http://127.0.0.1:" + port
}
