package api

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/internal/testutil"
)

const longKey, otherKey = "a-key-that-is-long-enough", "another-key-that-is-long-enough"

// newDirectHarness returns a harness whose server has a domain for direct routes.
func newDirectHarness(t *testing.T) *harness {
	return newHarness(t, request.Limits{}).another(func(o *Options) { o.Direct = "direct.test" })
}

// deployDirect creates a deployment with a direct route and a ready replica, and returns its name
// and host name.
func (s *harness) deployDirect(id string, keys ...string) (name domain.Name, host string) {
	s.Helper()
	made := s.call("POST", acme+"/deployments?deploymentId="+id, "user",
		`{"baseModel": "`+publicBase+`", "minReplicaCount": 1, "directRouteType": "INTERNET", "directRouteApiKeys": `+
			`["`+strings.Join(keys, `", "`)+`"]}`)
	require.Equal(s, 200, made.status, "%s", made.body)
	require.Empty(s, made.header.Values("anneal-warning"))
	name = domain.NewName("acme", domain.Deployments.Collection, id)
	s.serve(name)
	return name, made.json(s)["directRouteHandle"].(string)
}

// via sends a request with the host name host to the address of the server.
func (s *harness) via(host, method, path, key, body string) response {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), method, "http://"+host+path, strings.NewReader(body))
	require.NoError(s, err)
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	address := strings.TrimPrefix(s.url, "http://")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		}}}
	received, err := client.Do(r)
	require.NoError(s, err)
	defer received.Body.Close()
	data := testutil.ReadAll(s, received.Body)
	return response{received.StatusCode, received.Header, data}
}

func codeOf(t *testing.T, a response) string {
	t.Helper()
	body, ok := a.json(t)["error"].(map[string]any)
	require.True(t, ok, "the format of inference errors: %s", a.body)
	require.NotEmpty(t, body["message"])
	return body["code"].(string)
}

func TestDirectRoute(t *testing.T) {
	s := newDirectHarness(t)
	_, one := s.deployDirect("one", longKey)
	_, two := s.deployDirect("two", otherKey)
	require.Regexp(t, `^[a-z2-7]{32}\.direct\.test$`, one)
	require.NotEqual(t, one, two)
	const prompt, chat = `{"prompt": "a b"}`, `{"messages": [{"role": "user", "content": "hi"}]}`
	for _, line := range []struct {
		name, host, method, path, key, body string
		status                              int
		code                                string
	}{
		{"its key", one, "POST", "/v1/completions", longKey, prompt, 200, ""},
		{"the longer path", one, "POST", "/inference/v1/completions", longKey, prompt, 200, ""},
		{"a conversation", one, "POST", "/v1/chat/completions", longKey, chat, 200, ""},
		{"a port and capitals", strings.ToUpper(one) + ":8080", "POST", "/v1/completions", longKey, prompt, 200, ""},
		{"itself by name", one, "POST", "/v1/completions", longKey,
			`{"model": "accounts/acme/deployments/one", "prompt": "a"}`, 200, ""},
		{"its model by name", one, "POST", "/v1/completions", longKey, `{"model": "` + publicBase + `", "prompt": "a"}`, 200,
			""},
		{"its model pinned to it", one, "POST", "/v1/completions", longKey,
			`{"model": "default/anneal-base#acme/one", "prompt": "a"}`, 200, ""},
		{"another deployment by name", one, "POST", "/v1/completions", longKey,
			`{"model": "accounts/acme/deployments/two", "prompt": "a"}`, 404, "MODEL_NOT_DEPLOYED"},
		{"its model pinned to another", one, "POST", "/v1/completions", longKey,
			`{"model": "default/anneal-base#acme/two", "prompt": "a"}`, 404, "MODEL_NOT_DEPLOYED"},
		{"another model", one, "POST", "/v1/completions", longKey,
			`{"model": "accounts/other/models/private", "prompt": "a"}`, 404, "MODEL_NOT_DEPLOYED"},
		{"a key of the account", one, "POST", "/v1/completions", s.keys["inference"], prompt, 200, ""},
		{"a key of another account", one, "POST", "/v1/completions", s.keys["other"], prompt, 403, "OTHER_ACCOUNT"},
		{"the operator's key", one, "POST", "/v1/completions", s.keys["operator"], prompt, 200, ""},
		{"no key", one, "POST", "/v1/completions", "", prompt, 401, "API_KEY_MISSING"},
		{"a wrong key", one, "POST", "/v1/completions", longKey + "x", prompt, 401, "API_KEY_UNKNOWN"},
		{"another deployment's key", one, "POST", "/v1/completions", otherKey, prompt, 401, "API_KEY_UNKNOWN"},
		{"an unknown label", strings.Repeat("a", 32) + ".direct.test", "POST", "/v1/completions", longKey, prompt, 404,
			"DIRECT_ROUTE_NOT_FOUND"},
		{"no such path", one, "GET", "/v1/accounts/acme/deployments", s.keys["user"], "", 404, "NO_SUCH_PATH"},
		{"another method", one, "GET", "/v1/completions", longKey, "", 405, "METHOD_NOT_ALLOWED"},
		{"the server's own host", "direct.test", "POST", "/inference/v1/completions", longKey, prompt, 401,
			"API_KEY_MALFORMED"},
	} {
		t.Run(line.name, func(t *testing.T) {
			a := s.via(line.host, line.method, line.path, line.key, line.body)
			require.Equal(t, line.status, a.status, "%s", a.body)
			if line.code != "" {
				require.Equal(t, line.code, codeOf(t, a))
				return
			}
			require.Equal(t, "accounts/acme/deployments/one", a.header.Get("anneal-deployment"))
		})
	}
	models := s.via(two, "GET", "/v1/models", otherKey, "").json(t)["data"].([]any)
	require.Len(t, models, 1)
	require.Equal(t, publicBase, models[0].(map[string]any)["id"])
}

