package api

import (
	"context"
	"iter"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/eventlog"
)

// positionOf returns the position in the header anneal-position of a response.
func positionOf(t testing.TB, header http.Header) uint64 {
	position, err := strconv.ParseUint(header.Get(request.PositionHeader), 10, 64)
	require.NoError(t, err, "%v", header)
	return position
}

// TestResponsesCarryTheirPosition checks that responses of management operations, also to rejected
// requests, have the position of the log that they reflect.
func TestResponsesCarryTheirPosition(t *testing.T) {
	s := newHarness(t, request.Limits{})
	last := func() uint64 {
		e, err := s.log.Last(t.Context())
		require.NoError(t, err)
		return e.Position
	}
	created := s.ok("POST", acme+"/datasets", `{"datasetId": "d1", "dataset": {}}`)
	require.Equal(t, last(), positionOf(t, created.header), "the position of the created event")
	for _, one := range []struct {
		method, path string
		status       int
	}{
		{"GET", acme + "/datasets/d1", http.StatusOK},
		{"GET", acme + "/datasets", http.StatusOK},
		{"GET", acme + "/events", http.StatusOK},
		{"GET", acme + "/events?filter=position%20%3E%200", http.StatusOK},
		{"GET", acme + "/datasets/missing", http.StatusNotFound},
		{"GET", acme + "/datasets?pageSize=-1", http.StatusBadRequest},
		{"DELETE", acme + "/datasets/d1", http.StatusOK},
	} {
		before := last()
		a := s.call(one.method, one.path, "user", "")
		require.Equal(t, one.status, a.status, "%s %s: %s", one.method, one.path, a.body)
		require.GreaterOrEqual(t, positionOf(t, a.header), before, one.path)
		require.LessOrEqual(t, positionOf(t, a.header), last(), one.path)
	}
	require.GreaterOrEqual(t, positionOf(t, s.call("GET", acme+"/datasets", "", "").header), uint64(1), "without a key")
}

// TestClientsReadTheirOwnWritesFromAnyServer checks that a request with anneal-at-least waits until
// its server has reached the position, and fails when the server does not reach it in time.
func TestClientsReadTheirOwnWritesFromAnyServer(t *testing.T) {
	s := newHarness(t, request.Limits{})
	other := s.another(func(o *Options) { o.Limits.PositionWait = 10 * time.Millisecond })
	position := positionOf(t, s.ok("POST", acme+"/datasets", `{"datasetId": "d1", "dataset": {}}`).header)
	withMin := func(s *harness, position string) response {
		r := s.request("GET", acme+"/datasets/d1", "user", nil)
		r.Header.Set(request.MinPositionHeader, position)
		return s.send(r)
	}
	for range 20 { // the server has reached it, or reaches it within some attempts
		if withMin(other, strconv.FormatUint(position, 10)).status == http.StatusOK {
			break
		}
	}
	a := withMin(other, strconv.FormatUint(position, 10))
	require.Equal(t, http.StatusOK, a.status)
	require.GreaterOrEqual(t, positionOf(t, a.header), position)

	a = withMin(other, strconv.FormatUint(position+1, 10))
	require.Equal(t, http.StatusServiceUnavailable, a.status, a.body)
	require.NotEmpty(t, a.header.Get("Retry-After"))
	require.Contains(t, string(a.body), "POSITION_NOT_REACHED")

	waiting := make(chan response, 1)
	go func() { waiting <- withMin(s, strconv.FormatUint(position+1, 10)) }()
	written := positionOf(t, s.ok("POST", acme+"/datasets", `{"datasetId": "d2", "dataset": {}}`).header)
	a = <-waiting
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.GreaterOrEqual(t, positionOf(t, a.header), written)

	for _, given := range []string{"", "-1", "soon", "18446744073709551616"} {
		a := withMin(s, given)
		require.Equal(t, http.StatusBadRequest, a.status, given)
		require.Contains(t, string(a.body), request.MinPositionHeader)
	}
}

// TestStaleResponsesSaySo checks that the responses of a server that may have missed events carry
// anneal-stale, and that such a server rejects a request for a later position without waiting.
func TestStaleResponsesSaySo(t *testing.T) {
	s := newHarness(t, request.Limits{PositionWait: patience})
	list := func(position uint64) response {
		r := s.request("GET", "/v1/accounts/acme/datasets", "user", nil)
		r.Header.Set(request.MinPositionHeader, strconv.FormatUint(position, 10))
		return s.send(r)
	}
	confirm := func(age time.Duration) {
		require.NoError(t, s.world.Confirm(t.Context(), s.log, s.clock.tick().Add(-age)))
	}
	confirm(0)
	fresh := list(0)
	require.NotContains(t, fresh.header, http.CanonicalHeaderKey(request.StaleHeader))
	confirm(42 * time.Second)
	stale := list(s.world.Position())
	require.Equal(t, http.StatusOK, stale.status, "%s", stale.body)
	require.Regexp(t, "^4[2-9]$", stale.header.Get(request.StaleHeader)) // each reading of the clock takes a second
	began := time.Now()
	later := list(s.world.Position() + 1)
	require.Equal(t, http.StatusServiceUnavailable, later.status, "%s", later.body)
	require.Contains(t, string(later.body), "POSITION_NOT_REACHED")
	require.Less(t, time.Since(began), patience)
	require.Empty(t, s.call("GET", "/healthz", "", "").header.Get(request.StaleHeader))
}

// heldLog is a log whose followers wait while it is held.
type heldLog struct {
	eventlog.Log
	held sync.RWMutex
}

// await waits until the log is not held.
func (l *heldLog) await() {
	l.held.RLock()
	defer l.held.RUnlock()
}

