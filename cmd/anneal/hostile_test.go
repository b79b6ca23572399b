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
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Hostile clients come from an address of their own, as they would.
const (
	hostileAddress = "127.0.0.2"
	hostileFiles   = 700       // descriptors that the server may have
	hostileMemory  = 128 << 20 // bytes for JSON bodies
	slowdown       = 3         // of the 99th percentile of others, at most
)

// A hostility is what a client without good intent does until ctx is done. It
// tells how often it did it.
type hostility struct {
	name string
	do   func(ctx context.Context, h *hostile) (times int64)
}

// hostilities are all of them: see make hostile.
var hostilities = []hostility{
	{"slow headers", slowHeaders},
	{"unsent bodies without a key", unsentBodies},
	{"bodies that stand still, with a key", standingBodies},
	{"answers that are not read", unreadAnswers},
	{"a flood of connections", connectionFlood},
	{"bodies that take much memory", largeBodies},
	{"tails of events", manyTails},
}

// hostile is who does it: an account of its own beside the others.
type hostile struct {
	*testing.T
	server string // host:port
	key    string
	client *http.Client
}

// The server survives what hostile clients do, and serves the others
// meanwhile. ANNEAL_HOSTILE is for how long each is tried, such as 20s, and then
// the 99th percentile of a well-behaved tenant is held to slowdown times the
// quiet one; a short run without it only shows the figures.
func TestHostileClients(t *testing.T) {
	long := os.Getenv("ANNEAL_HOSTILE")
	length := time.Second
	if long != "" {
		var err error
		length, err = time.ParseDuration(long)
		require.NoError(t, err, "ANNEAL_HOSTILE")
	}
	s := &plane{t: t, dir: t.TempDir(), files: hostileFiles, log: logFor(t, "anneal serve"),
		args: []string{"--worker=false", "--max-body-memory", strconv.Itoa(hostileMemory)}}
	s.start()
	tenant, mallory := s.user(), s.otherAccount("mallory")
	for i := range 20 {
		tenant.must(http.MethodPost, "/datasets", object{"datasetId": fmt.Sprintf("d%d", i), "dataset": object{}})
	}
	address, err := url.Parse(s.context.Address)
	require.NoError(t, err)
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(hostileAddress)}}
	h := &hostile{t, address.Host, mallory.key, &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 64}}}
	if conn := h.dial(t.Context()); conn == nil {
		t.Skip("this system has no second loopback address, from which hostile clients come")
	} else {
		_ = conn.Close()
	}
	made := 0
	for _, one := range hostilities {
		t.Run(one.name, func(t *testing.T) {
			quiet := measure(t, tenant, length, &made)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan int64, 1)
			go func() { done <- one.do(ctx, h) }()
			during := measure(t, tenant, length, &made)
			cancel()
			times := <-done
			t.Logf("p99 quiet %s (%d requests), during %s (%d requests); done %d times; peak memory %d MB, %d descriptors",
				quiet.p99, quiet.requests, during.p99, during.requests, times, s.peakMemory()>>20, s.descriptors())
			require.Positive(t, times)
			require.Less(t, s.descriptors(), hostileFiles-100, "descriptors are left for the log")
			if long != "" {
				require.LessOrEqual(t, during.p99, max(slowdown*quiet.p99, 20*time.Millisecond), "others are served as fast, within 20 ms or %d times", slowdown)
			}
		})
	}
	require.Less(t, s.peakMemory(), int64(hostileMemory*2+600<<20), "the memory for bodies is bounded")
	tenant.must(http.MethodPost, "/datasets", object{"datasetId": "after", "dataset": object{}})
	require.NotContains(t, s.log.whole(), "cannot go on")
	require.Zero(t, s.end())
	require.Contains(t, s.run("log", "verify", "--data", s.dir).ok(t), "equal")
}

// timing is how fast a tenant was served.
type timing struct {
	p99      time.Duration
	requests int
}

// measure has a well-behaved tenant read and write for some time. Each request
// must succeed.
func measure(t *testing.T, tenant caller, length time.Duration, made *int) timing {
	t.Helper()
	var took []time.Duration
	for begun := time.Now(); time.Since(begun) < length || len(took) < 100; {
		*made++
		asked := time.Now()
		method, path, body := http.MethodGet, "/datasets?pageSize=20", any(nil)
		if *made%4 == 0 {
			method, path, body = http.MethodPost, "/datasets", object{"datasetId": fmt.Sprintf("more-%d", *made), "dataset": object{}}
		}
		status, answer, err := tenant.ask(method, path, body)
		require.NoError(t, err, "others are served")
		require.Equal(t, http.StatusOK, status, "%v", answer)
		took = append(took, time.Since(asked))
	}
	slices.Sort(took)
	return timing{took[len(took)*99/100], len(took)}
}

