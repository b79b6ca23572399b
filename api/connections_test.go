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
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
)

// brief are limits whose deadlines pass while a test looks on.
var brief = Limits{BodyTime: 300 * time.Millisecond, Grace: 300 * time.Millisecond, Rate: 1 << 20}

// serveHTTP serves the stage on a connection of the real http.Server.
func (s *stage) serveHTTP(limits ConnectionLimits) (address string) {
	s.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(s, err)
	server := HTTP(context.Background(), s.server, slog.New(slog.DiscardHandler))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(LimitConnections(listener, limits)) // it ends with the test
	}()
	s.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return listener.Addr().String()
}

// A rawConn is a client that sends what it likes.
type rawConn struct {
	testing.TB
	net.Conn
	answers *bufio.Reader
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

// answer reads one answer, its body included.
func (c rawConn) answer() *http.Response {
	c.Helper()
	answer, err := http.ReadResponse(c.answers, nil)
	require.NoError(c, err, "the request is answered")
	body, err := io.ReadAll(answer.Body)
	require.NoError(c, err)
	answer.Body = io.NopCloser(strings.NewReader(string(body)))
	return answer
}

// closed waits until the server has closed the connection.
func (c rawConn) closed() {
	c.Helper()
	_, err := io.Copy(io.Discard, c.answers)
	require.NotErrorIs(c, err, context.DeadlineExceeded)
	if timeout, ok := err.(net.Error); ok {
		require.False(c, timeout.Timeout(), "the connection is still held")
	}
}

// Nobody holds a connection by announcing a body and not sending it: of every
// operation that can be asked with a body, with a key and without.
func TestUnsentBodiesAreNotAwaited(t *testing.T) {
	s := newStage(t, brief)
	address := s.serveHTTP(ConnectionLimits{})
	var clients sync.WaitGroup
	defer clients.Wait()
	for _, op := range operations(nil) {
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
				status := c.answer().StatusCode
				assert.GreaterOrEqual(t, status, 400, "%s %s", op.Method, path)
				if key == "" && op.Gate != request.Everyone {
					assert.Equal(t, http.StatusUnauthorized, status, "%s %s", op.Method, path)
				}
				c.closed()
			})
		}
	}
}

// A body is judged by its progress: one that stands still is refused, one that
// goes on at the rate may take longer than any one wait.
func TestUploadsAreJudgedByProgress(t *testing.T) {
	s := newStage(t, Limits{Grace: 300 * time.Millisecond, Rate: 1000})
	require.Equal(t, http.StatusOK, s.call("POST", "/v1/accounts/acme/datasets", "admin", `{"datasetId": "d", "dataset": {}}`).status)
	address := s.serveHTTP(ConnectionLimits{})
	row := strings.Repeat(`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}`+"\n", 100)
	body := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f.jsonl\"\r\n\r\n" + row + "\r\n--b--\r\n"
	header := fmt.Sprintf("POST /v1/accounts/acme/datasets/d:upload HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: %d\r\n\r\n", s.keys["admin"], len(body))

	stalled := dial(t, address)
	stalled.send("%s%s", header, body[:1000])
	answer := stalled.answer()
	require.Equal(t, http.StatusRequestTimeout, answer.StatusCode)
	text, _ := io.ReadAll(answer.Body)
	require.Contains(t, string(text), "REQUEST_TOO_SLOW")
	stalled.closed()

	steady := dial(t, address)
	steady.send("%s%s", header, body[:2000])
	begun := time.Now()
	for rest := body[2000:]; len(rest) > 0; rest = rest[min(len(rest), 1000):] {
		<-time.After(200 * time.Millisecond) // the link of this client is slow
		steady.send("%s", rest[:min(len(rest), 1000)])
	}
	require.Greater(t, time.Since(begun), time.Second)
	require.Equal(t, http.StatusOK, steady.answer().StatusCode)
}

