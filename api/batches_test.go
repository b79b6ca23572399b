package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/engines"
	"anneal/eventlog/metering"
)

// requestFile uploads a file of requests and returns its ID.
func (s *harness) requestFile(content string) string {
	s.Helper()
	a := s.send(s.form("/v1/files", "user", "file", "in.jsonl", strings.NewReader(content), "purpose=batch"))
	require.Equal(s, http.StatusOK, a.status, "%s", a.body)
	return a.json(s)["id"].(string)
}

// batchBody returns the body of a request for a batch.
func batchBody(file string) string {
	return `{"input_file_id": "` + file + `", "endpoint": "/v1/completions", "completion_window": "24h"}`
}

// TestBatchFiles checks that a file of requests is listed, read and deleted as any file, although it
// is no dataset, and that files of training rows are not used for batches.
func TestBatchFiles(t *testing.T) {
	s := newHarness(t, request.Limits{})
	rows, in := s.file("rows.jsonl", chatRows), s.requestFile("{}\n")
	ids := func(query string) (ids []any) {
		for _, one := range s.call("GET", "/v1/files"+query, "user", "").json(t)["data"].([]any) {
			ids = append(ids, one.(map[string]any)["id"])
		}
		return ids
	}
	require.Equal(t, []any{in, rows}, ids(""))
	require.Equal(t, []any{rows, in}, ids("?order=asc"))
	require.Equal(t, []any{in}, ids("?purpose=batch"))
	require.Equal(t, []any{rows}, ids("?purpose=fine-tune"))
	require.Equal(t, []any{rows}, ids("?limit=1&after="+in))
	require.Equal(t, "{}\n", string(s.call("GET", "/v1/files/"+in+"/content", "user", "").body))
	require.Equal(t, "batch", s.call("GET", "/v1/files/"+in, "user", "").json(t)["purpose"])
	require.Equal(t, 404, s.call("GET", "/v1/accounts/acme/datasets/"+in, "user", "").status)
	require.Equal(t, 404, s.call("GET", "/v1/files/"+in, "other", "").status, "another account")
	require.Equal(t, 400, s.call("GET", "/v1/files/"+in+"?depth=1", "user", "").status)
	require.Equal(t, true, s.call("DELETE", "/v1/files/"+in, "user", "").json(t)["deleted"])
	require.Equal(t, 404, s.call("GET", "/v1/files/"+in, "user", "").status)
}

// TestBatchViolations checks that one error names every wrong field of a request for a batch.
func TestBatchViolations(t *testing.T) {
	s := newHarness(t, request.Limits{})
	rows := s.file("rows.jsonl", chatRows)
	for body, message := range map[string][]string{
		`{}`: {"input_file_id", "endpoint", "completion_window"},
		`{"input_file_id": "none", "endpoint": "/v1/responses", "completion_window": "1h", "metadata": {"` +
			strings.Repeat("k", 65) + `": ""}}`: {`input_file_id: there is no file "none"`, "endpoint: ",
			"completion_window: ", "metadata: "},
		batchBody(rows): {"has the purpose fine-tune: upload it again with the purpose batch"},
		strings.Replace(batchBody(rows), "{", `{"output_expires_after": {}, `, 1): {"output_expires_after"},
	} {
		a := s.call("POST", "/v1/batches", "user", body)
		require.Equal(t, http.StatusBadRequest, a.status, "%s", a.body)
		for _, part := range message {
			require.Contains(t, string(a.body), strings.ReplaceAll(part, `"`, `\"`))
		}
	}
	require.Empty(t, s.call("GET", "/v1/batches", "user", "").json(t)["data"])
	require.Equal(t, 404, s.call("GET", "/v1/batches/none", "user", "").status)
	require.Equal(t, 404, s.call("POST", "/v1/batches/none/cancel", "user", "").status)
}

// TestBatchLimit checks that concurrent requests do not exceed the number of batches of an account,
// and that a batch that has ended no longer counts.
func TestBatchLimit(t *testing.T) {
	s := newHarness(t, request.Limits{})
	body := batchBody(s.requestFile("{}\n"))
	created := s.call("POST", "/v1/batches", "user", body).json(t)
	for range domain.MaxLiveBatches - 4 {
		require.Equal(t, 200, s.call("POST", "/v1/batches", "user", body).status)
	}
	var mu sync.Mutex
	var statuses []int
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			a := s.call("POST", "/v1/batches", "user", body)
			mu.Lock()
			defer mu.Unlock()
			statuses = append(statuses, a.status)
		})
	}
	all.Wait()
	slices.Sort(statuses)
	require.Equal(t, []int{200, 200, 200, 429, 429, 429}, statuses)
	name := domain.NewName("acme", "batches", created["id"].(string))
	s.do(domain.Intend(domain.Batches, name, domain.FailBatch{}))
	require.Equal(t, 200, s.call("POST", "/v1/batches", "user", body).status)
}

