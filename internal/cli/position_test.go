package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/internal/datadir"
)

// controlPlanes imitates two control planes behind one address: a change is at position 7 of the
// log, which the one that serves the next requests has followed only to position 5, unless a
// request says that its response must reflect more.
type controlPlanes struct {
	old, new map[string]any // resource before and after the change
	mu       sync.Mutex
	requests []string // method, path and anneal-at-least
	changed  bool
}

func (p *controlPlanes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	required := r.Header.Get(minPositionHeader)
	p.requests = append(p.requests, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+required))
	position, item := "5", p.old
	if r.Method != http.MethodGet || p.changed && required == "7" {
		p.changed, position, item = true, "7", p.new
	}
	w.Header().Set(positionHeader, position)
	_ = json.NewEncoder(w).Encode(item)
}

// TestCommandsReadTheirOwnWrites checks that a command that makes a change and then waits for its
// outcome does not take the state before the change for the outcome.
func TestCommandsReadTheirOwnWrites(t *testing.T) {
	for name, test := range map[string]struct {
		args     []string
		old, new map[string]any
	}{
		"drain": {[]string{"node", "drain", "n", "--wait"}, map[string]any{"scheduling": "SCHEDULABLE"},
			map[string]any{"scheduling": "DRAINED"}},
		"resume": {[]string{"sft", "resume", "j", "--watch"}, map[string]any{"state": "JOB_STATE_FAILED"},
			map[string]any{"state": "JOB_STATE_COMPLETED"}},
		"step": {[]string{"rlor", "step", "j", "--dataset", "d", "--output-model", "m", "--watch"},
			map[string]any{"state": "JOB_STATE_FAILED"}, map[string]any{"state": "JOB_STATE_IDLE"}},
		"scale": {[]string{"deployment", "update", "d", "--max-replicas", "3", "--watch"},
			map[string]any{"state": "FAILED"}, map[string]any{"state": "READY"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, item := range []map[string]any{test.old, test.new} {
				item["name"] = "accounts/a/supervisedFineTuningJobs/j"
			}
			planes := &controlPlanes{old: test.old, new: test.new}
			_, output, err := runOutput(t, planes.ServeHTTP, test.args...)
			require.NoError(t, err, "%s\n%v", output, planes.requests)
			last := planes.requests[len(planes.requests)-1]
			require.True(t, strings.HasPrefix(last, "GET ") && strings.HasSuffix(last, " 7"), "%v", planes.requests)
		})
	}
}

// TestPositionsRise checks that a client requires the latest position that it has seen, of the
// server that it was seen from, and sends it to no other one.
func TestPositionsRise(t *testing.T) {
	var received []string
	respond := ""
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		received = append(received, r.Header.Get(minPositionHeader))
		w.Header().Set(positionHeader, respond)
		if respond == "9" {
			w.WriteHeader(http.StatusNotFound) // error responses have a position too
		}
		fmt.Fprint(w, "{}")
	})
	one, c := clientOfHandler(t, handler.ServeHTTP)
	other := httptest.NewServer(handler)
	t.Cleanup(other.Close)
	one, err := clientOf(c, one.Context)
	require.NoError(t, err)
	again, err := clientOf(c, one.Context)
	require.NoError(t, err)
	elsewhere, err := clientOf(c, datadir.Context{Address: other.URL, Account: "a", APIKey: "k"})
	require.NoError(t, err)
	for _, step := range []struct {
		client         *client
		path           string
		responds, want string
	}{
		{one, "/v1/x", "", ""}, {one, "/v1/x", "3", ""}, {one, "/v1/x", "2", "3"}, {again, "/v1/x", "", "3"},
		{again, "/v1/x", "9", "3"}, {one, "/v1/x", "no", "9"}, {one, "/v1/x", "10", "9"}, {elsewhere, "/v1/x", "4", ""},
		{one, other.URL + "/signed", "90", ""}, {one, "/v1/x", "", "10"}, {elsewhere, "/v1/x", "", "4"},
	} {
		respond = step.responds
		_ = step.client.call(t.Context(), http.MethodGet, step.path, nil, nil, nil)
		require.Equal(t, step.want, received[len(received)-1], "%+v", step)
	}
}