// A client that does not take its answer is not written to for ever.
func TestAnswersMustBeTaken(t *testing.T) {
	s := newStage(t, Limits{AnswerTime: 300 * time.Millisecond})
	cut := make(chan error, 1)
	server := HTTP(t.Context(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x, _ := s.server.begin(w, r)
		defer x.end()
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
		require.Fail(t, "the answer is still being written")
	}
}

// Connections beyond a limit are told so, and make place for nobody else's.
func TestConnectionsAreBounded(t *testing.T) {
	s := newStage(t, Limits{})
	spare := true
	var mu sync.Mutex
	address := s.serveHTTP(ConnectionLimits{Total: 5, PerAddress: 3, Spare: func() bool {
		mu.Lock()
		defer mu.Unlock()
		return spare
	}})
	refused := func(c rawConn, why string) {
		t.Helper()
		c.send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		answer := c.answer()
		require.Equal(t, http.StatusServiceUnavailable, answer.StatusCode)
		require.NotEmpty(t, answer.Header.Get("Retry-After"))
		var told struct {
			Code    domain.Code
			Message string
			Error   struct{ Message, Type, Code string }
		}
		require.NoError(t, json.NewDecoder(answer.Body).Decode(&told))
		require.Equal(t, domain.Unavailable, told.Code)
		require.Contains(t, told.Message, why)
		require.Equal(t, told.Message, told.Error.Message)
		c.closed()
	}
	var open []rawConn
	for _, alias := range []string{"user", "user", "other"} {
		open = append(open, dial(t, address))
		s.asks(open[len(open)-1], alias)
	}
	refused(dial(t, address), "--max-connections-per-address")
	for _, alias := range []string{"other", "operator"} {
		s.asks(dialFrom(t, "127.0.0.2", address), alias)
	}
	refused(dialFrom(t, "127.0.0.3", address), "--max-connections")

	require.NoError(t, open[0].Close())
	require.Eventually(t, func() bool {
		c := dial(t, address)
		defer c.Close()
		c.send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		return c.answer().StatusCode == http.StatusOK
	}, patience, 10*time.Millisecond, "a closed connection makes place")
	mu.Lock()
	spare = false
	mu.Unlock()
	refused(dialFrom(t, "127.0.0.4", address), "file descriptors")
	s.asks(open[1], "user")
}

// asks sends a request with a key on a connection, and has it answered.
func (s *stage) asks(c rawConn, alias string) {
	c.Helper()
	account := "acme"
	if alias == "other" {
		account = "other"
	}
	c.send("GET /v1/accounts/%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", account, s.key(alias))
	require.Equal(s, http.StatusOK, c.answer().StatusCode)
}

// When all places are taken, connections without a key give way, the oldest
// first, and so do those of an account beyond its share. What a known
// account has open stays.
func TestConnectionsWithoutAKeyGiveWay(t *testing.T) {
	s := newStage(t, Limits{})
	address := s.serveHTTP(ConnectionLimits{Total: 6})
	first := dialFrom(t, "127.0.0.2", address)
	first.send("POST /v1/accounts/acme/datasets HTTP/1.1\r\nHost: x\r\n")
	var known []rawConn
	for _, alias := range []string{"user", "user", "other", "other", "user"} {
		known = append(known, dial(t, address))
		s.asks(known[len(known)-1], alias)
	}
	beyond := known[4] // acme has two already
	flood := func(from string) rawConn {
		c := dialFrom(t, from, address)
		c.send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		require.Equal(t, http.StatusOK, c.answer().StatusCode)
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
	s.asks(late, "other")
	for _, c := range known[:4] {
		s.asks(c, "user")
	}
	s.asks(late, "other")
}

// A signed URL keeps the place of the connection on which it is answered.
func TestSignedURLsKeepTheirConnection(t *testing.T) {
	s := newStage(t, Limits{})
	s.datasetOf("d")
	require.Equal(t, 200, s.uploadRows("d", 3).status)
	a := s.call("GET", acme+"/datasets/d:getDownloadEndpoint", "user", "")
	path := strings.TrimPrefix(a.json(t)["filenameToSignedUrls"].(map[string]any)["rows.jsonl"].(string), s.url)
	address := s.serveHTTP(ConnectionLimits{Total: 2})
	reader := dial(t, address)
	for range 4 {
		reader.send("GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
		require.Equal(t, http.StatusOK, reader.answer().StatusCode)
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

// Memory for bodies is shared: an account that takes its share waits, and is
// refused when nothing is given back; others are let in meanwhile.
func TestMemoryForBodiesIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBodyBudget(4000)
		require.NoError(t, b.reserve(t.Context(), "a", 0, 600))
		require.NoError(t, b.reserve(t.Context(), "a", 600, 400), "it may grow to its share")
		err := b.reserve(t.Context(), "a", 0, 1)
		require.Equal(t, domain.ResourceExhausted, domain.CodeOf(err))
		require.Contains(t, err.Error(), "1000 for each account")
		require.Equal(t, domain.OutOfRange, domain.CodeOf(b.reserve(t.Context(), "b", 600, 401)), "a body that is larger than a share never fits")
		for _, other := range []string{"b", "c", "d"} {
			require.NoError(t, b.reserve(t.Context(), other, 0, 999), "others have shares of their own")
		}
		require.Error(t, b.reserve(t.Context(), "e", 0, 4), "all of it is bounded")
		waited := make(chan error, 1)
		go func() { waited <- b.reserve(t.Context(), "a", 0, 500) }()
		synctest.Wait()
		b.release("a", 1000)
		require.NoError(t, <-waited)
		b.release("a", 500)
		for _, other := range []string{"b", "c", "d"} {
			b.release(other, 999)
		}
		require.Zero(t, b.used)
		require.Empty(t, b.accounts)
	})
}

// Large bodies of several accounts leave an eighth of the memory for small ones.
func TestLargeBodiesLeaveRoomForSmallOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBodyBudget(64 << 20)
		for _, account := range []string{"a", "b", "c"} {
			require.NoError(t, b.reserve(t.Context(), account, 0, 16<<20))
		}
		require.NoError(t, b.reserve(t.Context(), "d", 0, 8<<20))
		require.Error(t, b.reserve(t.Context(), "d", 0, smallBody+1))
		require.Error(t, b.reserve(t.Context(), "d", smallBody, 1), "it has grown beyond a small one")
		require.NoError(t, b.reserve(t.Context(), "d", 0, smallBody))
		require.NoError(t, b.reserve(t.Context(), "e", 0, smallBody))
	})
}

