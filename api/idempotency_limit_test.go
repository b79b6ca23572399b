package api

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/eventlog/idempotency"
)

// TestIdempotencyKeyLimit checks that a request with a new idempotency key is not executed when its
// account has reached the limit of stored responses, and that the error states when the account can
// use a new key.
func TestIdempotencyKeyLimit(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.answers.Limit = idempotency.Limit{Count: 2, Bytes: 1 << 20}
	create := func(alias, key, id string) response {
		account := map[string]string{"other": "other"}[alias]
		if account == "" {
			account = "acme"
		}
		r := s.request(http.MethodPost, "/v1/accounts/"+account+"/datasets", alias,
			strings.NewReader(`{"datasetId": "`+id+`", "dataset": {}}`))
		if key != "" {
			r.Header.Set(request.IdempotencyHeader, key)
		}
		return s.send(r)
	}
	for _, id := range []string{"d1", "d2"} {
		require.Equal(t, http.StatusOK, create("admin", id, id).status)
	}
	before := s.events()
	a := create("user", "d3", "d3")
	require.Equal(t, http.StatusTooManyRequests, a.status, "%s", a.body)
	require.Contains(t, string(a.body), "TOO_MANY_IDEMPOTENCY_KEYS")
	require.Contains(t, string(a.body), "account acme has reached the limit of stored idempotency keys")
	wait, err := strconv.Atoi(a.header.Get("Retry-After"))
	require.NoError(t, err)
	require.InDelta(t, idempotency.Retention.Seconds(), wait, 60)
	require.Equal(t, before, s.events(), "the request was not executed")

	require.Equal(t, "true", create("admin", "d1", "d1").header.Get(request.ReplayedHeader),
		"stored responses are still returned")
	require.Equal(t, http.StatusOK, create("user", "", "d3").status, "a request without a key is not limited")
	require.Equal(t, http.StatusOK, create("other", "d3", "d3").status, "each account has a separate limit")

	r := s.request(http.MethodPost, "/inference/v1/completions", "user",
		strings.NewReader(`{"model": "accounts/acme/deployments/d", "prompt": "a"}`))
	r.Header.Set(request.IdempotencyHeader, "c1")
	a = s.send(r)
	require.Equal(t, http.StatusTooManyRequests, a.status, "%s", a.body)
	require.Equal(t, "TOO_MANY_IDEMPOTENCY_KEYS", a.json(t)["error"].(map[string]any)["code"])

	s.clock.add(time.Duration(wait) * time.Second)
	require.Equal(t, http.StatusOK, create("user", "d4", "d4").status)
}
