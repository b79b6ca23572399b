package api

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
)

// TestInferenceIsBelowBothPrefixes checks that every inference operation is below /inference/v1 and
// below /v1, with the same declaration.
func TestInferenceIsBelowBothPrefixes(t *testing.T) {
	table := map[string]request.Operation{}
	for _, op := range (&Server{}).operations() {
		table[op.Method+" "+op.Path] = op
	}
	found := 0
	for route, op := range table {
		if !op.IsInference() {
			continue
		}
		method, path, _ := strings.Cut(route, " ")
		short, isLong := strings.CutPrefix(path, "/inference")
		if !isLong {
			short, path = path, "/inference"+path
		}
		require.True(t, strings.HasPrefix(short, "/v1/"), route)
		long, ok := table[method+" "+path]
		require.True(t, ok, "%s has no counterpart below /inference/v1", route)
		other, ok := table[method+" "+short]
		require.True(t, ok, "%s has no counterpart below /v1", route)
		require.Equal(t, []any{long.Body, long.Form, long.Response, long.Streamed, long.Slashes, long.BareKey},
			[]any{other.Body, other.Form, other.Response, other.Streamed, other.Slashes, other.BareKey}, route)
		found++
	}
	require.Greater(t, found, 10)
}

// TestErrorFormatOfPaths checks which format errors have, for paths with an operation, with other
// methods, and without any operation.
func TestErrorFormatOfPaths(t *testing.T) {
	s := newDirectHarness(t)
	isInference := func(a response) bool {
		t.Helper()
		body := a.json(t)
		_, object := body["error"].(map[string]any)
		_, code := body["code"].(float64)
		require.NotEqual(t, object, code, "one of the two formats: %s", a.body)
		return object
	}
	for _, op := range s.server.table {
		if op.Hidden || op.Gate == request.Everyone {
			continue
		}
		path := placeholders.ReplaceAllString(strings.ReplaceAll(op.Path, "{account}", "acme"), "none")
		for _, method := range []string{op.Method, "PUT", "TRACE"} {
			a := s.call(method, path, "", "")
			require.GreaterOrEqual(t, a.status, 400, "%s %s", method, path)
			require.Equal(t, op.HasInferenceErrors(), isInference(a), "%s %s: %s", method, path, a.body)
		}
	}
	for path, inference := range map[string]bool{
		"/v1/moderations": true, "/v1": true, "/v1/chat": true, "/v1/chat/none": true, "/inference": true,
		"/inference/v1/none": true, "/v1/audio/speech": true, "/v1/embeddings/none/none": true,
		"/v1/accounts/acme/none": false, "/v1/accounts/acme/datasets/none/none/none": false, "/v1/events/none": false,
		"/none": false, "/v2/completions": false,
	} {
		a := s.call("POST", path, "user", "{}")
		require.Equal(t, http.StatusNotFound, a.status, path)
		require.Equal(t, inference, isInference(a), "%s: %s", path, a.body)
	}
}