// TestDirectRouteHandle checks that get and list return the directRouteHandle of a deployment, and
// that requests to it are accepted until the route is removed or the deployment is deleted.
func TestDirectRouteHandle(t *testing.T) {
	s := newDirectHarness(t)
	name, host := s.deployDirect("one", longKey)
	require.Equal(t, host, s.call("GET", acme+"/deployments/one", "user", "").json(t)["directRouteHandle"])
	listed := s.call("GET", acme+`/deployments?filter=directRouteHandle=%22`+host+`%22`, "user", "")
	require.Equal(t, 1.0, listed.json(t)["totalSize"], "%s", listed.body)
	another := s.another(func(o *Options) { o.Direct = "direct.test" })
	require.Equal(t, 200, another.via(host, "POST", "/v1/completions", longKey, `{"prompt": "a"}`).status,
		"another server accepts it as well")
	without := s.another(func(*Options) {})
	require.NotContains(t, without.call("GET", acme+"/deployments/one", "user", "").json(t), "directRouteHandle")

	cloud := s.call("POST", acme+"/deployments?deploymentId=cloud", "user",
		`{"baseModel": "`+publicBase+`", "directRouteType": "CLOUD_B_PRIVATELINK"}`)
	require.NotContains(t, cloud.json(t), "directRouteHandle")
	require.Contains(t, cloud.header.Get("anneal-warning"),
		"unless it is INTERNET: the server creates no service attachments in a cloud")
	easy := s.call("PATCH", acme+"/deployments/one", "user", `{"directRouteApiKeys": ["short"]}`)
	require.Contains(t, easy.header.Get("anneal-warning"), "easily guessed")

	require.Equal(t, 200, s.via(host, "POST", "/v1/completions", "short", `{"prompt": "a"}`).status)
	require.Equal(t, 200, s.call("PATCH", acme+"/deployments/one", "user",
		`{"directRouteType": "DIRECT_ROUTE_TYPE_UNSPECIFIED"}`).status)
	require.Equal(t, "DIRECT_ROUTE_NOT_FOUND",
		codeOf(t, s.via(host, "POST", "/v1/completions", "short", `{"prompt": "a"}`)))
	require.Equal(t, 200, s.call("PATCH", acme+"/deployments/one", "user", `{"directRouteType": "INTERNET"}`).status)
	require.Equal(t, 200, s.via(host, "POST", "/v1/completions", "short", `{"prompt": "a"}`).status,
		"an update keeps the keys when it does not name them")

	s.deployment(name, domain.DeleteDeployment{IgnoreChecks: true, Hard: true})
	require.NoError(t, s.world.WaitFor(t.Context(), s.events()))
	gone := s.via(host, "POST", "/v1/completions", "short", `{"prompt": "a"}`)
	require.Equal(t, 404, gone.status)
	require.Equal(t, "DIRECT_ROUTE_NOT_FOUND", codeOf(t, gone))
	s.deployment(name, domain.RemoveReplica{ID: "r1", Reason: "deleted"})
	s.deployment(name, domain.FinishDeletion{})
	_, again := s.deployDirect("one", longKey)
	require.NotEqual(t, host, again, "a new deployment with the same ID has another handle")
}

