//go:build linux

package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const (
	hostileFiles   = 700       // descriptors that the server can open
	hostileMemory  = 128 << 20 // bytes for JSON bodies
	hostileData    = 700 << 20 // bytes of data segment of the server: allocating more ends the server
	slowdown       = 3         // limit of the increase of other clients' 99th percentile
	reservedForLog = 200       // descriptors that stay free: 256 are reserved; requests in progress can use some of them
)

// An attack is run by a malicious client until ctx is done. do returns the number of connections
// that were opened, or of requests that were sent.
type attack struct {
	name string
	do   func(ctx context.Context, h *attacker) (times int64)
	from int // number of addresses from which the attack connects
}

// attacks are the attacks that `make hostile` runs.
var attacks = []attack{
	{"slow headers", slowHeaders, 1},
	{"slow headers from 40 addresses", slowHeaders, 40},
	{"unsent bodies without a key", unsentBodies, 1},
	{"unsent bodies without a key from 40 addresses", unsentBodies, 40},
	{"stalled bodies, with a key", standingBodies, 1},
	{"responses that are not read", unreadAnswers, 1},
	{"a flood of connections", connectionFlood, 1},
	{"a flood of connections from 40 addresses", connectionFlood, 40},
	{"bodies that require much memory", largeBodies, 1},
	{"bodies that require much memory, of 4 accounts", largeBodiesOfMany, 4},
	{"many followers of events", manyTails, 1},
}

// attacker runs attacks, with its own accounts.
type attacker struct {
	*testing.T
	server string // host:port
	key    string // API key of account mallory
	from   int    // addresses from which it connects
	dialed atomic.Int64

	callers []caller // clients of account mallory and of further accounts
}

// TestHostileClients checks that the server survives attacks, and serves other clients during the
// attacks. ANNEAL_HOSTILE is the duration of each attack, such as 20s. With it, the 99th percentile
// of a well-behaved tenant during an attack must be at most slowdown times the one without an
// attack. Without it, the test is short and only prints the figures.
func TestHostileClients(t *testing.T) {
	long := os.Getenv("ANNEAL_HOSTILE")
	length := time.Second
	if long != "" {
		var err error
		length, err = time.ParseDuration(long)
		require.NoError(t, err, "ANNEAL_HOSTILE")
	}
	s := &plane{t: t, dir: t.TempDir(), files: hostileFiles, data: hostileData >> 10, log: logFor(t, "anneal serve"),
		args: []string{"--worker=false", "--max-body-memory", strconv.Itoa(hostileMemory)}}
	s.start()
	tenant, mallory := s.user(), s.otherAccount("mallory")
	for i := range 20 {
		tenant.must(http.MethodPost, "/datasets", object{"datasetId": fmt.Sprintf("d%d", i), "dataset": object{}})
	}
	address, err := url.Parse(s.context.Address)
	require.NoError(t, err)
	h := &attacker{T: t, server: address.Host, key: mallory.key, callers: []caller{mallory}, from: 1}
	for i := range 3 {
		h.callers = append(h.callers, s.otherAccount(fmt.Sprintf("mallory-%d", i)))
	}
	if conn := h.dial(t.Context()); conn == nil {
		t.Skip("this system has no second loopback address, from which attackers connect")
	} else {
		_ = conn.Close()
	}
	m := &measurement{tenant: tenant, server: s}
	for _, one := range attacks {
		t.Run(one.name, func(t *testing.T) {
			m.T = t
			h.from = one.from
			for round := 1; ; round++ { // another program may disturb one round, which does not fail the test
				quiet, during := m.compare(length, h, one)
				require.Less(t, during.descriptors, hostileFiles-reservedForLog, "descriptors remain for the log")
				if long == "" || during.p99 <= slowdown*quiet.p99 {
					return
				}
				require.Less(t, round, 3, "other clients are served at most %d times slower, in one of three rounds", slowdown)
			}
		})
	}
	tenant.must(http.MethodPost, "/datasets", object{"datasetId": "after", "dataset": object{}})
	require.NotContains(t, s.log.whole(), "stops after a failure")
	require.Zero(t, s.end())
	require.Contains(t, s.run("log", "verify", "--data", s.dir).ok(t), "equal")
}

// timing is how fast a tenant was served.
type timing struct {
	p99         time.Duration // 99th percentile of requests on reused connections
	newConns    time.Duration // 99th percentile of requests on new connections
	requests    int
	descriptors int // maximum number that the server had open
}

// A measurement times the reads and writes of a well-behaved tenant.
type measurement struct {
	*testing.T
	tenant caller
	server *plane
	made   int
}