// bodyCost is never less than what decoding a body takes, and for texts not
// much more.
func TestBodyCost(t *testing.T) {
	const size = 1 << 20
	list := func(element string) string {
		return `{"prompt":[` + strings.Repeat(element+",", size/(len(element)+1)) + element + `]}`
	}
	var keys strings.Builder
	for i := 0; keys.Len() < size; i++ {
		fmt.Fprintf(&keys, `"%x":0,`, i)
	}
	for name, body := range map[string]string{
		"text":     `{"prompt":"` + strings.Repeat("a", size) + `"}`,
		"digits":   list("0"),
		"tokens":   list("1234"),
		"empty":    list("{}"),
		"objects":  list(`{"":0}`),
		"lists":    list("[]"),
		"texts":    list(`""`),
		"keys":     "{" + keys.String() + `"":0}`,
		"messages": list(`{"role":"user","content":"What would you have for breakfast, if you could?"}`),
	} {
		t.Run(name, func(t *testing.T) {
			data := []byte(body)
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			value, err := wire.Parse(data)
			runtime.GC()
			runtime.ReadMemStats(&after)
			require.NoError(t, err)
			held := int64(after.HeapAlloc) - int64(before.HeapAlloc) + int64(len(data))
			runtime.KeepAlive(value)
			runtime.KeepAlive(data)
			t.Logf("%d bytes of body hold %d of memory: %d are reserved", len(data), held, bodyCost(data))
			require.LessOrEqual(t, held, bodyCost(data))
		})
	}
	require.Less(t, bodyCost([]byte(`{"prompt":"`+strings.Repeat("Is it so? Yes, it is. ", size/22)+`"}`)), int64(7*size))
}
