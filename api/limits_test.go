package api

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/connection"
	"anneal/api/request"
	"anneal/api/rest"
	"anneal/api/upload"
	"anneal/api/wire"
	"anneal/domain"
)

func TestBodiesHaveLimits(t *testing.T) {
	s := newHarness(t, request.Limits{Body: 2000})
	fits := func(n int) string {
		head, tail := `{"datasetId": "d%d", "dataset": {`, `}}`
		return fmt.Sprintf(head, n) + strings.Repeat(" ", n-len(fmt.Sprintf(head, n))-len(tail)) + tail
	}
	for _, c := range []struct {
		name, body string
		status     int
		message    string
	}{
		{"as large as possible", fits(2000), 200, ""},
		{"one byte more", fits(2001), 413, "more than the limit of 2000"},
		{"as deep as possible", `{"dataset": {"userUploaded": {}}, "datasetId": ` + strings.Repeat("[", 63) +
			strings.Repeat("]", 63) + `}`, 400, "datasetId: must be text"},
		{"one deeper", `{"datasetId": ` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`, 400,
			"more than 64 levels"},
		{"not UTF-8", "{\"datasetId\": \"\xff\"}", 400, "not valid UTF-8"},
		{"twice", `{"datasetId": "a", "datasetId": "b"}`, 400, `the key \"datasetId\" twice`},
		{"both spellings", `{"datasetId": "a", "dataset_id": "b"}`, 400, "lowerCamelCase and in snake_case"},
		{"two values", `{"datasetId": "a"} {}`, 400, "has text after its JSON value"},
		{"broken", "{\"datasetId\":\n  nope}", 400, "line 2"},
		{"a list", `[]`, 400, "body: must be an object, not a list"},
		{"null", `null`, 400, "must be an object, not null"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := s.call("POST", "/v1/accounts/acme/datasets", "user", c.body)
			require.Equal(t, c.status, a.status, "%s", a.body)
			require.Contains(t, string(a.body), c.message)
		})
	}
}

// TestTextsHaveLimits checks that strings longer than wire.MaxText are rejected in fields without a
// specific rule.
func TestTextsHaveLimits(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for _, c := range []struct{ collection, body, field string }{
		{"deployments?deploymentId=d", `{"baseModel": "accounts/default/models/anneal-base", "pricingPlanId": %q}`,
			"pricingPlanId"},
		{"deployments?deploymentId=d", `{"baseModel": "accounts/default/models/anneal-base", "placement": {"regions": [%q]}}`,
			"placement.regions[0]"},
		{"rlorTrainerJobs", `{"dataset": "accounts/acme/datasets/d", "rewardWeights": [%q]}`, "rewardWeights[0]"},
	} {
		a := s.call("POST", "/v1/accounts/acme/"+c.collection, "user",
			fmt.Sprintf(c.body, strings.Repeat("x", wire.MaxText+1)))
		require.Equal(t, 400, a.status, "%s", a.body)
		require.Contains(t, string(a.body), c.field+": must have at most 4096 bytes")
		require.Less(t, len(a.body), 4096, "the error does not repeat a long value")
	}
	a := s.call("POST", "/v1/accounts/acme/secrets", "admin",
		fmt.Sprintf(`{"name": "s", "keyName": "K", "value": %q}`, strings.Repeat("x", rest.MaxSecret)))
	require.Equal(t, 200, a.status, "%s", a.body)
}

func TestUploadsHaveLimits(t *testing.T) {
	rows := strings.Repeat(`{"text": "0123456789"}`+"\n", 10)
	s := newHarness(t, request.Limits{Upload: int64(len(rows))})
	for _, id := range []string{"fits", "big", "form", "name"} {
		require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/datasets", "user", `{"datasetId": "`+id+`"}`).status)
	}
	path := func(id string) string { return "/v1/accounts/acme/datasets/" + id + ":upload" }
	a := s.upload(path("fits"), "user", "file", "rows.jsonl", strings.NewReader(rows))
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Equal(t, "10", a.json(t)["exampleCount"])
	require.Equal(t, "COMPLETION", a.json(t)["format"])

	a = s.upload(path("big"), "user", "file", "rows.jsonl", strings.NewReader(rows+"x"))
	require.Equal(t, http.StatusRequestEntityTooLarge, a.status, "%s", a.body)
	require.Equal(t, 400, s.call("POST", path("big"), "user", "no form at all").status)
	require.Equal(t, "UPLOADING", s.call("GET", "/v1/accounts/acme/datasets/big", "user", "").json(t)["state"])
	require.Len(t, s.stored("datasets/acme/"), 1, "rejected files are not stored")

	a = s.upload(path("form"), "user", "data", "rows.jsonl", strings.NewReader(rows))
	require.Contains(t, string(a.body), `the form has a field`)
	a = s.upload(path("name"), "user", "file", ".hidden", strings.NewReader(rows))
	require.Contains(t, string(a.body), upload.FileNameRule)
}

