package api

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/rest"
	"anneal/domain"
)

const canary = "canary-7f3e1c"

// TestSecretsStaySecret checks that the value of a secret is in the response to the request
// that sets it, and nowhere else: not in another response, event, log line, error or stored
// state.
func TestSecretsStaySecret(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.makeDataset("d")
	live, _ := s.listen("/v1/accounts/acme/events", "admin")
	given := []struct{ method, path, body string }{
		{"POST", "/v1/accounts/acme/secrets", `{"name": "s1", "keyName": "K", "value": "` + canary + `"}`},
		{"PATCH", "/v1/accounts/acme/secrets/s1", `{"value": "` + canary + `-2"}`},
		{"PATCH", "/v1/accounts/acme/secrets/s1", `{"keyName": "K2"}`},
		{"POST", "/v1/accounts/acme/supervisedFineTuningJobs?supervisedFineTuningJobId=j1",
			`{"dataset": "accounts/acme/datasets/d", "baseModel": "accounts/default/models/anneal-base", "trackerConfig": ` +
				`{"enabled": true, "project": "p", "entity": "e", "apiKey": "` + canary + `"}}`},
		{"POST", "/v1/accounts/acme/deployments?deploymentId=d1",
			`{"baseModel": "accounts/default/models/anneal-base", "directRouteApiKeys": ["` + canary + `"]}`},
		{"PATCH", "/v1/accounts/acme/deployments/d1", `{"directRouteApiKeys": ["` + canary + `-2"]}`},
		{"PATCH", "/v1/accounts/acme/deployments/d1", `{"displayName": "x"}`},
		{"POST", "/v1/accounts/acme/dpoJobs?dpoJobId=j2",
			`{"dataset": "accounts/acme/datasets/d", "trackerConfig": {"enabled": true, "project": "p", "entity": "e", ` +
				`"apiKey": "` + canary + `"}}`},
		{"POST", "/v1/accounts/acme/rlorTrainerJobs?rlorTrainerJobId=j1",
			`{"keepAlive": true, "trackerConfig": {"enabled": true, "project": "p", "entity": "e", "apiKey": "` + canary +
				`"}}`},
	}
	for _, one := range given {
		a := s.call(one.method, one.path, "admin", one.body)
		require.Equal(t, 200, a.status, "%s", a.body)
		require.Equal(t, strings.Contains(one.body, canary), strings.Contains(string(a.body), canary), "%s", a.body)
		require.NotContains(t, live.next()["data"], "value")
	}
	key := s.call("POST", "/v1/accounts/acme/apiKeys", "admin",
		`{"apiKey": {"role": "user"}, "apiKeyId": "k1"}`).json(t)["key"].(string)
	live.next()

	// invalid requests, each of which contains the value
	for _, one := range []struct{ method, path, body string }{
		{"POST", "/v1/accounts/acme/secrets", `{"name": "s1", "keyName": "K", "value": "` + canary + `"}`},
		{"POST", "/v1/accounts/acme/secrets", `{"name": "s2", "keyName": "9 9", "value": "` + canary + `"}`},
		{"POST", "/v1/accounts/acme/secrets", `{"name": "s2", "keyName": "K", "value": ["` + canary + `"]}`},
		{"POST", "/v1/accounts/acme/secrets", `{"name": "s2", "keyName": "K", "valu": "` + canary + `"}`},
		{"POST", "/v1/accounts/acme/secrets", `{"name": "s2", "keyName": "K", "value": "` + canary},
		{"PATCH", "/v1/accounts/acme/secrets/s1?updateMask=value,nothing", `{"value": "` + canary + `"}`},
		{"POST", "/v1/accounts/acme/deployments?deploymentId=d1",
			`{"baseModel": "accounts/default/models/anneal-base", "directRouteApiKeys": ["` + canary + `"]}`},
		{"POST", "/v1/accounts/acme/deployments",
			`{"baseModel": "accounts/default/models/anneal-base", "directRouteApiKeys": {"a": "` + canary + `"}}`},
	} {
		a := s.call(one.method, one.path, "admin", one.body)
		require.GreaterOrEqual(t, a.status, 400, "%s", one.body)
		require.NotContains(t, string(a.body), canary, "%s", one.body)
	}
	for _, path := range []string{"secrets", "secrets/s1", "secrets/s1/events", "supervisedFineTuningJobs",
		"supervisedFineTuningJobs/j1",
		"supervisedFineTuningJobs/j1/events", "dpoJobs/j2", "rlorTrainerJobs/j1", "deployments", "deployments/d1",
		"deployments/d1/events", "apiKeys", "apiKeys/k1",
		"apiKeys/k1/events", "events?pageSize=200", "secrets?readMask=value", "deployments?readMask=directRouteApiKeys"} {
		a := s.call("GET", "/v1/accounts/acme/"+path, "admin", "")
		require.Equal(t, 200, a.status, "%s: %s", path, a.body)
		for _, secret := range []string{canary, key, `"hash"`, "ciphertext", "keyId"} {
			require.NotContains(t, string(a.body), secret, path)
		}
	}
	for e, err := range s.log.Read(t.Context(), ">", 0) {
		require.NoError(t, err)
		require.NotContains(t, string(e.Data), canary)
		require.NotContains(t, string(e.Data), key)
	}
	require.NotContains(t, s.logged.String(), canary)
	require.NotContains(t, s.logged.String(), key[len(key)-72:])
}