// dial connects from the hostile address; nil when that fails.
func (h *hostile) dial(ctx context.Context) net.Conn {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(hostileAddress)}, Timeout: 5 * time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", h.server)
	if err != nil {
		return nil
	}
	return conn
}

// hold keeps as many connections open as it can, each after it has sent text,
// and then sends drip each second, until ctx is done.
func (h *hostile) hold(ctx context.Context, text, drip string) (times int64) {
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
		if len(held) > 0 {
			_, _ = io.WriteString(held[n%len(held)], drip)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return times
		}
	}
}

func slowHeaders(ctx context.Context, h *hostile) int64 {
	return h.hold(ctx, "GET /healthz HTTP/1.1\r\nHost: x\r\n", "X-Slow: 1\r\n")
}

func unsentBodies(ctx context.Context, h *hostile) int64 {
	return h.hold(ctx, "POST /v1/accounts/mallory/datasets HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n", "")
}

func standingBodies(ctx context.Context, h *hostile) int64 {
	return h.hold(ctx, "POST /v1/accounts/mallory/datasets HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+h.key+
		"\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{", " ")
}

func unreadAnswers(ctx context.Context, h *hostile) int64 {
	return h.hold(ctx, strings.Repeat("GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n", 20), "GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
}

func connectionFlood(ctx context.Context, h *hostile) int64 {
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

// largeBodies sends bodies that take 50 times their size to decode.
func largeBodies(ctx context.Context, h *hostile) int64 {
	const bodySize = 400 << 10
	body := []byte(`{"dataset":[` + strings.Repeat(`{"":0},`, bodySize/7) + `{}]}`)
	var times atomic.Int64
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for ctx.Err() == nil {
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+h.server+"/v1/accounts/mallory/datasets", bytes.NewReader(body))
				if !assert.NoError(h, err) {
					return
				}
				req.Header.Set("Authorization", "Bearer "+h.key)
				res, err := h.client.Do(req)
				times.Add(1)
				if err != nil { // the server closes what it refuses
					continue
				}
				assert.Contains(h, []int{http.StatusBadRequest, http.StatusTooManyRequests}, res.StatusCode)
				_ = res.Body.Close()
			}
		})
	}
	clients.Wait()
	return times.Load()
}

func manyTails(ctx context.Context, h *hostile) int64 {
	return h.hold(ctx, "GET /v1/accounts/mallory/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\nAuthorization: Bearer "+h.key+"\r\n\r\n", "")
}

var peakLine = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// peakMemory is the most memory that the server had so far, in bytes.
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

// descriptors is how many the server has open.
func (s *plane) descriptors() int {
	s.t.Helper()
	names, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
	require.NoError(s.t, err)
	return len(names)
}

// One account fills the disk with uploads, and with requests that are refused
// under idempotency keys. Changes are refused with what to do; reads and deletes
// go on, the server stays, and its log is whole.
func TestHostileDisk(t *testing.T) {
	dir := smallDisk(t)
	s := serve(t, filepath.Join(dir, "data"), "--worker=false")
	tenant, mallory := s.user(), s.otherAccount("mallory")
	tenant.dataset("kept", 5)
	tenant.must(http.MethodPost, "/datasets", object{"datasetId": "waste", "dataset": object{}})
	rows := bytes.Repeat(exampleRows(t, 1), 40_000)
	var refusal object
	for i := 0; refusal == nil; i++ {
		require.Less(t, i, 500, "the disk takes everything")
		id := fmt.Sprintf("u%d", i)
		status, answer, err := mallory.ask(http.MethodPost, "/datasets", object{"datasetId": id, "dataset": object{}})
		require.NoError(t, err)
		if status == http.StatusOK {
			status, answer, err = mallory.upload(id, rows)
			require.NoError(t, err)
		}
		if status != http.StatusOK {
			require.Equal(t, http.StatusTooManyRequests, status, "%v", answer)
			refusal = answer
		}
	}
	require.EqualValues(t, 8, refusal["code"])
	require.Contains(t, messageOf(refusal), "delete what is not needed")

	wrong, err := json.Marshal(object{"dataset": object{}, "datasetId": "x", "unknown": strings.Repeat("?", 100)})
	require.NoError(t, err)
	for i := range 1000 {
		res, err := mallory.send(http.MethodPost, "/datasets", json.RawMessage(wrong), "Idempotency-Key", fmt.Sprintf("key-%d", i))
		require.NoError(t, err, "the server goes on")
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
