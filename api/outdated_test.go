package api

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/eventlog"
)

// A laggingLog withholds events from its followers until a request reads the end of the log.
type laggingLog struct {
	heldLog
	lagging atomic.Bool
	asked   atomic.Int64
}

func (l *laggingLog) lag() {
	l.held.Lock()
	l.lagging.Store(true)
}

func (l *laggingLog) release() {
	if l.lagging.CompareAndSwap(true, false) {
		l.held.Unlock()
	}
}

func (l *laggingLog) Last(ctx context.Context) (eventlog.Checkpoint, error) {
	l.asked.Add(1)
	l.release()
	return l.Log.Last(ctx)
}

// TestAnotherServerKnowsWhatWasJustCreated checks that a server whose world has not reached the event
// of a resource does not reject a request that names the resource.
func TestAnotherServerKnowsWhatWasJustCreated(t *testing.T) {
	s := newHarness(t, request.Limits{})
	log := &laggingLog{heldLog: heldLog{Log: s.log}}
	other := s.following(log, func(o *Options) { o.Log = log })
	t.Cleanup(log.release)
	create := func(path, body string) func() string {
		return func() string {
			s.ok("POST", path, body)
			return ""
		}
	}
	file := func() string { return s.requestFile(`{"custom_id": "1"}` + "\n") }
	dataset := func(id string) func() string {
		return create(acme+"/datasets", `{"datasetId": "`+id+`", "dataset": {}}`)
	}
	for _, line := range []struct {
		name, method, path, key string
		body                    func(created string) string
		create                  func() string // returns an ID that path and body name as ID
	}{
		{name: "get", method: "GET", path: acme + "/datasets/d1", create: dataset("d1")},
		{name: "update", method: "PATCH", path: acme + "/datasets/d2", create: dataset("d2"),
			body: func(string) string { return `{"name": "accounts/acme/datasets/d2", "displayName": "New"}` }},
		{name: "delete", method: "DELETE", path: acme + "/datasets/d3", create: dataset("d3")},
		{name: "verb", method: "POST", path: acme + "/datasets/d4:getUploadEndpoint", create: dataset("d4"),
			body: func(string) string { return `{"filenameToSize": {"a.jsonl": 10}}` }},
		{name: "upload", method: "POST", path: acme + "/datasets/d5:upload", create: dataset("d5")},
		{name: "file", method: "GET", path: "/v1/files/ID", create: file},
		{name: "batch", method: "POST", path: "/v1/batches", create: file, body: batchBody},
		{name: "reference", method: "POST", path: acme + "/supervisedFineTuningJobs",
			create: func() string { return s.file("rows.jsonl", chatRows) },
			body: func(id string) string {
				return `{"dataset": "accounts/acme/datasets/` + id + `", "baseModel": "accounts/default/models/anneal-base"}`
			}},
		{name: "account", method: "GET", path: "/v1/accounts/fresh", key: "operator", create: func() string {
			a := s.call("POST", "/v1/accounts", "operator", `{"accountId": "fresh", "account": {"email": "a@example.com"}}`)
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
			return ""
		}},
		{name: "inference", method: "POST", path: "/inference/v1/completions",
			create: func() string {
				s.serveReplica(s.deploy("fresh", 1))
				return ""
			},
			body: func(string) string { return `{"model": "accounts/acme/deployments/fresh", "prompt": "Hello"}` }},
	} {
		t.Run(line.name, func(t *testing.T) {
			log.lag()
			defer log.release()
			id, key, body := line.create(), line.key, ""
			if line.body != nil {
				body = line.body(id)
			}
			if key == "" {
				key = "admin"
			}
			r := other.request(line.method, strings.ReplaceAll(line.path, "ID", id), key, strings.NewReader(body))
			if line.name == "upload" {
				r = other.form(line.path, key, "file", "a.jsonl", strings.NewReader(chatRows))
			}
			events, asked := s.events(), log.asked.Load()
			a := other.send(r)
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
			require.Equal(t, asked+1, log.asked.Load(), "the server asks for the end of the log once")
			if line.method == "GET" || line.name == "inference" {
				require.Equal(t, events, s.events())
			}
		})
	}
	log.release()
	asked := log.asked.Load()
	require.Equal(t, http.StatusNotFound, other.call("GET", acme+"/datasets/missing", "user", "").status)
	require.Equal(t, asked+1, log.asked.Load())
	require.Equal(t, http.StatusOK, other.call("GET", acme+"/datasets", "user", "").status)
	require.Equal(t, asked+1, log.asked.Load(), "accepted requests do not ask")
}
