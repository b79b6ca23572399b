package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/api/connection"
	"anneal/api/request"
	"anneal/domain"
	"anneal/internal/testutil"
)

// brief has timeouts that are short enough to expire in a test.
var brief = request.Limits{BodyTime: 300 * time.Millisecond, Grace: 300 * time.Millisecond, Rate: 1 << 20}

// serveHTTP serves the harness on connections of a real http.Server.
func (s *harness) serveHTTP(limits connection.Limits) (address string) {
	s.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(s, err)
	server := connection.NewServer(context.Background(), s.server, slog.New(slog.DiscardHandler))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(connection.Limit(listener, limits)) // ends with the test
	}()
	s.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return listener.Addr().String()
}

// A rawConn is a client that sends arbitrary bytes.
type rawConn struct {
	testing.TB
	net.Conn
	responses *bufio.Reader
}

func dial(t testing.TB, address string) rawConn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	t.Cleanup(func() { _ = conn.Close() })
	return rawConn{t, conn, bufio.NewReader(conn)}
}

func (c rawConn) send(format string, args ...any) {
	c.Helper()
	_, err := fmt.Fprintf(c, format, args...)
	require.NoError(c, err)
}

// readResponse reads one response with its body.
func (c rawConn) readResponse() *http.Response {
	c.Helper()
	response, err := http.ReadResponse(c.responses, nil)
	require.NoError(c, err, "the request gets a response")
	body := testutil.ReadAll(c, response.Body)
	response.Body = io.NopCloser(strings.NewReader(string(body)))
	return response
}

// closed waits until the server closes the connection.
func (c rawConn) closed() {
	c.Helper()
	_, err := io.Copy(io.Discard, c.responses)
	require.NotErrorIs(c, err, context.DeadlineExceeded)
	if timeout, ok := err.(net.Error); ok {
		require.False(c, timeout.Timeout(), "the connection is still open")
	}
}

// TestUnsentBodiesEndConnections checks that the server closes the connection of a client that
// announces a body and does not send it. The test announces bodies to every operation that accepts
// a body, with and without an API key.
func TestUnsentBodiesEndConnections(t *testing.T) {
	s := newHarness(t, brief)
	address := s.serveHTTP(connection.Limits{})
	var clients sync.WaitGroup
	defer clients.Wait()
	for _, op := range (&Server{}).operations() {
		if op.Method == http.MethodGet {
			continue
		}
		path := strings.NewReplacer("{account}", "acme", "{", "", "}", "", "*", "x").Replace(op.Path)
		for _, key := range []string{"", s.keys["admin"]} {
			c := dial(t, address)
			clients.Go(func() {
				c.send("%s %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n", op.Method, path)
				if key != "" {
					c.send("Authorization: Bearer %s\r\n", key)
				}
				c.send("\r\n")
				status := c.readResponse().StatusCode
				assert.GreaterOrEqual(t, status, 400, "%s %s", op.Method, path)
				if key == "" && op.Gate != request.Everyone {
					assert.Equal(t, http.StatusUnauthorized, status, "%s %s", op.Method, path)
				}
				c.closed()
			})
		}
	}
}

// TestUploadsAreLimitedByProgress checks that uploads are limited by their progress: a stalled
// upload is rejected, and an upload at the minimum rate may take longer than any single wait.
func TestUploadsAreLimitedByProgress(t *testing.T) {
	s := newHarness(t, request.Limits{Grace: 300 * time.Millisecond, Rate: 1000})
	require.Equal(t, http.StatusOK,
		s.call("POST", "/v1/accounts/acme/datasets", "admin", `{"datasetId": "d", "dataset": {}}`).status)
	address := s.serveHTTP(connection.Limits{})
	row := strings.Repeat(`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}`+"\n", 100)
	body := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f.jsonl\"\r\n\r\n" + row + "\r\n--b--\r\n"
	header := fmt.Sprintf("POST /v1/accounts/acme/datasets/d:upload HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: %d\r\n\r\n", s.keys["admin"], len(body))

	stalled := dial(t, address)
	stalled.send("%s%s", header, body[:1000])
	response := stalled.readResponse()
	require.Equal(t, http.StatusRequestTimeout, response.StatusCode)
	text, _ := io.ReadAll(response.Body)
	require.Contains(t, string(text), "REQUEST_TOO_SLOW")
	stalled.closed()

	steady := dial(t, address)
	steady.send("%s%s", header, body[:2000])
	begun := time.Now()
	for rest := body[2000:]; len(rest) > 0; rest = rest[min(len(rest), 1000):] {
		<-time.After(200 * time.Millisecond) // a client with a slow connection
		steady.send("%s", rest[:min(len(rest), 1000)])
	}
	require.Greater(t, time.Since(begun), time.Second)
	require.Equal(t, http.StatusOK, steady.readResponse().StatusCode)
}

