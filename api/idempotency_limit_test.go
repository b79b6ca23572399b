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

// An account that has as many answers kept as it may have gets no further key,
// and is told when it will: what it asked for does not happen.
func TestNoRoomForAnotherKey(t *testing.T) {
	s := newStage(t, Limits{})
	s.answers.Limit = idempotency.Limit{Count: 2, Bytes: 1 << 20}
	create := func(alias, key, id string) answer {
		account := map[string]string{"other": "other"}[alias]
		if account == "" {
			account = "acme"
		}
		r := s.request(http.MethodPost, "/v1/accounts/"+account+"/datasets", alias, strings.NewReader(`{"datasetId": "`+id+`", "dataset": {}}`))
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
	require.Contains(t, string(a.body), "accounts/acme has as many answers kept")
	wait, err := strconv.Atoi(a.header.Get("Retry-After"))
	require.NoError(t, err)
	require.InDelta(t, idempotency.Retention.Seconds(), wait, 60)
	require.Equal(t, before, s.events(), "nothing was done")

	require.Equal(t, "true", create("admin", "d1", "d1").header.Get(request.ReplayedHeader), "what is kept is answered again")
	require.Equal(t, http.StatusOK, create("user", "", "d3").status, "without a key there is no need of room")
	require.Equal(t, http.StatusOK, create("other", "d3", "d3").status, "each account has its own room")

	r := s.request(http.MethodPost, "/inference/v1/completions", "user", strings.NewReader(`{"model": "accounts/acme/deployments/d", "prompt": "a"}`))
	r.Header.Set(request.IdempotencyHeader, "c1")
	a = s.send(r)
	require.Equal(t, http.StatusTooManyRequests, a.status, "%s", a.body)
	require.Equal(t, "TOO_MANY_IDEMPOTENCY_KEYS", a.json(t)["error"].(map[string]any)["code"])

	s.clock.add(time.Duration(wait) * time.Second)
	require.Equal(t, http.StatusOK, create("user", "d4", "d4").status)
}