// compare returns the timings of the tenant without an attack, and during an attack.
func (m *measurement) compare(length time.Duration, h *attacker, one attack) (quiet, during timing) {
	m.Helper()
	quiet = m.measure(length)
	ctx, cancel := context.WithCancel(m.Context())
	defer cancel()
	done := make(chan int64, 1)
	go func() { done <- one.do(ctx, h) }()
	during = m.measure(length)
	cancel()
	times := <-done
	m.Logf("p99 quiet %s (%d requests), during %s (%d requests): %.1f times; new connections p99 quiet %s, during "+
		"%s; done %d times; peak memory %d MB, at most %d descriptors",
		quiet.p99, quiet.requests, during.p99, during.requests, float64(during.p99)/float64(quiet.p99), quiet.newConns,
		during.newConns, times, m.server.peakMemory()>>20, during.descriptors)
	require.Positive(m, times)
	return quiet, during
}

// measure sends the tenant's requests for the duration length, and returns their timing. Each
// request must succeed; one in ten uses a new connection.
func (m *measurement) measure(length time.Duration) (found timing) {
	m.Helper()
	newConns := m.tenant
	newConns.http = &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	var kept, fresh []time.Duration
	for begun := time.Now(); time.Since(begun) < length || len(kept) < 100; {
		m.made++
		asked := time.Now()
		method, path, body, who, took := http.MethodGet, "/datasets?pageSize=20", any(nil), m.tenant, &kept
		switch {
		case m.made%4 == 0:
			method, path, body = http.MethodPost, "/datasets",
				object{"datasetId": fmt.Sprintf("more-%d", m.made), "dataset": object{}}
		case m.made%10 == 1:
			who, took = newConns, &fresh
		}
		status, answer, err := who.ask(method, path, body)
		require.NoError(m, err, "other clients are served")
		require.Equal(m, http.StatusOK, status, "%v", answer)
		*took = append(*took, time.Since(asked))
		if m.made%50 == 0 {
			found.descriptors = max(found.descriptors, m.server.descriptors())
		}
	}
	found.p99, found.newConns, found.requests = percentile99(kept), percentile99(fresh), len(kept)+len(fresh)
	return found
}

func percentile99(took []time.Duration) time.Duration {
	slices.Sort(took)
	return took[len(took)*99/100]
}

// dial connects to the server from the next of the attacker's addresses. It returns nil if the
// connection fails.
func (h *attacker) dial(ctx context.Context) net.Conn {
	address := fmt.Sprintf("127.0.0.%d", 2+h.dialed.Add(1)%int64(h.from))
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}, Timeout: 5 * time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", h.server)
	if err != nil {
		return nil
	}
	return conn
}

// hold keeps as many connections open as possible until ctx is done, and returns the number of
// connections that it opened. On each connection it sends text, and then drip from time to time. It
// reopens the connections that the server closes.
func (h *attacker) hold(ctx context.Context, text, drip string) (times int64) {
	var held []net.Conn
	defer func() {
		for _, conn := range held {
			_ = conn.Close()
		}
	}()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for n := 0; ; n++ {
		if len(held) < 2*hostileFiles {
			if conn := h.dial(ctx); conn != nil {
				_, _ = io.WriteString(conn, text)
				held, times = append(held, conn), times+1
			}
		}
		if at := n % max(1, len(held)); len(held) > 0 {
			if _, err := io.WriteString(held[at], drip); err != nil || ended(held[at]) {
				_ = held[at].Close()
				held = slices.Delete(held, at, at+1)
			}
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return times
		}
	}
}

// ended reports whether the server has closed a connection. It reads nothing from the connection.
func ended(conn net.Conn) bool {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return true
	}
	const established = 1 // one of the kernel's TCP states
	ended := true
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		ended = err != nil || info.State != established
	})
	return ended || err != nil
}

func slowHeaders(ctx context.Context, h *attacker) int64 {
	return h.hold(ctx, "GET /healthz HTTP/1.1\r\nHost: x\r\n", "X-Slow: 1\r\n")
}

func unsentBodies(ctx context.Context, h *attacker) int64 {
	return h.hold(ctx, "POST /v1/accounts/mallory/datasets HTTP/1.1\r\nHost: x\r\nContent-Type: "+
		"application/json\r\nContent-Length: 100000\r\n\r\n", "")
}

func standingBodies(ctx context.Context, h *attacker) int64 {
	return h.hold(ctx, "POST /v1/accounts/mallory/datasets HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+h.key+
		"\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{", " ")
}

func unreadAnswers(ctx context.Context, h *attacker) int64 {
	return h.hold(ctx, strings.Repeat("GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n", 20),
		"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
}

func connectionFlood(ctx context.Context, h *attacker) int64 {
	var times atomic.Int64
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			again := time.NewTicker(2 * time.Millisecond)
			defer again.Stop()
			for ctx.Err() == nil {
				if conn := h.dial(ctx); conn != nil {
					times.Add(1)
					_ = conn.Close()
				}
				<-again.C
			}
		})
	}
	clients.Wait()
	return times.Load()
}

