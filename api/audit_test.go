package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/eventlog/audit"
)

// records returns the audit records that a caller sees, newest first.
func (s *harness) records(path, alias, filter string) (records []audit.Record) {
	s.Helper()
	for token := ""; ; {
		query := url.Values{"filter": {filter}, "pageSize": {"7"}, "pageToken": {token}}
		a := s.call("GET", path+"?"+query.Encode(), alias, "")
		require.Equal(s, 200, a.status, "%s", a.body)
		var page struct {
			AuditRecords  []audit.Record
			NextPageToken string
			TotalSize     int
		}
		require.NoError(s, json.Unmarshal(a.body, &page))
		if records = append(records, page.AuditRecords...); page.NextPageToken == "" {
			require.Len(s, records, page.TotalSize)
			return records
		}
		token = page.NextPageToken
	}
}

const allRecords, acmeRecords = "/v1/auditRecords", "/v1/accounts/acme/auditRecords"

// TestRefusedRequestsAreRecorded checks the record of each kind of refused and failed request, and that
// accepted requests have none.
func TestRefusedRequestsAreRecorded(t *testing.T) {
	s := newHarness(t, request.Limits{})
	expired := epoch.Add(time.Hour)
	s.mint("expired", "acme", domain.RoleUser, &expired)
	s.clock.at(expired.Add(time.Hour))
	const datasets = "/v1/accounts/acme/datasets"
	const create = `{"datasetId": "d", "dataset": {"displayName": "hidden in a body"}}`
	require.Equal(t, 200, s.call("POST", datasets, "user", create).status)
	s.call("PATCH", "/v1/accounts/acme/quotas/jobs", "operator", `{"maxValue": "0"}`)
	authentic := func(key string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", key) }
	}
	for _, c := range []struct {
		name, method, path, alias, body string
		change                          func(*http.Request)
		status                          int
		account, key, operation, reason string
	}{
		{"no key", "GET", datasets, "", "", nil, 401, "", "", "listDatasets", "API_KEY_MISSING"},
		{"malformed key", "GET", datasets, "", "", authentic("Bearer hidden"), 401, "", "", "listDatasets",
			"API_KEY_MALFORMED"},
		{"unknown key", "GET", datasets, "", "", authentic("Bearer " + strings.TrimSpace(foreignKey(t))), 401, "",
			"accounts/acme/apiKeys/admin", "listDatasets", "API_KEY_UNKNOWN"},
		{"expired key", "GET", datasets, "expired", "", nil, 401, "", "accounts/acme/apiKeys/expired", "listDatasets",
			"API_KEY_EXPIRED"},
		{"role", "POST", datasets, "inference", create, nil, 403, "acme", "accounts/acme/apiKeys/inference",
			"createDataset", "ROLE"},
		{"other account", "GET", datasets, "other", "", nil, 403, "other", "accounts/other/apiKeys/other", "listDatasets",
			"OTHER_ACCOUNT"},
		{"operator only", "GET", "/v1/accounts", "user", "", nil, 403, "acme", "accounts/acme/apiKeys/user",
			"listAccounts", "OPERATOR_ONLY"},
		{"not found", "GET", datasets + "/none", "user", "", nil, 404, "acme", "accounts/acme/apiKeys/user", "getDataset",
			"NOT_FOUND"},
		{"no such path", "GET", "/v1/none?hidden=1", "user", "", nil, 404, "", "accounts/acme/apiKeys/user", "",
			"NO_SUCH_PATH"},
		{"conflict", "POST", datasets, "user", create, nil, 409, "acme", "accounts/acme/apiKeys/user", "createDataset",
			"ALREADY_EXISTS"},
		{"replayed conflict", "POST", datasets, "user", create,
			func(r *http.Request) { r.Header.Set("Idempotency-Key", "k") }, 409, "acme", "accounts/acme/apiKeys/user",
			"createDataset", "ALREADY_EXISTS"},
		{"method", "PUT", datasets, "user", "", nil, 405, "", "accounts/acme/apiKeys/user", "", "METHOD_NOT_ALLOWED"},
		{"too large", "POST", datasets, "user", `{"hidden": "` + strings.Repeat("x", 5<<20) + `"}`, nil, 413, "acme",
			"accounts/acme/apiKeys/user", "createDataset", "BODY_TOO_LARGE"},
		{"invalid", "POST", datasets, "user", `{"hidden": 1}`, nil, 400, "acme", "accounts/acme/apiKeys/user",
			"createDataset", "INVALID_FIELDS"},
		{"no model", "POST", "/inference/v1/completions", "user", `{"model": "hidden", "prompt": "hidden"}`, nil, 404,
			"acme", "accounts/acme/apiKeys/user", "createCompletion", "MODEL_NOT_FOUND"},
		{"signed URL", "GET", "/blobs/datasets/acme/x?signature=hidden", "", "", nil, 403, "", "", "", ""},
	} {
		r := s.request(c.method, c.path, c.alias, strings.NewReader(c.body))
		r.Header.Set("X-Request-Id", strings.ReplaceAll(c.name, " ", "-"))
		r.Header.Set("Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
		r.Header.Set("X-Forwarded-For", "203.0.113.9")
		if c.change != nil {
			c.change(r)
		}
		require.Equal(t, c.status, s.send(r).status, c.name)
		found := s.records(allRecords, "operator", `requestId = "`+strings.ReplaceAll(c.name, " ", "-")+`"`)
		require.Len(t, found, 1, c.name)
		got := found[0]
		path, _, _ := strings.Cut(c.path, "?")
		require.Equal(t, audit.Record{ID: got.ID, Time: got.Time, Kind: audit.RequestRefused, Account: c.account,
			Actor: actorOf(c.account, c.key), APIKey: c.key, ClientAddress: "127.0.0.1", Method: c.method,
			Operation: c.operation, Path: path, Status: c.status, Reason: c.reason,
			RequestID:    strings.ReplaceAll(c.name, " ", "-"),
			TraceParent:  "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
			ControlPlane: "cp-1"}, got, c.name)
		text, err := json.Marshal(got)
		require.NoError(t, err)
		require.NotContains(t, string(text), "hidden", c.name)
	}
	for _, r := range s.records(allRecords, "operator", "") {
		require.GreaterOrEqual(t, r.Status, 400)
	}
}

// actorOf returns the actor that an audit record must have; "" if the caller was not authenticated.
func actorOf(account, key string) string {
	if account == "" {
		return ""
	}
	return key
}

// foreignKey returns an API key of another installation that has the name of a key of this one.
func foreignKey(t *testing.T) string {
	key, err := request.MintKey([]byte("another pepper, which is 32 bytes"), "accounts/acme/apiKeys/admin")
	require.NoError(t, err)
	return key.Text
}

// TestLimitedRequestsAreRecorded checks the records of requests beyond a quota, of failures and of
// panics, before and after the response has begun.
func TestLimitedRequestsAreRecorded(t *testing.T) {
	s := newHarness(t, request.Limits{})
	require.Equal(t, 200, s.call("PATCH", "/v1/accounts/acme/quotas/requests-per-minute", "operator",
		`{"maxValue": "0"}`).status)
	require.Equal(t, 429, s.call("GET", "/v1/accounts/acme/datasets", "user", "").status)

	for name, begins := range map[string]bool{"panic": false, "late-panic": true} {
		h := s.server.identify(s.server.observe(
			s.server.recover(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if begins {
					w.WriteHeader(http.StatusOK)
				}
				panic("hidden")
			}))))
		r := httptest.NewRequest("GET", "/v1/"+name, nil)
		r.Header.Set("X-Request-Id", name)
		func() {
			defer func() { require.Equal(t, begins, recover() != nil) }()
			h.ServeHTTP(httptest.NewRecorder(), r)
		}()
	}
	found := s.records(acmeRecords, "operator", "status = 429")
	require.Len(t, found, 1)
	require.Equal(t, []any{audit.RequestRefused, "acme", "listDatasets"},
		[]any{found[0].Kind, found[0].Account, found[0].Operation})
	require.NotEmpty(t, found[0].Reason)
	failed := s.records(allRecords, "operator", "kind = REQUEST_FAILED")
	require.Len(t, failed, 2)
	for _, r := range failed {
		require.Equal(t, "INTERNAL", r.Reason)
		require.Equal(t, "192.0.2.1", r.ClientAddress)
		require.Equal(t, map[string]int{"panic": 500, "late-panic": 200}[r.RequestID], r.Status)
		require.NotContains(t, fmt.Sprint(r), "hidden")
	}
}