func TestUploadBySignedURL(t *testing.T) {
	s := newHarness(t, request.Limits{})
	one := "/v1/accounts/acme/datasets/d"
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/datasets", "user", `{"datasetId": "d"}`).status)
	put := func(rows string) string {
		a := s.call("POST", one+":getUploadEndpoint", "user", fmt.Sprintf(`{"filenameToSize": {"b.jsonl": %d}}`, len(rows)))
		url := a.json(t)["filenameToSignedUrls"].(map[string]any)["b.jsonl"].(string)
		require.Equal(t, 200, s.put(url, rows).status)
		return url
	}
	put(`{"prompt": "a"}` + "\n")
	a := s.call("POST", one+":validateUpload", "user", "")
	require.Equal(t, 400, a.status)
	require.Contains(t, string(a.body), "b.jsonl:1: completion is missing")
	url := put(strings.Repeat(`{"prompt": "a", "completion": "b"}`+"\n", 3))
	a = s.call("POST", one+":validateUpload", "user", "")
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Equal(t, "READY", a.json(t)["state"])
	require.Equal(t, 200, s.call("POST", one+":validateUpload", "user", "{}").status, "again succeeds")

	s.put(url, "overwritten") // the URL is still valid, but does not affect a READY dataset
	a = s.call("GET", one+":getDownloadEndpoint", "user", "")
	url = a.json(t)["filenameToSignedUrls"].(map[string]any)["b.jsonl"].(string)
	require.Equal(t, 3, bytes.Count(s.get(url).body, []byte(`"completion"`)))

	require.Equal(t, 200, s.call("DELETE", one, "user", "").status)
	require.Empty(t, s.stored("datasets/acme/"))
}

func TestPreviewPages(t *testing.T) {
	s := newHarness(t, request.Limits{})
	one := "/v1/accounts/acme/datasets/d"
	s.call("POST", "/v1/accounts/acme/datasets", "user", `{"datasetId": "d"}`)
	var rows strings.Builder
	for i := range 7 {
		fmt.Fprintf(&rows, "{\"text\": \"row %d\"}\n", i)
	}
	require.Equal(t, 200, s.upload(one+":upload", "user", "file", "rows.jsonl", strings.NewReader(rows.String())).status)
	var seen []any
	token := ""
	for {
		page := s.call("GET", one+":preview?pageSize=3&pageToken="+token, "user", "").json(t)
		seen = append(seen, page["examples"].([]any)...)
		require.Equal(t, 7.0, page["totalCount"])
		next, more := page["nextPageToken"].(string)
		if !more {
			break
		}
		token = next
	}
	require.Len(t, seen, 7)
	for i, one := range seen {
		require.Equal(t, fmt.Sprintf("row %d", i), one.(map[string]any)["text"])
	}
	a := s.call("GET", one+":preview?pageSize=2&pageToken="+token, "user", "")
	require.Equal(t, 400, a.status)
}