// TestRefusedUploadsGetTheirResponse checks that a client that sends its whole body before it reads
// the response gets the response of a request that was refused before the body was read.
func TestRefusedUploadsGetTheirResponse(t *testing.T) {
	s := newHarness(t, request.Limits{})
	address := s.serveHTTP(connection.Limits{})
	const form = "multipart/form-data; boundary=b"
	for _, size := range []int{20_000, 100_000, 8 << 20} {
		body := strings.Repeat("x", size)
		for name, c := range map[string]struct {
			path, key, header string
			status            int
		}{
			"missing dataset":  {"datasets/missing:upload", s.keys["admin"], form, http.StatusNotFound},
			"missing model":    {"models/missing:upload", s.keys["admin"], form, http.StatusNotFound},
			"a wrong API key":  {"datasets/missing:upload", "ak_wrong", form, http.StatusUnauthorized},
			"a body too large": {"datasets", s.keys["admin"], "application/json", http.StatusBadRequest},
		} {
			for _, framing := range []string{"Content-Length", "chunked"} {
				t.Run(fmt.Sprintf("%s, %d bytes, %s", name, size, framing), func(t *testing.T) {
					t.Parallel()
					length, sent := fmt.Sprintf("Content-Length: %d", size), body
					if framing == "chunked" {
						length, sent = "Transfer-Encoding: chunked", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", size, body)
					}
					conn := dial(t, address)
					conn.send("POST /v1/accounts/acme/%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"+
						"Content-Type: %s\r\n%s\r\n\r\n%s", c.path, c.key, c.header, length, sent)
					status := conn.readResponse().StatusCode
					if name == "a body too large" && size > 1<<20 {
						require.Equal(t, http.StatusRequestEntityTooLarge, status)
					} else {
						require.Equal(t, c.status, status)
					}
				})
			}
		}
	}
}

// TestResponsesMustBeRead checks that the server stops writing to a client that does not read its
// response.
func TestResponsesMustBeRead(t *testing.T) {
	s := newHarness(t, request.Limits{AnswerTime: 300 * time.Millisecond})
	cut := make(chan error, 1)
	server := connection.NewServer(t.Context(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x, _ := connection.Begin(&s.server.Limits, s.server.bodies, w, r)
		defer x.End()
		_, err := x.Write(make([]byte, 64<<20))
		cut <- err
	}), slog.New(slog.DiscardHandler))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go server.Serve(listener) //nolint:errcheck // it ends with the test
	defer server.Close()
	c := dial(t, listener.Addr().String())
	c.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	select {
	case err := <-cut:
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	case <-time.After(20 * time.Second):
		require.Fail(t, "the response is still being written")
	}
}

