package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/eventlog"
)

// A listener reads a stream of server-sent events.
type listener struct {
	testing.TB
	lines *bufio.Scanner
	stop  context.CancelFunc
	last  string // ID of the last event or comment
}

func (s *harness) listen(path, alias string, header ...string) (*listener, *http.Response) {
	s.Helper()
	r := s.request(http.MethodGet, path, alias, nil)
	ctx, stop := context.WithTimeout(s.Context(), patience)
	s.Cleanup(stop)
	r = r.WithContext(ctx)
	r.Header.Set("Accept", "text/event-stream")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(r)
	require.NoError(s, err)
	s.Cleanup(func() { response.Body.Close() })
	return &listener{s.TB, bufio.NewScanner(response.Body), stop, ""}, response
}

// next returns the data of the next event.
func (l *listener) next() map[string]any {
	l.Helper()
	for l.lines.Scan() {
		line := l.lines.Text()
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			l.last = id
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			var event map[string]any
			require.NoError(l, json.Unmarshal([]byte(data), &event))
			require.Equal(l, l.last, event["position"])
			return event
		}
	}
	l.Fatalf("the stream ended: %v", l.lines.Err())
	return nil
}

// ended reads the stream to its end, and reports whether the stream ends without an error.
func (l *listener) ended() bool {
	for l.lines.Scan() {
	}
	return l.lines.Err() == nil
}

func (s *harness) makeDataset(id string) {
	s.Helper()
	require.Equal(s, 200, s.call("POST", "/v1/accounts/acme/datasets", "user", `{"datasetId": "`+id+`"}`).status)
}

func TestLiveEvents(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.makeDataset("before")
	l, response := s.listen("/v1/accounts/acme/events", "user")
	require.Equal(t, "text/event-stream", response.Header.Get("Content-Type"))
	s.makeDataset("d1")
	e := l.next()
	require.Equal(t, "accounts/acme/datasets/d1", e["subject"])
	require.Equal(t, "dataset.created.v1", e["type"])
	require.Equal(t, "1.0", e["specversion"])
	require.Equal(t, "accounts/acme/apiKeys/user", e["actor"])
	left := l.last
	l.stop()
	s.makeDataset("d2")
	s.makeDataset("d3")
	l, _ = s.listen("/v1/accounts/acme/events", "user", "Last-Event-ID", left)
	require.Equal(t, "accounts/acme/datasets/d2", l.next()["subject"])
	require.Equal(t, "accounts/acme/datasets/d3", l.next()["subject"])
	s.makeDataset("d4")
	require.Equal(t, "accounts/acme/datasets/d4", l.next()["subject"])
}

// TestEventsFromTheBeginning checks that a stream from position 0 sends each event once and in
// order, first from the log and then from the ring of the tail.
func TestEventsFromTheBeginning(t *testing.T) {
	s := newHarness(t, request.Limits{})
	live, _ := s.listen("/v1/accounts/other/events", "other") // starts the tail, whose ring then overflows
	name := domain.NewName("acme", domain.Datasets.Collection, "d")
	s.makeDataset("d")
	const changes = 2*eventlog.RingSize + 100
	for i := range changes {
		s.do(domain.Intend(domain.Datasets, name, domain.UpdateDataset{DatasetSpec: domain.DatasetSpec{
			DisplayName: fmt.Sprint(i)}}))
	}
	l, _ := s.listen("/v1/accounts/acme/datasets/d/events?filter=type=dataset.updated.v1", "user", "Last-Event-ID", "0")
	for i := range changes {
		require.Equal(t, fmt.Sprint(i), l.next()["data"].(map[string]any)["displayName"])
	}
	s.mint("late", "other", domain.RoleUser, nil)
	require.Equal(t, "accounts/other/apiKeys/late", live.next()["subject"])
}

func TestEventsAreFiltered(t *testing.T) {
	s := newHarness(t, request.Limits{})
	l, _ := s.listen(`/v1/accounts/acme/events?filter=subject:d2+OR+type="dataset.deleted.*"`, "user")
	s.makeDataset("d1")
	s.makeDataset("d2")
	require.Equal(t, 200, s.call("DELETE", "/v1/accounts/acme/datasets/d1", "user", "").status)
	require.Equal(t, "accounts/acme/datasets/d2", l.next()["subject"])
	require.Equal(t, "dataset.deleted.v1", l.next()["type"])
}