// TestShortNames checks which resource a name without slashes refers to, and that the listing, the
// entry of a model and completions agree.
func TestShortNames(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.do(register("accounts/acme/models/own", false), register("accounts/acme/models/idle", false),
		register("accounts/acme/models/twin", false))
	serving := s.deploy("serving", 1, func(spec *domain.DeploymentSpec) { spec.BaseModel = "accounts/acme/models/own" })
	twin := s.deploy("twin", 1)
	send := func(key, path, model string) response {
		return s.call("POST", path, key, `{"model": "`+model+`", "prompt": "a b", "max_tokens": 2}`)
	}
	for _, path := range []string{"/v1/completions", "/inference/v1/completions"} {
		for model, deployment := range map[string]domain.Name{
			"own": serving, "acme/own": serving, "accounts/acme/models/own": serving, "own#serving": serving,
			"own#acme/serving": serving, "acme/own#serving": serving, "serving": serving,
			"twin": twin, // the model cannot respond, the deployment can
		} {
			a := send("user", path, model)
			require.Equal(t, 200, a.status, "%s: %s", model, a.body)
			require.Equal(t, string(deployment), a.header.Get("anneal-deployment"), model)
			require.Equal(t, model, a.json(t)["model"])
		}
		require.Equal(t, "MODEL_NOT_DEPLOYED", codeOf(t, send("user", path, "idle")))
		require.Contains(t, string(send("user", path, "idle").body), "accounts/acme/models/idle has no live deployment")
		require.Equal(t, "MODEL_NOT_FOUND", codeOf(t, send("user", path, "none")))
		require.Equal(t, "MODEL_NOT_FOUND", codeOf(t, send("other", path, "own")), "a short name is of the key's account")
		require.Equal(t, "MODEL_NOT_FOUND", codeOf(t, send("user", path, "anneal-base")))
		require.Equal(t, "MODEL_NOT_FOUND", codeOf(t, send("user", path, "GPT 4")))
	}

	for _, prefix := range []string{"/v1", "/inference/v1"} {
		listed := map[string]map[string]any{}
		for _, one := range s.call("GET", prefix+"/models", "user", "").json(t)["data"].([]any) {
			m := one.(map[string]any)
			require.NotContains(t, listed, m["id"], "each name once")
			listed[m["id"].(string)] = m
		}
		for _, id := range []string{"own", "accounts/acme/models/own", "idle", "accounts/acme/models/idle", "twin"} {
			require.Contains(t, listed, id)
		}
		require.NotContains(t, listed, "anneal-base", "another account's model has only its long name")
		for id, m := range listed {
			deployed := send("user", "/v1/completions", id).status == 200
			require.Equal(t, deployed, m["deployed"], id)
			for _, written := range []string{id, url.PathEscape(id)} {
				a := s.call("GET", prefix+"/models/"+written, "user", "")
				require.Equal(t, 200, a.status, "%s: %s", written, a.body)
				require.Equal(t, m, a.json(t), written)
			}
		}
		for name, status := range map[string]int{"serving": 200, "accounts/acme/deployments/serving": 200,
			"own%23serving": 200, "none": 404, "accounts/acme/models/none": 404, "accounts/other/models/private": 403,
			"ft:gpt:x": 404, "a/b/c/d/e": 404} {
			a := s.call("GET", prefix+"/models/"+name, "user", "")
			require.Equal(t, status, a.status, "%s: %s", name, a.body)
			if status != 200 {
				codeOf(t, a)
				continue
			}
			unescaped, err := url.PathUnescape(name)
			require.NoError(t, err)
			require.Equal(t, unescaped, a.json(t)["id"])
			require.Equal(t, true, a.json(t)["deployed"])
		}
	}
}

// TestShortNamesOfAddonsAndAliases checks that an alias is a short name, that a resource of the
// account takes precedence over an alias, and which short names a direct route accepts.
func TestShortNamesOfAddonsAndAliases(t *testing.T) {
	s := newDirectHarness(t)
	name, host := s.deployDirect("one", longKey)
	require.Equal(t, 200, s.call("PATCH", "/v1/"+string(name), "operator", `{"aliases": ["smart"]}`).status)
	send := func(key, model string) response {
		return s.call("POST", "/v1/completions", key, `{"model": "`+model+`", "prompt": "a b", "max_tokens": 2}`)
	}
	require.Equal(t, string(name), send("other", "smart").header.Get("anneal-deployment"))
	own := s.deploy("smart", 1)
	require.Equal(t, string(own), send("user", "smart").header.Get("anneal-deployment"), "the account's deployment first")
	require.Equal(t, string(name), send("other", "smart").header.Get("anneal-deployment"))

	for model, status := range map[string]int{"one": 200, "smart": 200, "two": 404} {
		a := s.via(host, "POST", "/v1/completions", longKey, `{"model": "`+model+`", "prompt": "a"}`)
		require.Equal(t, status, a.status, "%s: %s", model, a.body)
	}
	entry := s.via(host, "GET", "/v1/models/one", longKey, "")
	require.Equal(t, 200, entry.status, "%s", entry.body)
	require.Equal(t, "one", entry.json(t)["id"])
}
