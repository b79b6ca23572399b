package api

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/rest"
	"anneal/domain"
	"anneal/eventlog/natsserver"
)

func TestKeyFormat(t *testing.T) {
	name := domain.Name("accounts/acme-2/apiKeys/k-1")
	key, err := request.MintKey(pepper, name)
	require.NoError(t, err)
	require.Regexp(t, `^ank_acme-2_k-1_[0-9a-f]{72}$`, key.Text)
	require.Len(t, key.Hash, 32)
	require.Equal(t, "ank_acme-2_k-1_", key.Prefix[:15])
	require.Len(t, key.Prefix, 19)
	read, ok := request.KeyName(key.Text)
	require.True(t, ok)
	require.Equal(t, name, read)
	for i := range key.Text {
		other := "0"
		if key.Text[i] == '0' {
			other = "1"
		}
		typo := key.Text[:i] + other + key.Text[i+1:]
		if read, ok := request.KeyName(typo); ok {
			t.Fatalf("%q is accepted as a key of %s", typo, read)
		}
	}
	again, err := request.MintKey(pepper, name)
	require.NoError(t, err)
	require.NotEqual(t, key.Text, again.Text)
}

func TestUnknownKeys(t *testing.T) {
	s := newHarness(t, request.Limits{})
	soon := s.clock.tick().Add(time.Hour)
	s.mint("brief", "acme", domain.RoleAdmin, &soon)
	forged, err := request.MintKey([]byte("another pepper"), "accounts/acme/apiKeys/admin")
	require.NoError(t, err)
	stranger, err := request.MintKey(pepper, "accounts/acme/apiKeys/nobody")
	require.NoError(t, err)
	for _, c := range []struct{ name, header, reason string }{
		{"nothing", "", "API_KEY_MISSING"},
		{"blank", "   ", "API_KEY_MISSING"},
		{"no scheme", s.keys["admin"], "API_KEY_MALFORMED"},
		{"other scheme", "Basic " + s.keys["admin"], "API_KEY_MALFORMED"},
		{"no key", "Bearer", "API_KEY_MALFORMED"},
		{"cut", "Bearer " + s.keys["admin"][:40], "API_KEY_MALFORMED"},
		{"long", "Bearer " + strings.Repeat("a", 5000), "API_KEY_MALFORMED"},
		{"forged", "Bearer " + forged.Text, "API_KEY_UNKNOWN"},
		{"never made", "Bearer " + stranger.Text, "API_KEY_UNKNOWN"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := s.request(http.MethodGet, "/v1/accounts/acme", "", nil)
			r.Header.Set("Authorization", c.header)
			a := s.send(r)
			require.Equal(t, http.StatusUnauthorized, a.status)
			require.Equal(t, c.reason, reasonOf(t, a))
			require.Equal(t, `Bearer realm="anneal"`, a.header.Get("WWW-Authenticate"))
		})
	}
	mistyped := []byte(s.keys["admin"])
	mistyped[len(mistyped)-1] ^= 1
	r := s.request(http.MethodGet, "/v1/accounts/acme", "", nil)
	r.Header.Set("Authorization", "Bearer "+string(mistyped))
	a := s.send(r)
	require.Equal(t, "API_KEY_MALFORMED", reasonOf(t, a))
	require.Contains(t, string(a.body), "the API key is mistyped or cut off")
	r = s.request(http.MethodGet, "/v1/accounts/acme", "", nil)
	r.Header.Set("Authorization", "bEaReR "+s.keys["brief"])
	require.Equal(t, http.StatusOK, s.send(r).status)
	s.clock.add(2 * time.Hour)
	a = s.send(r)
	require.Equal(t, http.StatusUnauthorized, a.status)
	require.Equal(t, "API_KEY_EXPIRED", reasonOf(t, a))
}

func TestBareKeyIsForAudioOnly(t *testing.T) {
	r, err := http.NewRequest(http.MethodPost, "/v1/audio/transcriptions", nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "ank_bare")
	_, err = request.Credential(r, false)
	require.Equal(t, domain.Unauthenticated, domain.CodeOf(err))
	key, err := request.Credential(r, true)
	require.NoError(t, err)
	require.Equal(t, "ank_bare", key)
	r.Header.Set("Authorization", "Bearer ank_bearer")
	key, err = request.Credential(r, true)
	require.NoError(t, err)
	require.Equal(t, "ank_bearer", key)
}