// TestKeyEventsRequireAdmin checks that callers that may not read API keys and secrets cannot read
// the events of API keys and secrets.
func TestKeyEventsRequireAdmin(t *testing.T) {
	s := newHarness(t, request.Limits{})
	list := string(s.call("GET", "/v1/accounts/acme/events?pageSize=200", "user", "").body)
	require.NotContains(t, list, "apiKeys/admin\"")
	list = string(s.call("GET", "/v1/accounts/acme/events?pageSize=200", "admin", "").body)
	require.Contains(t, list, "accounts/acme/apiKeys/admin\"")
	user, _ := s.listen("/v1/accounts/acme/events", "user")
	admin, _ := s.listen("/v1/accounts/acme/events", "admin")
	s.mint("more", "acme", domain.RoleUser, nil)
	s.makeDataset("d")
	require.Equal(t, "dataset.created.v1", user.next()["type"])
	require.Equal(t, "apiKey.created.v1", admin.next()["type"])
}

func TestStreamStartPositions(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for id, status := range map[string]int{"-1": 400, "x": 400, "1.5": 400,
		strconv.FormatUint(s.world.Position()+1, 10): 400, strconv.FormatUint(s.world.Position(), 10): 200} {
		_, response := s.listen("/v1/accounts/acme/events", "user", "Last-Event-ID", id)
		require.Equal(t, status, response.StatusCode, id)
	}
	_, response := s.listen("/v1/accounts/acme/events?filter=colour=red&pageSize=1", "user")
	require.Equal(t, 400, response.StatusCode)
}

// TestHeartbeats checks that an idle stream sends comments with its position, and that the stream
// ends when its API key becomes invalid.
func TestHeartbeats(t *testing.T) {
	s := newHarness(t, request.Limits{Heartbeat: 5 * time.Millisecond})
	l, _ := s.listen("/v1/accounts/acme/events", "user")
	for l.lines.Scan() && l.lines.Text() != ": still here" {
	}
	require.True(t, l.lines.Scan())
	require.Regexp(t, `^id: \d+$`, l.lines.Text())
	require.Equal(t, 200, s.call("DELETE", "/v1/accounts/acme/apiKeys/user", "admin", "").status)
	require.True(t, l.ended())
}

func TestStreamsAreCounted(t *testing.T) {
	s := newHarness(t, request.Limits{Streams: 2})
	first, _ := s.listen("/v1/accounts/acme/events", "user")
	_, response := s.listen("/v1/accounts/acme/events", "admin")
	require.Equal(t, 200, response.StatusCode)
	_, response = s.listen("/v1/accounts/acme/events", "user")
	require.Equal(t, http.StatusTooManyRequests, response.StatusCode)
	require.NotEmpty(t, response.Header.Get("Retry-After"))
	_, response = s.listen("/v1/accounts/other/events", "other")
	require.Equal(t, 200, response.StatusCode, "another account has separate streams")
	first.stop()
	require.Eventually(t, func() bool { return s.server.core.Busy.Of("streams of acme") == 1 }, patience, time.Millisecond)
	_, response = s.listen("/v1/accounts/acme/events", "user")
	require.Equal(t, 200, response.StatusCode)
}

func TestCloseEndsStreams(t *testing.T) {
	s := newHarness(t, request.Limits{})
	l, _ := s.listen("/v1/accounts/acme/events", "user")
	s.server.Close()
	require.True(t, l.ended())
}

func TestPagesOfEvents(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for i := range 5 {
		s.makeDataset(fmt.Sprintf("d%d", i))
	}
	for _, order := range []string{"", "position", "position+desc", "type,position"} {
		seen := map[string]bool{}
		token := ""
		for {
			page := s.call("GET", "/v1/accounts/acme/events?pageSize=2&filter=type:dataset&orderBy="+order+"&pageToken="+token,
				"user", "").json(t)
			require.Equal(t, 5.0, page["totalSize"])
			for _, e := range page["events"].([]any) {
				position := e.(map[string]any)["position"].(string)
				require.False(t, seen[position])
				seen[position] = true
			}
			next, more := page["nextPageToken"].(string)
			if !more {
				break
			}
			token = next
		}
		require.Len(t, seen, 5, order)
	}
}