// TestLoginsAreRecorded checks that a request in which an API key reads itself is recorded as a
// login, even if its role may not read keys, and that only the operator sees refused logins.
func TestLoginsAreRecorded(t *testing.T) {
	s := newHarness(t, request.Limits{})
	require.Equal(t, 200, s.call("GET", "/v1/accounts/acme/apiKeys/admin", "admin", "").status)
	require.Equal(t, 403, s.call("GET", "/v1/accounts/acme/apiKeys/inference", "inference", "").status)
	require.Equal(t, 403, s.call("GET", "/v1/accounts/acme/apiKeys/admin", "inference", "").status, "another key")
	require.Equal(t, 200, s.call("GET", "/v1/accounts/acme/apiKeys/user", "admin", "").status, "another key")
	r := s.request("GET", "/v1/accounts/acme/apiKeys/admin", "", nil)
	r.Header.Set("Authorization", "Bearer "+foreignKey(t))
	require.Equal(t, 401, s.send(r).status)

	var accepted []string
	for _, r := range s.records(acmeRecords, "admin", "kind = LOGIN_ACCEPTED") {
		accepted = append(accepted, r.APIKey)
	}
	require.Equal(t, []string{"accounts/acme/apiKeys/inference", "accounts/acme/apiKeys/admin"}, accepted)
	require.Empty(t, s.records(acmeRecords, "admin", "kind = LOGIN_REFUSED"))
	refused := s.records(allRecords, "operator", "kind = LOGIN_REFUSED")
	require.Len(t, refused, 1)
	require.Equal(t, []string{"", "", "accounts/acme/apiKeys/admin", "API_KEY_UNKNOWN"},
		[]string{refused[0].Account, refused[0].Actor, refused[0].APIKey, refused[0].Reason})
	require.Len(t, s.records(acmeRecords, "admin", "kind = REQUEST_REFUSED"), 1)
}