func reasonOf(t *testing.T, a response) string {
	t.Helper()
	details, ok := a.json(t)["details"].([]any)
	require.True(t, ok, "%s", a.body)
	info, ok := details[0].(map[string]any)
	require.True(t, ok)
	return info["reason"].(string)
}

// keptUses is a request.LastUsedStore in memory.
type keptUses struct {
	mu     sync.Mutex
	kept   []string
	forgot []domain.Name
}

func (u *keptUses) Keep(_ context.Context, name domain.Name, at time.Time) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.kept = append(u.kept, name.ID()+" "+at.Format(time.TimeOnly))
	return nil
}

func (u *keptUses) Forget(_ context.Context, name domain.Name) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.forgot = append(u.forgot, name)
	return nil
}

func TestKeysShowWhenTheyWereLastUsed(t *testing.T) {
	s, noted := newHarness(t, request.Limits{}), &keptUses{}
	server := s.another(func(o *Options) { o.LastUsed = noted })
	lastUsed := func(id string) any {
		return server.call("GET", acme+"/apiKeys/"+id, "admin", "").json(t)["lastUsedTime"]
	}
	require.Nil(t, lastUsed("user"))
	first := s.clock.tick().Add(time.Second)
	require.Equal(t, 200, server.call("GET", acme+"/datasets", "user", "").status)
	require.Equal(t, first.Format(time.RFC3339), lastUsed("user"))
	require.Equal(t, 403, server.call("GET", acme+"/secrets", "user", "").status)
	require.Equal(t, first.Format(time.RFC3339), lastUsed("user"), "at a resolution of one minute")
	s.clock.add(time.Minute)
	second := s.clock.tick().Add(time.Second)
	require.Equal(t, 403, server.call("GET", acme+"/secrets", "user", "").status, "a rejected request is a use as well")
	require.Equal(t, second.Format(time.RFC3339), lastUsed("user"))
	require.Equal(t, 200, server.call("GET", "/inference/v1/models", "inference", "").status)
	require.NotNil(t, lastUsed("inference"))
	listed := server.call("GET", acme+"/apiKeys?filter=lastUsedTime>%222031-01-01T00:00:00Z%22", "admin", "")
	require.Equal(t, 0.0, listed.json(t)["totalSize"], "%s", listed.body)

	require.Equal(t, 200, server.call("DELETE", acme+"/apiKeys/user", "admin", "").status)
	server.server.Drain()
	require.Equal(t, []domain.Name{"accounts/acme/apiKeys/user"}, noted.forgot)
	var ofUser []string
	for _, kept := range noted.kept {
		if strings.HasPrefix(kept, "user ") {
			ofUser = append(ofUser, kept)
		}
	}
	require.ElementsMatch(t, []string{"user " + first.Format(time.TimeOnly), "user " + second.Format(time.TimeOnly)},
		ofUser)
	require.Equal(t, 401, server.call("GET", acme+"/datasets", "user", "").status, "revoked immediately")
	require.NoError(t, s.world.WaitFor(t.Context(), s.events()))
	require.Equal(t, 401, s.call("GET", acme+"/datasets", "user", "").status, "on every server")
}