// TestRepeatedBatch checks that an idempotency key creates one batch.
func TestRepeatedBatch(t *testing.T) {
	s := newHarness(t, request.Limits{})
	body := batchBody(s.requestFile("{}\n"))
	var ids []any
	for range 2 {
		r := s.request("POST", "/v1/batches", "user", strings.NewReader(body))
		r.Header.Set("Idempotency-Key", "once")
		a := s.send(r)
		require.Equal(t, 200, a.status, "%s", a.body)
		ids = append(ids, a.json(t)["id"])
	}
	require.Equal(t, ids[0], ids[1])
	require.Len(t, s.call("GET", "/v1/batches", "user", "").json(t)["data"], 1)
}

// TestRequestsInBackground checks that a request of a batch has the response that a client would
// get, that its usage is recorded for the key of the batch, and which errors can be tried again.
func TestRequestsInBackground(t *testing.T) {
	s := newHarness(t, request.Limits{})
	meter := &usageRecorder{}
	s.server.inference.Router.Meter = meter
	s.deploy("d1", 1)
	interactive := false
	s.replicas.respond = func(_ context.Context, _ domain.Replica, _ engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		_, interactive = s.server.LoadOf(hearer)
		return engines.Usage{PromptTokens: 5, CompletionTokens: 3},
			emit(engines.Chunk{Text: "<abc>", Tokens: []int{1, 2, 3}, Finish: engines.FinishStop})
	}
	send := func(body string) BackgroundResponse {
		return s.server.ServeInBackground(t.Context(), BackgroundRequest{Key: "accounts/acme/apiKeys/gone", ID: "r-1",
			Path: "/v1/completions", Body: []byte(body)})
	}
	const body = `{"model": "` + hearer + `", "prompt": "a"}`
	a := send(body)
	require.Equal(t, http.StatusOK, a.Status, "%s", a.Body)
	require.Contains(t, string(a.Body), `"text":"<abc>"`)
	require.False(t, interactive, "a request of a batch is not interactive")
	require.Equal(t, []metering.Record{{Time: epoch, ID: "r-1", Kind: metering.Completion, Account: "acme",
		Key: "accounts/acme/apiKeys/gone", Deployment: hearer, Model: hearer, Complete: true, PromptTokens: 5,
		CompletionTokens: 3}}, meter.taken(t))
	require.Equal(t, 200, s.complete(`"prompt": "a"`).status)
	require.True(t, interactive)
	_, interactive = s.server.LoadOf(hearer)
	require.False(t, interactive)

	target, err := s.server.ResolveInBackground(t.Context(), BackgroundRequest{Key: "accounts/acme/apiKeys/gone",
		Path: "/v1/completions"}, hearer)
	require.NoError(t, err)
	require.EqualValues(t, hearer, target)

	a = send(`{"model": "` + hearer + `", "prompt": "a", "temperature": 9}`)
	require.Equal(t, http.StatusBadRequest, a.Status)
	require.Contains(t, string(a.Body), `"param":"temperature"`)
	require.False(t, a.Waits)
	require.Equal(t, http.StatusNotFound, send(`{"model": "none", "prompt": "a"}`).Status)
	require.Equal(t, http.StatusBadRequest, send(`{"model": "`+hearer+`", "prompt": "`+
		strings.Repeat("a", int(s.server.Limits.Body))+`"}`).Status/100*100)

	s.replicas.respond = func(context.Context, domain.Replica, engines.CompletionRequest,
		func(engines.Chunk) error) (engines.Usage, error) {
		return engines.Usage{}, domain.Errorf(domain.ResourceExhausted, "the queue is full")
	}
	a = send(body)
	require.Equal(t, http.StatusTooManyRequests, a.Status)
	require.True(t, a.Waits)
	s.replicas.respond = func(context.Context, domain.Replica, engines.CompletionRequest,
		func(engines.Chunk) error) (engines.Usage, error) {
		return engines.Usage{}, domain.Errorf(domain.Internal, "the engine has failed")
	}
	a = send(body)
	require.Equal(t, http.StatusInternalServerError, a.Status, "%s", a.Body)
	require.Equal(t, domain.Internal, a.Code)
	require.False(t, a.Waits)

	require.Equal(t, 200, s.call("PATCH", "/v1/accounts/acme/quotas/requests-per-minute", "operator",
		`{"maxValue": "1"}`).status)
	statuses := []int{send(body).Status, send(body).Status}
	require.Equal(t, http.StatusTooManyRequests, statuses[1], fmt.Sprint(statuses))
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme:suspend", "operator",
		`{"suspendState": "CREDIT_DEPLETED"}`).status)
	require.True(t, send(body).Waits, "until the account is restored")
}