// TestAccountsSeeOnlyTheirRecords checks that an admin sees the records of its account only, newest
// first, and that no other role sees any.
func TestAccountsSeeOnlyTheirRecords(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for n := range 9 {
		for _, alias := range []string{"user", "other", "default", ""} {
			s.call("GET", fmt.Sprintf("/v1/accounts/acme/datasets/none-%d", n), alias, "")
		}
	}
	own := s.records(acmeRecords, "admin", "kind = REQUEST_REFUSED")
	require.Len(t, own, 9)
	for n, r := range own {
		require.Equal(t, "acme", r.Account)
		require.Equal(t, fmt.Sprintf("/v1/accounts/acme/datasets/none-%d", 8-n), r.Path)
	}
	require.Len(t, s.records("/v1/accounts/other/auditRecords", "other", "kind = REQUEST_REFUSED"), 9)
	require.Len(t, s.records(allRecords, "operator", "kind = REQUEST_REFUSED"), 36)
	recent := s.records(allRecords, "operator", `time >= "`+own[0].Time.Format(time.RFC3339Nano)+`"`)
	require.Less(t, len(recent), 9)
	require.NotEmpty(t, recent)
	for _, alias := range []string{"user", "inference", "other"} {
		require.Equal(t, 403, s.call("GET", acmeRecords, alias, "").status, alias)
		require.Equal(t, 403, s.call("GET", allRecords, alias, "").status, alias)
	}
}

// TestEventsNameTheAddress checks that the events of a request have the address of its client if the
// server records addresses, and otherwise not.
func TestEventsNameTheAddress(t *testing.T) {
	for _, recorded := range []bool{true, false} {
		s := startHarness(t, epoch, request.Limits{}, func(o *Options) { o.Addresses = recorded })
		s.createAccounts()
		require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/datasets", "user", `{"datasetId": "d"}`).status)
		a := s.call("GET", "/v1/accounts/acme/datasets/d/events", "user", "")
		require.Equal(t, recorded, bytes.Contains(a.body, []byte(`"clientaddress":"127.0.0.1"`)), "%s", a.body)
		a = s.call("GET", "/v1/accounts/acme/events?filter="+url.QueryEscape(`clientaddress = "127.0.0.1"`), "user", "")
		require.Equal(t, recorded, bytes.Contains(a.body, []byte("dataset.created.v1")), "%s", a.body)
	}
}
