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
	"os"
	"os/exec"
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

	"anneal/internal/testutil"
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
	{"stalled bodies, with a key", stalledBodies, 1},
	{"responses that are not read", unreadAnswers, 1},
	{"a flood of connections", connectionFlood, 1},
	{"a flood of connections from 40 addresses", connectionFlood, 40},
	{"bodies that require much memory", largeBodies, 1},
	{"bodies that require much memory, of 4 accounts", largeBodiesOfMany, 4},
	{"many followers of events", manyTails, 1},
}

// An attacker runs attacks, with its own accounts.
type attacker struct {
	assert.TestingT
	attackOrder
	dialed atomic.Int64
}

// An attackOrder tells a process which attack to run.
type attackOrder struct {
	Attack   string
	Server   string // host:port
	From     int    // number of addresses from which it connects
	Accounts []attackAccount
}

// An attackAccount is an account of the attacker; the first one is mallory.
type attackAccount struct{ ID, Key string }

// attackVariable is the environment variable that makes the test binary run an attack instead of
// tests. Its value is an attackOrder in JSON.
const attackVariable = "ANNEAL_ATTACK"

// start starts the attack in a process of the lowest priority: an attacker has its own machine, and
// must not use the cores of the server and the measurement. end ends the attack, and returns the
// number that it counted.
func (o attackOrder) start(t *testing.T) (end func() int64) {
	t.Helper()
	text := testutil.Marshal(t, o)
	program, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(program)
	cmd.Env, cmd.Stderr = environment(t.TempDir(), attackVariable+"="+string(text)), os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	var counted bytes.Buffer
	cmd.Stdout = &counted
	require.NoError(t, cmd.Start())
	return func() int64 {
		t.Helper()
		require.NoError(t, stdin.Close())
		require.NoError(t, cmd.Wait())
		times, err := strconv.ParseInt(strings.TrimSpace(counted.String()), 10, 64)
		require.NoError(t, err)
		return times
	}
}

func init() {
	if os.Getenv(attackVariable) != "" {
		os.Exit(attackUntilEOF())
	}
}

// attackUntilEOF runs the attack of the environment until the end of standard input, and prints
// the number that it counted. It returns the exit code.
func attackUntilEOF() int {
	failures := &failures{}
	h := &attacker{TestingT: failures}
	err := json.Unmarshal([]byte(os.Getenv(attackVariable)), &h.attackOrder)
	if err == nil {
		err = unix.Setpriority(unix.PRIO_PROCESS, 0, 19)
	}
	at := slices.IndexFunc(attacks, func(a attack) bool { return a.name == h.Attack })
	if err != nil || at < 0 {
		fmt.Fprintln(os.Stderr, "no such attack:", h.Attack, err)
		return 2
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	fmt.Println(attacks[at].do(ctx, h))
	return int(min(1, failures.count.Load()))
}

// failures prints and counts failed assertions.
type failures struct{ count atomic.Int64 }

// Errorf implements assert.TestingT.
func (f *failures) Errorf(format string, args ...any) {
	f.count.Add(1)
	fmt.Fprintf(os.Stderr, format, args...)
}

// dial connects to the server from the next of the attacker's addresses. It returns nil if the
// connection fails.
func (h *attacker) dial(ctx context.Context) net.Conn {
	address := fmt.Sprintf("127.0.0.%d", 2+h.dialed.Add(1)%int64(h.From))
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}, Timeout: 5 * time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", h.Server)
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

func stalledBodies(ctx context.Context, h *attacker) int64 {
	return h.hold(ctx, "POST /v1/accounts/mallory/datasets HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+
		h.Accounts[0].Key+"\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{", " ")
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
func largeBodies(ctx context.Context, h *attacker) int64 { return h.sendBodies(ctx, h.Accounts[:1]) }

func largeBodiesOfMany(ctx context.Context, h *attacker) int64 { return h.sendBodies(ctx, h.Accounts) }

func (h *attacker) sendBodies(ctx context.Context, accounts []attackAccount) int64 {
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
	for i := range 4 * len(accounts) { // more clients would themselves use the cores of this machine
		sender := accounts[i%len(accounts)]
		clients.Go(func() {
			for ctx.Err() == nil {
				req, err := http.NewRequestWithContext(ctx, http.MethodPost,
					"http://"+h.Server+"/v1/accounts/"+sender.ID+"/datasets", bytes.NewReader(body))
				if !assert.NoError(h, err) {
					return
				}
				req.Header.Set("Authorization", "Bearer "+sender.Key)
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
		"text/event-stream\r\nAuthorization: Bearer "+h.Accounts[0].Key+"\r\n\r\n", "")
}