// TestPermissions checks which keys each operation authorizes, and that authorization precedes
// validation: all bodies are invalid, and the resources do not exist.
func TestPermissions(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.mint("clerk", domain.System, domain.RoleUser, nil)
	const wrong = `{"nonsense": `
	for _, c := range []struct {
		method, path string
		may          string // aliases of the keys that are authorized
	}{
		{"GET", "/v1/accounts/acme", "admin user operator"},
		{"GET", "/v1/accounts/acme/datasets", "admin user operator"},
		{"POST", "/v1/accounts/acme/datasets", "admin user operator"},
		{"POST", "/v1/accounts/acme/datasets/none:upload", "admin user operator"},
		{"GET", "/v1/accounts/acme/models", "admin user inference operator"},
		{"GET", "/v1/accounts/acme/models/none", "admin user inference operator"},
		{"PATCH", "/v1/accounts/acme/models/none", "admin user operator"},
		{"GET", "/v1/accounts/acme/secrets", "admin operator"},
		{"POST", "/v1/accounts/acme/secrets", "admin operator"},
		{"DELETE", "/v1/accounts/acme/secrets/none", "admin operator"},
		{"GET", "/v1/accounts/acme/secrets/none/events", "admin operator"},
		{"POST", "/v1/accounts/acme/apiKeys", "admin operator"},
		{"DELETE", "/v1/accounts/acme/apiKeys/none", "admin operator"},
		{"POST", "/v1/accounts/acme/supervisedFineTuningJobs", "admin user operator"},
		{"POST", "/v1/accounts/acme/supervisedFineTuningJobs/none:cancel", "admin user operator"},
		{"PATCH", "/v1/accounts/acme/deployments/none", "admin user operator"},
		{"PATCH", "/v1/accounts/acme/deployments/none:scale", "admin user operator"},
		{"GET", "/v1/accounts/acme/events", "admin user operator"},
		{"POST", "/v1/accounts/acme:suspend", "operator"},
		{"PATCH", "/v1/accounts/acme", "operator"},
		{"POST", "/v1/accounts", "operator"},
		{"GET", "/v1/events", "operator"},
		{"GET", "/v1/accounts/system/nodes", "operator clerk"},
		{"DELETE", "/v1/accounts/system/nodes/none", "operator"},
		{"POST", "/inference/v1/completions", "admin user inference operator other default clerk"},
		{"GET", "/inference/v1/models", "admin user inference operator other default clerk"},
		{"GET", "/v1/system/digest", "operator default"},
	} {
		t.Run(c.method+" "+c.path, func(t *testing.T) {
			for _, alias := range []string{"admin", "user", "inference", "other", "operator", "default", "clerk"} {
				body := wrong
				if c.method == "GET" {
					body = ""
				}
				a := s.call(c.method, c.path, alias, body)
				if strings.Contains(" "+c.may+" ", " "+alias+" ") {
					require.NotContains(t, []int{401, 403}, a.status, "%s: %s", alias, a.body)
				} else {
					require.Equal(t, http.StatusForbidden, a.status, "%s: %s", alias, a.body)
				}
			}
			require.Equal(t, http.StatusUnauthorized, s.call(c.method, c.path, "", wrong).status)
		})
	}
}

// TestReaderKeys checks that ReaderOf returns the NATS reader of a valid key with the role reader,
// and rejects keys that are expired, deleted or mistyped, and keys with other roles.
func TestReaderKeys(t *testing.T) {
	s := newHarness(t, request.Limits{})
	soon := s.clock.tick().Add(time.Hour)
	s.mint("brief", "acme", domain.RoleReader, &soon)
	r, ok := rest.ReaderOf(s.world, pepper, s.key("reader"), s.clock.tick())
	require.True(t, ok)
	require.Equal(t, natsserver.Reader{Account: "acme", ID: "reader"}, r)
	require.Equal(t, "acme.reader", r.User())
	r, ok = rest.ReaderOf(s.world, pepper, s.keys["brief"], s.clock.tick())
	require.True(t, ok)
	require.Equal(t, soon, *r.Expires)
	_, ok = rest.ReaderOf(s.world, pepper, s.keys["brief"], soon)
	require.False(t, ok, "it has expired")
	for _, alias := range []string{"admin", "user", "inference", "operator"} {
		_, ok = rest.ReaderOf(s.world, pepper, s.keys[alias], s.clock.tick())
		require.False(t, ok, alias)
	}
	for _, text := range []string{"", "ank_acme_reader_", s.key("reader") + "0",
		strings.Replace(s.key("reader"), "acme", "other", 1)} {
		_, ok = rest.ReaderOf(s.world, pepper, text, s.clock.tick())
		require.False(t, ok, text)
	}
	require.Equal(t, 200, s.call("DELETE", "/v1/accounts/acme/apiKeys/reader", "admin", "").status)
	_, ok = rest.ReaderOf(s.world, pepper, s.key("reader"), s.clock.tick())
	require.False(t, ok, "it is revoked")
}

// TestReaderKeysWithoutNATS checks that creating a key with the role reader on a server without a
// ReaderURL returns a warning that refers to the events over HTTP, and no NATS URL.
func TestReaderKeysWithoutNATS(t *testing.T) {
	s := newHarness(t, request.Limits{}).another(func(o *Options) { o.ReaderURL = "" })
	made := s.call("POST", "/v1/accounts/acme/apiKeys", "admin", `{"apiKey": {"role": "reader"}, "apiKeyId": "audit"}`)
	require.Equal(t, 200, made.status)
	require.Contains(t, made.header.Get("Anneal-Warning"), "Accept: text/event-stream")
	require.NotContains(t, string(made.body), "nats")
}