// TestConnectionsAreBounded checks that connections beyond each limit are rejected with a message,
// and do not replace authenticated connections of other clients.
func TestConnectionsAreBounded(t *testing.T) {
	s := newHarness(t, request.Limits{})
	spare := true
	var mu sync.Mutex
	address := s.serveHTTP(connection.Limits{Total: 5, PerAddress: 3, Spare: func() bool {
		mu.Lock()
		defer mu.Unlock()
		return spare
	}})
	refused := func(c rawConn, why string) {
		t.Helper()
		c.send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		response := c.readResponse()
		require.Equal(t, http.StatusServiceUnavailable, response.StatusCode)
		require.NotEmpty(t, response.Header.Get("Retry-After"))
		var fullOutput struct {
			Code    domain.Code
			Message string
			Error   struct{ Message, Type, Code string }
		}
		require.NoError(t, json.NewDecoder(response.Body).Decode(&fullOutput))
		require.Equal(t, domain.Unavailable, fullOutput.Code)
		require.Contains(t, fullOutput.Message, why)
		require.Equal(t, fullOutput.Message, fullOutput.Error.Message)
		c.closed()
	}
	var open []rawConn
	for _, alias := range []string{"user", "user", "other"} {
		open = append(open, dial(t, address))
		s.sendOn(open[len(open)-1], alias)
	}
	refused(dial(t, address), "--max-connections-per-address")
	for _, alias := range []string{"other", "operator"} {
		s.sendOn(dialFrom(t, "127.0.0.2", address), alias)
	}
	refused(dialFrom(t, "127.0.0.3", address), "--max-connections")

	require.NoError(t, open[0].Close())
	require.Eventually(t, func() bool {
		c := dial(t, address)
		defer c.Close()
		c.send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		return c.readResponse().StatusCode == http.StatusOK
	}, patience, 10*time.Millisecond, "a closed connection is not counted")
	mu.Lock()
	spare = false
	mu.Unlock()
	refused(dialFrom(t, "127.0.0.4", address), "file descriptors")
	s.sendOn(open[1], "user")
}

// sendOn sends a request with a key on a connection, and reads the response.
func (s *harness) sendOn(c rawConn, alias string) {
	c.Helper()
	account := "acme"
	if alias == "other" {
		account = "other"
	}
	c.send("GET /v1/accounts/%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", account, s.key(alias))
	require.Equal(s, http.StatusOK, c.readResponse().StatusCode)
}

// TestConnectionsWithoutKeyAreReplaced checks that new connections at the limit replace the oldest
// connections without an API key, and connections of an account beyond the share of the account.
// All other authenticated connections stay open.
func TestConnectionsWithoutKeyAreReplaced(t *testing.T) {
	s := newHarness(t, request.Limits{})
	address := s.serveHTTP(connection.Limits{Total: 6})
	first := dialFrom(t, "127.0.0.2", address)
	first.send("POST /v1/accounts/acme/datasets HTTP/1.1\r\nHost: x\r\n")
	var known []rawConn
	for _, alias := range []string{"user", "user", "other", "other", "user"} {
		known = append(known, dial(t, address))
		s.sendOn(known[len(known)-1], alias)
	}
	beyond := known[4] // beyond the share, because acme has two connections already
	flood := func(from string) rawConn {
		c := dialFrom(t, from, address)
		c.send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		require.Equal(t, http.StatusOK, c.readResponse().StatusCode)
		return c
	}
	third := flood("127.0.0.3")
	first.closed()
	fourth := flood("127.0.0.4")
	beyond.closed()
	for range 3 {
		next := flood("127.0.0.5")
		third.closed()
		third, fourth = fourth, next
	}
	late := dial(t, address)
	s.sendOn(late, "other")
	for _, c := range known[:4] {
		s.sendOn(c, "user")
	}
	s.sendOn(late, "other")
}

// TestSignedURLsKeepTheirConnection checks that a request to a signed URL protects its connection
// from replacement.
func TestSignedURLsKeepTheirConnection(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.datasetOf("d")
	require.Equal(t, 200, s.uploadRows("d", 3).status)
	a := s.call("GET", acme+"/datasets/d:getDownloadEndpoint", "user", "")
	path := strings.TrimPrefix(a.json(t)["filenameToSignedUrls"].(map[string]any)["rows.jsonl"].(string), s.url)
	address := s.serveHTTP(connection.Limits{Total: 2})
	reader := dial(t, address)
	for range 4 {
		reader.send("GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
		require.Equal(t, http.StatusOK, reader.readResponse().StatusCode)
		dialFrom(t, "127.0.0.2", address).send("GET /healthz HTTP/1.1\r\nHost: x\r\n")
	}
}

func dialFrom(t testing.TB, from, address string) rawConn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.Dial("tcp", address)
	if err != nil {
		t.Skipf("this system has no second loopback address: %v", err)
	}
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	t.Cleanup(func() { _ = conn.Close() })
	return rawConn{t, conn, bufio.NewReader(conn)}
}
