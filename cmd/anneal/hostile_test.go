//go:build linux

package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

const (
	hostileFiles   = 700       // descriptors that the server can open
	hostileMemory  = 128 << 20 // bytes for JSON bodies
	hostileData    = 700 << 20 // bytes of data segment of the server: allocating more ends the server
	slowdown       = 3         // limit of the increase of other clients' 99th percentile
	reservedForLog = 200       // descriptors that stay free: 256 are reserved; requests in progress can use some of them
)

// TestHostileClients checks that the server survives attacks, and serves other clients during the
// attacks. ANNEAL_HOSTILE is the duration of each attack, such as 20s. With it, the 99th percentile
// of a well-behaved account during an attack must be at most slowdown times the one without an
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
	victim, mallory := s.user(), s.otherAccount("mallory")
	for i := range 20 {
		victim.must(http.MethodPost, "/datasets", object{"datasetId": fmt.Sprintf("d%d", i), "dataset": object{}})
	}
	address, err := url.Parse(s.context.Address)
	require.NoError(t, err)
	order := attackOrder{Server: address.Host, From: 1, Accounts: []attackAccount{{mallory.account, mallory.key}}}
	for i := range 3 {
		more := s.otherAccount(fmt.Sprintf("mallory-%d", i))
		order.Accounts = append(order.Accounts, attackAccount{more.account, more.key})
	}
	if conn := (&attacker{TestingT: t, attackOrder: order}).dial(t.Context()); conn == nil {
		t.Skip("this system has no second loopback address, from which attackers connect")
	} else {
		_ = conn.Close()
	}
	m := &measurement{victim: victim, server: s}
	for _, one := range attacks {
		t.Run(one.name, func(t *testing.T) {
			m.T = t
			order.Attack, order.From = one.name, one.from
			for round := 1; ; round++ { // another program may disturb one round, which does not fail the test
				quiet, during := m.compare(length, order)
				require.Less(t, during.descriptors, hostileFiles-reservedForLog, "descriptors remain for the log")
				if long == "" || during.p99 <= slowdown*quiet.p99 {
					return
				}
				require.Less(t, round, 3, "other clients are served at most %d times slower, in one of three rounds", slowdown)
			}
		})
	}
	victim.must(http.MethodPost, "/datasets", object{"datasetId": "after", "dataset": object{}})
	require.NotContains(t, s.log.output(), "stops after a failure")
	require.Zero(t, s.end())
	require.Contains(t, s.run("log", "verify", "--data", s.dir).ok(t), "equal")
}

// timing is how fast an account was served.
type timing struct {
	p99         time.Duration // 99th percentile of requests on reused connections
	newConns    time.Duration // 99th percentile of requests on new connections
	requests    int
	descriptors int // maximum number that the server had open
}

// A measurement times the reads and writes of a well-behaved account.
type measurement struct {
	*testing.T
	victim caller
	server *plane
	made   int
}

// compare returns the timings of the account without an attack, and during an attack.
func (m *measurement) compare(length time.Duration, order attackOrder) (quiet, during timing) {
	m.Helper()
	quiet = m.measure(length)
	end := order.start(m.T)
	during = m.measure(length)
	times := end()
	m.Logf("p99 quiet %s (%d requests), during %s (%d requests): %.1f times; new connections p99 quiet %s, during "+
		"%s; done %d times; peak memory %d MB, at most %d descriptors",
		quiet.p99, quiet.requests, during.p99, during.requests, float64(during.p99)/float64(quiet.p99), quiet.newConns,
		during.newConns, times, m.server.peakMemory()>>20, during.descriptors)
	require.Positive(m, times)
	return quiet, during
}

// measure sends the account's requests for the duration length, and returns their timing. Each
// request must succeed; one in ten uses a new connection.
func (m *measurement) measure(length time.Duration) (found timing) {
	m.Helper()
	newConns := m.victim
	newConns.http = &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	var kept, fresh []time.Duration
	for begun := time.Now(); time.Since(begun) < length || len(kept) < 100; {
		m.made++
		asked := time.Now()
		method, path, body, who, took := http.MethodGet, "/datasets?pageSize=20", any(nil), m.victim, &kept
		switch {
		case m.made%4 == 0:
			method, path, body = http.MethodPost, "/datasets",
				object{"datasetId": fmt.Sprintf("more-%d", m.made), "dataset": object{}}
		case m.made%10 == 1:
			who, took = newConns, &fresh
		}
		status, answer, err := who.do(method, path, body)
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

var peakLine = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// peakMemory returns the server's peak memory, in bytes.
func (s *plane) peakMemory() int64 {
	s.t.Helper()
	status := testutil.ReadFile(s.t, fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	found := peakLine.FindSubmatch(status)
	require.NotNil(s.t, found)
	kilobytes, err := strconv.ParseInt(string(found[1]), 10, 64)
	require.NoError(s.t, err)
	return kilobytes << 10
}

// descriptors returns how many descriptors the server has open.
func (s *plane) descriptors() int {
	s.t.Helper()
	names := testutil.ReadDir(s.t, fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
	return len(names)
}

// TestHostileDisk lets one account fill the disk with uploads, and with rejected requests with
// idempotency keys. It checks that changes are rejected with advice, that reads and deletes
// continue, that the server keeps running, and that its log is complete.
func TestHostileDisk(t *testing.T) {
	dir := smallDisk(t)
	s := serve(t, filepath.Join(dir, "data"), "--worker=false")
	victim, mallory := s.user(), s.otherAccount("mallory")
	victim.dataset("kept", 5)
	victim.must(http.MethodPost, "/datasets", object{"datasetId": "waste", "dataset": object{}})
	rows := bytes.Repeat(exampleRows(t, 1), 40_000)
	var lastError object
	for i := 0; lastError == nil; i++ {
		require.Less(t, i, 500, "the disk accepts everything")
		id := fmt.Sprintf("u%d", i)
		status, answer, err := mallory.do(http.MethodPost, "/datasets", object{"datasetId": id, "dataset": object{}})
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
	require.Contains(t, errorMessage(lastError), "delete resources that you do not need")

	wrong := testutil.Marshal(t, object{"dataset": object{}, "datasetId": "x", "unknown": strings.Repeat("?", 100)})
	for i := range 1000 {
		res, err := mallory.send(http.MethodPost, "/datasets", json.RawMessage(wrong), "Idempotency-Key",
			fmt.Sprintf("key-%d", i))
		require.NoError(t, err, "the server continues")
		_ = res.Body.Close()
		require.GreaterOrEqual(t, res.StatusCode, 400)
	}
	require.Len(t, victim.list("/datasets", "datasets"), 2)
	victim.get("/datasets/kept")
	victim.must(http.MethodDelete, "/datasets/waste", nil)
	require.Zero(t, s.end())
	s.start()
	s.user().get("/datasets/kept")
	require.Contains(t, s.run("log", "verify").ok(t), "equal")
	require.Zero(t, s.end())
}