// largeBodies sends bodies whose decoding requires 50 times their size, and returns the number of
// requests.
func largeBodies(ctx context.Context, h *attacker) int64 { return h.sendBodies(ctx, h.callers[:1]) }

func largeBodiesOfMany(ctx context.Context, h *attacker) int64 { return h.sendBodies(ctx, h.callers) }

func (h *attacker) sendBodies(ctx context.Context, callers []caller) int64 {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if conn := h.dial(ctx); conn != nil {
				return conn, nil
			}
			return nil, syscall.ECONNREFUSED
		}}}
	defer client.CloseIdleConnections()
	const bodySize = 400 << 10
	body := []byte(`{"dataset":[` + strings.Repeat(`{"":0},`, bodySize/7) + `{}]}`)
	var times atomic.Int64
	var clients sync.WaitGroup
	for i := range 4 * len(callers) { // more clients would themselves use the cores of this machine
		sender := callers[i%len(callers)]
		clients.Go(func() {
			for ctx.Err() == nil {
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, sender.url("/datasets"), bytes.NewReader(body))
				if !assert.NoError(h, err) {
					return
				}
				req.Header.Set("Authorization", "Bearer "+sender.key)
				res, err := client.Do(req)
				times.Add(1)
				if err != nil { // the server closes the connections of refused requests
					continue
				}
				assert.Contains(h, []int{http.StatusBadRequest, http.StatusTooManyRequests, http.StatusServiceUnavailable},
					res.StatusCode)
				_ = res.Body.Close()
			}
		})
	}
	clients.Wait()
	return times.Load()
}

func manyTails(ctx context.Context, h *attacker) int64 {
	return h.hold(ctx, "GET /v1/accounts/mallory/events HTTP/1.1\r\nHost: x\r\nAccept: "+
		"text/event-stream\r\nAuthorization: Bearer "+h.key+"\r\n\r\n", "")
}

var peakLine = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// peakMemory returns the server's peak memory, in bytes.
func (s *plane) peakMemory() int64 {
	s.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	require.NoError(s.t, err)
	found := peakLine.FindSubmatch(status)
	require.NotNil(s.t, found)
	kilobytes, err := strconv.ParseInt(string(found[1]), 10, 64)
	require.NoError(s.t, err)
	return kilobytes << 10
}

// descriptors returns how many descriptors the server has open.
func (s *plane) descriptors() int {
	s.t.Helper()
	names, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
	require.NoError(s.t, err)
	return len(names)
}

// TestHostileDisk lets one account fill the disk with uploads, and with rejected requests with
// idempotency keys. It checks that changes are rejected with advice, that reads and deletes
// continue, that the server keeps running, and that its log is complete.
func TestHostileDisk(t *testing.T) {
	dir := smallDisk(t)
	s := serve(t, filepath.Join(dir, "data"), "--worker=false")
	tenant, mallory := s.user(), s.otherAccount("mallory")
	tenant.dataset("kept", 5)
	tenant.must(http.MethodPost, "/datasets", object{"datasetId": "waste", "dataset": object{}})
	rows := bytes.Repeat(exampleRows(t, 1), 40_000)
	var lastError object
	for i := 0; lastError == nil; i++ {
		require.Less(t, i, 500, "the disk accepts everything")
		id := fmt.Sprintf("u%d", i)
		status, answer, err := mallory.ask(http.MethodPost, "/datasets", object{"datasetId": id, "dataset": object{}})
		require.NoError(t, err)
		if status == http.StatusOK {
			status, answer, err = mallory.upload(id, rows)
			require.NoError(t, err)
		}
		if status != http.StatusOK {
			require.Equal(t, http.StatusTooManyRequests, status, "%v", answer)
			lastError = answer
		}
	}
	require.EqualValues(t, 8, lastError["code"])
	require.Contains(t, errorMessage(lastError), "delete what is not needed")

	wrong, err := json.Marshal(object{"dataset": object{}, "datasetId": "x", "unknown": strings.Repeat("?", 100)})
	require.NoError(t, err)
	for i := range 1000 {
		res, err := mallory.send(http.MethodPost, "/datasets", json.RawMessage(wrong), "Idempotency-Key",
			fmt.Sprintf("key-%d", i))
		require.NoError(t, err, "the server continues")
		_ = res.Body.Close()
		require.GreaterOrEqual(t, res.StatusCode, 400)
	}
	require.Len(t, tenant.list("/datasets", "datasets"), 2)
	tenant.get("/datasets/kept")
	tenant.must(http.MethodDelete, "/datasets/waste", nil)
	require.Zero(t, s.end())
	s.start()
	s.user().get("/datasets/kept")
	require.Contains(t, s.run("log", "verify").ok(t), "equal")
	require.Zero(t, s.end())
}