// TestDatasetsOfSeveralFiles checks that a preview reads the files of a dataset in the order of
// their names, and that each file can be downloaded.
func TestDatasetsOfSeveralFiles(t *testing.T) {
	s := newHarness(t, request.Limits{})
	one := "/v1/accounts/acme/datasets/d"
	s.call("POST", "/v1/accounts/acme/datasets", "user", `{"datasetId": "d"}`)
	files := map[string]string{"a.jsonl": "{\"text\": \"0\"}\n\n{\"text\": \"1\"}", "b.jsonl": "{\"text\": \"2\"}\n",
		"c.jsonl": "{\"text\": \"3\"}\n{\"text\": \"4\"}\n"}
	links := s.call("POST", one+":getUploadEndpoint", "user",
		`{"filenameToSize": {"a.jsonl": "100", "b.jsonl": "100", "c.jsonl": `+
			`"100"}}`).json(t)["filenameToSignedUrls"].(map[string]any)
	for name, content := range files {
		require.Equal(t, 200, s.put(links[name].(string), content).status)
	}
	require.Equal(t, "READY", s.call("POST", one+":validateUpload", "user", `{}`).json(t)["state"])
	var seen string
	for token, more := "", true; more; {
		page := s.call("GET", one+":preview?pageSize=2&pageToken="+token, "user", "").json(t)
		for _, row := range page["examples"].([]any) {
			seen += row.(map[string]any)["text"].(string)
		}
		token, more = page["nextPageToken"].(string)
	}
	require.Equal(t, "01234", seen)
	links = s.call("GET", one+":getDownloadEndpoint", "user", "").json(t)["filenameToSignedUrls"].(map[string]any)
	require.Len(t, links, len(files))
	for name, link := range links {
		require.Equal(t, files[name], string(s.get(link.(string)).body))
	}
}

func TestPanicFailsOneRequest(t *testing.T) {
	s := newHarness(t, request.Limits{})
	h := s.server.identify(s.server.observe(
		s.server.recover(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("oh no") }))))
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "/inference/v1/x", nil)
	r.Header.Set("X-Request-Id", "r-7")
	h.ServeHTTP(w, r)
	require.Equal(t, 500, w.Code)
	require.Contains(t, w.Body.String(), `"request_id":"r-7"`)
	require.NotContains(t, w.Body.String(), "oh no")
	require.Contains(t, s.logged.String(), "oh no")
}

func TestHealthAndMetrics(t *testing.T) {
	s := newHarness(t, request.Limits{})
	require.Equal(t, 200, s.call("GET", "/readyz", "", "").status)
	require.Equal(t, 200, s.call("GET", "/v1/accounts/acme", "user", "").status)
	metrics := string(s.call("GET", "/metrics", "", "").body)
	require.Contains(t, metrics, `anneal_http_requests_total{method="GET",route="/v1/accounts/{account}",status="200"} 1`)
	require.Contains(t, metrics, "anneal_world_lag_events 0")
	require.Contains(t, metrics, fmt.Sprintf("anneal_world_position %d", s.world.Position()))
}

func TestRequestIDs(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for given, kept := range map[string]bool{"abc-1": true, "": false, "a b": false, strings.Repeat("x", 129): false,
		strings.Repeat("x", 128): true} {
		r := s.request("GET", "/healthz", "", nil)
		if given != "" {
			r.Header.Set("X-Request-Id", given)
		}
		got := s.send(r).header.Get("X-Request-Id")
		require.NotEmpty(t, got)
		require.Equal(t, kept, got == given, "%q", given)
	}
}

func TestServerTimeouts(t *testing.T) {
	s := newHarness(t, request.Limits{})
	web := connection.NewServer(t.Context(), s.server, s.server.Logger)
	require.Equal(t, 10*time.Second, web.ReadHeaderTimeout)
	require.Equal(t, 64<<10, web.MaxHeaderBytes)
	require.Zero(t, web.WriteTimeout)
}

func TestMasksHaveLimits(t *testing.T) {
	var v domain.Violations
	wire.ParseReadMask(&v, typeOf[rest.Dataset](), []string{strings.Repeat("name,", 200)})
	require.Empty(t, v)
	wire.ParseReadMask(&v, typeOf[rest.Dataset](), []string{strings.Repeat("name,", 201)})
	require.Len(t, v, 1)
}

// TestLogRejectsWrites checks that a client gets an error without the cause when the event log
// accepts no writes, and that the server logs the cause.
func TestLogRejectsWrites(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.server.core.Log = brokenLog{s.log}
	a := s.call("POST", "/v1/accounts/acme/datasets", "user", `{"datasetId": "d"}`)
	require.Equal(t, 503, a.status)
	require.Equal(t, "LOG_UNAVAILABLE", reasonOf(t, a))
	require.NotEmpty(t, a.header.Get("Retry-After"))
	require.NotContains(t, string(a.body), "connection")
	require.Contains(t, s.logged.String(), "no connection")
}