func (l *heldLog) Follow(ctx context.Context, filter string, after uint64) iter.Seq2[eventlog.Event, error] {
	return func(yield func(eventlog.Event, error) bool) {
		for e, err := range l.Log.Follow(ctx, filter, after) {
			l.await()
			if !yield(e, err) {
				return
			}
		}
	}
}

// TestPositionPrecedesAdmission checks that the world at the position of anneal-at-least decides
// whether a principal is admitted: a server knows keys and accounts that another server has created,
// deleted, suspended or restored.
func TestPositionPrecedesAdmission(t *testing.T) {
	s := newHarness(t, request.Limits{PositionWait: patience})
	log := &heldLog{Log: s.log}
	other := s.following(log, func(*Options) {})
	const account = "/v1/accounts/acme"
	for _, line := range []struct {
		name              string
		change            func() response
		method, path, key string
		status, after     int    // HTTP status without and with the position in the request
		message           string // part of the response to the request with the position
	}{
		{"a created key", func() response {
			a := s.ok("POST", account+"/apiKeys", `{"apiKey": {"role": "user"}, "apiKeyId": "fresh"}`)
			s.keys["fresh"], _ = a.json(t)["key"].(string)
			return a
		}, "GET", account + "/datasets", "fresh", 401, 200, ""},
		{"a deleted key", func() response { return s.ok("DELETE", account+"/apiKeys/fresh", "") },
			"GET", account + "/datasets", "fresh", 200, 401, "API_KEY_UNKNOWN"},
		{"a created account", func() response {
			return s.call("POST", "/v1/accounts", "operator", `{"accountId": "fresh", "account": {"email": "a@example.com"}}`)
		}, "GET", "/v1/accounts/fresh/datasets", "operator", 404, 200, ""},
		{"a suspended account", func() response {
			return s.call("POST", account+":suspend", "operator", `{"suspendState": "CREDIT_DEPLETED"}`)
		}, "POST", account + "/datasets?nope=1", "user", 400, 400, "ACCOUNT_SUSPENDED"},
		{"a restored account", func() response { return s.call("POST", account+":restore", "operator", "") },
			"POST", account + "/datasets?nope=1", "user", 400, 400, "nope"},
	} {
		log.held.Lock()
		release := sync.OnceFunc(log.held.Unlock)
		t.Cleanup(release)
		changed := line.change()
		require.Equal(t, 200, changed.status, "%s: %s", line.name, changed.body)
		send := func(position string) response {
			r := other.request(line.method, line.path, line.key, nil)
			if position != "" {
				r.Header.Set(request.MinPositionHeader, position)
			}
			return other.send(r)
		}
		require.Equal(t, line.status, send("").status, line.name)
		waiting := make(chan response, 1)
		go func() { waiting <- send(changed.header.Get(request.PositionHeader)) }()
		if line.status == 401 {
			require.Eventually(t, func() bool { return other.server.core.Busy.Of("waits of unknown keys") == 1 }, patience,
				time.Millisecond)
		}
		release()
		a := <-waiting
		require.Equal(t, line.after, a.status, "%s: %s", line.name, a.body)
		require.Contains(t, string(a.body), line.message, line.name)
	}
}

// TestUnknownKeysDoNotHoldConnections checks that a request without a valid key waits for a position
// only if another server may have created the key, and that few such requests wait at a time.
func TestUnknownKeysDoNotHoldConnections(t *testing.T) {
	s := newHarness(t, request.Limits{PositionWait: patience})
	log := &heldLog{Log: s.log}
	other := s.following(log, func(*Options) {})
	stranger, err := request.MintKey(pepper, "accounts/acme/apiKeys/stranger")
	require.NoError(t, err)
	log.held.Lock()
	defer log.held.Unlock()
	last := positionOf(t, s.ok("POST", acme+"/datasets", `{"datasetId": "d1", "dataset": {}}`).header)
	send := func(key, position string) response {
		r := other.request("GET", acme+"/datasets/d1", "", nil)
		if key != "" {
			r.Header.Set("Authorization", "Bearer "+key)
		}
		r.Header.Set(request.MinPositionHeader, position)
		return other.send(r)
	}
	present, future := strconv.FormatUint(last, 10), strconv.FormatUint(last+1, 10)
	for _, one := range []struct{ name, key, position, reason string }{
		{"no key", "", present, "API_KEY_MISSING"},
		{"no form of a key", "x", present, "API_KEY_MALFORMED"},
		{"a wrong checksum", stranger.Text[:len(stranger.Text)-1] + "g", present, "API_KEY_MALFORMED"},
		{"a position that the log does not have", stranger.Text, future, "API_KEY_UNKNOWN"},
		{"no position", stranger.Text, "soon", "API_KEY_UNKNOWN"},
		{"a position above all", stranger.Text, "18446744073709551616", "API_KEY_UNKNOWN"},
	} {
		a := send(one.key, one.position)
		require.Equal(t, http.StatusUnauthorized, a.status, "%s: %s", one.name, a.body)
		require.Contains(t, string(a.body), one.reason, one.name)
	}
	var leave []func()
	for {
		done, ok := other.server.core.Busy.Enter("waits of unknown keys", 32)
		if !ok {
			break
		}
		leave = append(leave, done)
	}
	a := send(stranger.Text, present)
	require.Equal(t, http.StatusServiceUnavailable, a.status, "%s", a.body)
	require.Contains(t, string(a.body), "POSITION_NOT_REACHED")
	require.NotEmpty(t, a.header.Get("Retry-After"))
	for _, done := range leave {
		done()
	}
	other.server.core.Limits.PositionWait = 10 * time.Millisecond
	a = send(stranger.Text, present)
	require.Equal(t, http.StatusServiceUnavailable, a.status, "%s", a.body)
	require.Zero(t, other.server.core.Busy.Of("waits of unknown keys"))
}
