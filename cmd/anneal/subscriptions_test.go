package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"

	"anneal/blobs/external/s3test"
	"anneal/internal/testutil"
)

// A webhook records the events that it receives. It refuses every 25th request.
type webhook struct {
	mu       sync.Mutex
	requests int
	all      []object
	grown    chan struct{} // closed when a request arrives
}

func (v *webhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var e object
	if err != nil || json.Unmarshal(body, &e) != nil {
		return // the server was killed
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	close(v.grown)
	v.grown = make(chan struct{})
	if v.requests++; v.requests%25 == 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	v.all = append(v.all, e)
}

// first returns the IDs of the received events by resource, in the order of their first arrival.
func (v *webhook) first() map[string][]string {
	v.mu.Lock()
	defer v.mu.Unlock()
	seen, ids := map[string]bool{}, map[string][]string{}
	for _, e := range v.all {
		if id := e["id"].(string); !seen[id] {
			seen[id] = true
			ids[e["subject"].(string)] = append(ids[e["subject"].(string)], id)
		}
	}
	return ids
}

// awaitRequests waits until the webhook has received a number of further requests.
func (v *webhook) awaitRequests(t *testing.T, more int) {
	t.Helper()
	for range more {
		v.mu.Lock()
		grown := v.grown
		v.mu.Unlock()
		select {
		case <-grown:
		case <-t.Context().Done():
			return
		}
	}
}

// TestSubscriptionsSurviveKills kills the server again and again while it delivers events: to a webhook,
// which must receive every event at least once and first in the order of the log for each resource, and
// to JSONL and Parquet files, which must have every event exactly once. It kills the server ANNEAL_SUBSCRIPTION_KILLS
// times, 3 by default.
func TestSubscriptionsSurviveKills(t *testing.T) {
	t.Parallel()
	kills := testutil.Variable(t, "ANNEAL_SUBSCRIPTION_KILLS", 3)
	v, store := &webhook{grown: make(chan struct{})}, s3test.Start(t)
	receiver := httptest.NewServer(v)
	t.Cleanup(receiver.Close)
	s := serve(t, t.TempDir(), "--listen", freePort(t), "--worker=false", "--fetch-private",
		"--subscription-file-interval", "10ms")
	user := s.user()
	user.must(http.MethodPost, "/secrets", object{"name": "store", "keyName": "STORE", "value": store.Credentials()})
	user.must(http.MethodPost, "/subscriptions", object{"subscriptionId": "hook", "subscription": object{
		"eventTypes": []string{"dataset.*"}, "startPosition": "0", "webhook": object{"url": receiver.URL}}})
	for _, format := range []string{"JSONL", "PARQUET"} {
		user.must(http.MethodPost, "/subscriptions", object{"subscriptionId": strings.ToLower(format), "subscription": object{
			"eventTypes": []string{"dataset.*"}, "startPosition": "0", "files": object{"format": format,
				"externalUrl": store.Address(format + "/"), "credentialsSecret": "accounts/default/secrets/store"}}})
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	const datasets, perRound = 5, 20
	for i := range datasets {
		user.must(http.MethodPost, "/datasets", object{"datasetId": fmt.Sprint("d", i), "dataset": object{}})
	}
	for round := range kills {
		for n := range perRound {
			user.must(http.MethodPatch, fmt.Sprint("/datasets/d", n%datasets), object{
				"name":        fmt.Sprintf("accounts/default/datasets/d%d", n%datasets),
				"displayName": fmt.Sprintf("%d-%d", round, n)})
		}
		_, _, err := user.do(http.MethodPost, "/subscriptions/hook:redeliver", object{"position": "1"})
		require.NoError(t, err) // an earlier redelivery may not have started yet
		v.awaitRequests(t, 1+random.IntN(perRound))
		s.kill()
		s.start()
		user = s.user()
	}
	want, lines := map[string][]string{}, []string{}
	for _, e := range user.list("/events?filter="+strings.ReplaceAll(`type = "dataset.*"`, " ", "%20"), "events") {
		want[e["subject"].(string)] = append(want[e["subject"].(string)], e["id"].(string))
		lines = append(lines, e["id"].(string))
	}
	require.Len(t, lines, datasets+kills*perRound)
	eventually(t, "the webhook has all events", func() bool {
		n := 0
		for _, ids := range v.first() {
			n += len(ids)
		}
		return n >= len(lines)
	})
	require.Equal(t, want, v.first())
	eventually(t, "the files have all events", func() bool {
		return len(linesOf(t, store)) >= len(lines) && len(rowsOf(t, store)) >= len(lines)
	})
	rows, written := rowsOf(t, store), linesOf(t, store)
	require.Len(t, rows, len(lines))
	require.Len(t, written, len(lines))
	for n, line := range written {
		var e struct{ ID, Type, Subject, Position string }
		require.NoError(t, json.Unmarshal([]byte(line), &e))
		require.Equal(t, lines[n], e.ID, "the order of the log, without a gap or a repetition")
		require.Equal(t, line, rows[n].Event)
		require.Equal(t, e, struct{ ID, Type, Subject, Position string }{rows[n].ID, rows[n].Type, rows[n].Subject,
			fmt.Sprint(rows[n].Position)})
	}
	require.Zero(t, s.end())
}

// linesOf returns the lines of the files below JSONL/, in the order of their names.
func linesOf(t *testing.T, store *s3test.Server) (lines []string) {
	t.Helper()
	objects := store.Objects()
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		if strings.Contains(key, "JSONL/") {
			lines = append(lines, strings.Split(strings.TrimSuffix(objects[key], "\n"), "\n")...)
		}
	}
	return lines
}

// An eventRow is a row of a Parquet file of events.
type eventRow struct {
	Position int64  `parquet:"position"`
	ID       string `parquet:"id"`
	Type     string `parquet:"type"`
	Subject  string `parquet:"subject"`
	Event    string `parquet:"event"`
}

// rowsOf returns the rows of the files below PARQUET/, in the order of their names.
func rowsOf(t *testing.T, store *s3test.Server) (rows []eventRow) {
	t.Helper()
	objects := store.Objects()
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		if strings.Contains(key, "PARQUET/") {
			some, err := parquet.Read[eventRow](strings.NewReader(objects[key]), int64(len(objects[key])))
			require.NoError(t, err, key)
			rows = append(rows, some...)
		}
	}
	return rows
}