// TestDirectRouteKeys checks that direct-route keys are rejected immediately after an update has
// replaced them, and that no key is stored in plain text.
func TestDirectRouteKeys(t *testing.T) {
	s := newDirectHarness(t)
	_, host := s.deployDirect("one", longKey, "the-second-of-its-keys")
	statusOf := func(key string) int { return s.via(host, "POST", "/v1/completions", key, `{"prompt": "a"}`).status }
	require.Equal(t, []int{200, 200}, []int{statusOf(longKey), statusOf("the-second-of-its-keys")})
	changed := s.call("PATCH", acme+"/deployments/one", "user", `{"directRouteApiKeys": ["`+otherKey+`"]}`)
	require.Equal(t, []any{otherKey}, changed.json(t)["directRouteApiKeys"], "%s", changed.body)
	require.Equal(t, []int{401, 401, 200},
		[]int{statusOf(longKey), statusOf("the-second-of-its-keys"), statusOf(otherKey)})
	require.Equal(t, 200, s.call("PATCH", acme+"/deployments/one?updateMask=directRouteApiKeys", "user", `{}`).status)
	require.Equal(t, 401, statusOf(otherKey))
	for _, path := range []string{"/deployments/one", "/deployments/one/events"} {
		require.NotContains(t, string(s.call("GET", acme+path, "admin", "").body), "directKeys")
	}
	for e, err := range s.log.Read(t.Context(), ">", 0) {
		require.NoError(t, err)
		require.NotContains(t, string(e.Data), longKey)
		require.NotContains(t, string(e.Data), otherKey)
	}
	require.NotContains(t, s.logged.String(), longKey)
}

// TestDirectRouteOfLimitedAccount checks that quotas and suspension of an account apply to its
// direct routes.
func TestDirectRouteOfLimitedAccount(t *testing.T) {
	s := newDirectHarness(t)
	_, host := s.deployDirect("one", longKey)
	require.Equal(t, 200, s.call("PATCH", acme+"/quotas/"+domain.QuotaRequestsPerMinute, "operator",
		`{"maxValue": 1}`).status)
	require.Equal(t, 200, s.via(host, "POST", "/v1/completions", longKey, `{"prompt": "a"}`).status)
	require.Equal(t, 429, s.via(host, "POST", "/v1/completions", longKey, `{"prompt": "a"}`).status)
	s.clock.add(5 * time.Minute)
	require.Equal(t, 200, s.call("POST", acme+":suspend", "operator", `{"suspendState": "CREDIT_DEPLETED"}`).status)
	refused := s.via(host, "POST", "/v1/completions", longKey, `{"prompt": "a"}`)
	require.Equal(t, http.StatusPreconditionFailed, refused.status, "%s", refused.body)
	require.Equal(t, "PRECONDITION_FAILED", codeOf(t, refused))
}

// TestSealedKeysOfEarlierVersion checks that sealed direct-route keys, which the log of an earlier
// version contains, are rejected, and that an update that sets other keys erases the sealed keys.
func TestSealedKeysOfEarlierVersion(t *testing.T) {
	s := newDirectHarness(t)
	name := domain.Name("accounts/acme/deployments/old")
	sealed, err := s.vault.Seal(t.Context(), name, []byte(longKey))
	require.NoError(t, err)
	s.deployment(name, domain.CreateDeployment{DeploymentSpec: domain.DeploymentSpec{BaseModel: publicBase,
		MinReplicaCount: 1, DirectRouteType: domain.DirectInternet,
		DirectRouteAPIKeys: []domain.Sealed{sealed}}})
	s.serve(name)
	host := s.call("GET", acme+"/deployments/old", "user", "").json(t)["directRouteHandle"].(string)
	statusOf := func(key string) int { return s.via(host, "POST", "/v1/completions", key, `{"prompt": "a"}`).status }
	require.Equal(t, 401, statusOf(longKey))
	require.Equal(t, 200, s.call("PATCH", acme+"/deployments/old", "user", `{"displayName": "x"}`).status)
	s.reconcile()
	_, err = s.vault.Open(t.Context(), name, sealed)
	require.NoError(t, err, "an update of something else keeps them")
	require.Equal(t, 200, s.call("PATCH", acme+"/deployments/old", "user",
		`{"directRouteApiKeys": ["`+longKey+`"]}`).status)
	require.Equal(t, 200, statusOf(longKey))
	s.reconcile()
	_, err = s.vault.Open(t.Context(), name, sealed)
	require.Equal(t, domain.NotFound, domain.CodeOf(err))
	require.Empty(t, mustRow(s, name).DirectRouteAPIKeys)
}