// TestSecretsAreSealedAndErased checks that the value of a secret can be decrypted after any change
// until the secret is deleted, and that the reconciler erases replaced and deleted values.
func TestSecretsAreSealedAndErased(t *testing.T) {
	s := newHarness(t, request.Limits{})
	name := domain.Name("accounts/acme/secrets/s1")
	open := func(state domain.Secret) (string, error) {
		value, err := s.vault.Open(t.Context(), name, state.Value)
		return value.Reveal(), err
	}
	now := func() domain.Secret {
		row, ok := s.world.View().Secrets.Get(name)
		require.True(t, ok)
		return row.State
	}
	var before []domain.Secret
	for _, step := range []struct{ method, path, body, value string }{
		{"POST", "/v1/accounts/acme/secrets", `{"name": "s1", "keyName": "Z"}`, ""},
		{"PATCH", "/v1/accounts/acme/secrets/s1", `{"keyName": "A"}`, ""},
		{"PATCH", "/v1/accounts/acme/secrets/s1", `{"value": "one"}`, "one"},
		{"PATCH", "/v1/accounts/acme/secrets/s1", `{"value": "two"}`, "two"},
		{"PATCH", "/v1/accounts/acme/secrets/s1", `{"keyName": "B"}`, "two"},
		{"PATCH", "/v1/accounts/acme/secrets/s1", `{"keyName": "C", "value": "three"}`, "three"},
		{"PATCH", "/v1/accounts/acme/secrets/s1?updateMask=keyName", `{"keyName": "D", "value": "ignored"}`, "three"},
	} {
		require.Equal(t, 200, s.call(step.method, step.path, "admin", step.body).status)
		require.Equal(t, step.value != "", now().HasValue())
		if !now().HasValue() {
			continue
		}
		s.reconcile()
		value, err := open(now())
		require.NoError(t, err)
		require.Equal(t, step.value, value)
		for _, old := range before {
			if _, err := open(old); old.Value.KeyID != now().Value.KeyID {
				require.Equal(t, domain.NotFound, domain.CodeOf(err), "what was replaced is erased")
			}
		}
		before = append(before, now())
	}
	require.Equal(t, 400, s.call("PATCH", "/v1/accounts/acme/secrets/s1?updateMask=value", "admin", `{}`).status)
	last := now()
	require.Equal(t, 200, s.call("DELETE", "/v1/accounts/acme/secrets/s1", "admin", "").status)
	s.reconcile()
	_, err := open(last)
	require.Equal(t, domain.NotFound, domain.CodeOf(err))
}

func TestSecretValueLimit(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for size, status := range map[int]int{rest.MaxSecret: 200, rest.MaxSecret + 1: 400} {
		a := s.call("POST", "/v1/accounts/acme/secrets", "admin",
			`{"name": "s1", "keyName": "A", "value": "`+strings.Repeat("x", size)+`"}`)
		require.Equal(t, status, a.status)
	}
}

// TestSignedURLsExpire checks that a signed URL is valid only for its file and its method.
func TestSignedURLsExpire(t *testing.T) {
	s := newHarness(t, request.Limits{SignedURL: time.Minute})
	s.makeDataset("d")
	require.Equal(t, 200, s.upload("/v1/accounts/acme/datasets/d:upload", "user", "file", "a.jsonl",
		strings.NewReader(strings.Repeat("{\"text\":\"t\"}\n", 3))).status)
	url := s.call("GET", "/v1/accounts/acme/datasets/d:getDownloadEndpoint", "user",
		"").json(t)["filenameToSignedUrls"].(map[string]any)["a.jsonl"].(string)
	get := func(url string) int {
		r, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
		require.NoError(t, err)
		return s.send(r).status
	}
	require.Equal(t, 200, get(url))
	require.Equal(t, 403, get(strings.Replace(url, "a.jsonl", "b.jsonl", 1)))
	require.Equal(t, 403, get(strings.Replace(url, "method=GET", "method=PUT", 1)))
}

func TestInternalErrorsAreNotDisclosed(t *testing.T) {
	f := request.ErrorOf(errors.New("dial tcp 10.0.0.1: " + canary))
	require.Equal(t, domain.Internal, f.Code)
	require.NotContains(t, f.Message, canary)
	for code := domain.OK; code <= domain.Unauthenticated; code++ {
		require.Contains(t, request.StatusOfCode, code)
	}
}
