package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/engines"
	"anneal/eventlog"
	"anneal/eventlog/idempotency"
)

// keyed sends a request with an idempotency key.
func (s *harness) keyed(key, method, path, alias, body string) response {
	s.Helper()
	r := s.request(method, path, alias, strings.NewReader(body))
	r.Header.Set("Idempotency-Key", key)
	return s.send(r)
}

// sameAs requires that the second response is a replay of the first response.
func sameAs(t *testing.T, first, second response) {
	t.Helper()
	require.Equal(t, first.status, second.status, "%s", second.body)
	require.Equal(t, string(first.body), string(second.body))
	require.Equal(t, first.header.Get("Content-Type"), second.header.Get("Content-Type"))
	require.Empty(t, first.header.Get("Idempotent-Replayed"))
	require.Equal(t, "true", second.header.Get("Idempotent-Replayed"))
}

func (s *harness) events() uint64 {
	last := s.last()
	return last.Position
}

const acme = "/v1/accounts/acme"

// changes are requests that create resources with generated IDs, and one request for each other
// kind of change.
var changes = []struct{ name, method, path, alias, body string }{
	{"a dataset", "POST", acme + "/datasets", "user", `{"dataset": {"displayName": "rows"}}`},
	{"a key", "POST", acme + "/apiKeys", "admin", `{"apiKey": {"displayName": "k", "role": "user"}}`},
	{"a secret", "POST", acme + "/secrets", "admin", `{"name": "s1", "keyName": "TOKEN", "value": "v"}`},
	{"a deployment", "POST", acme + "/deployments", "user",
		`{"baseModel": "accounts/default/models/anneal-base", "directRouteApiKeys": ["x"]}`},
	{"a job", "POST", acme + "/supervisedFineTuningJobs", "user", `{"dataset": "accounts/acme/datasets/d"}`},
	{"a shape", "POST", acme + "/deploymentShapes", "user",
		`{"deploymentShape": {"baseModel": "accounts/default/models/anneal-base"}}`},
	{"an account", "POST", "/v1/accounts", "operator", `{"account": {"displayName": "new"}}`},
	{"a changed dataset", "PATCH", acme + "/datasets/d", "user",
		`{"name": "accounts/acme/datasets/d", "displayName": "other"}`},
	{"a changed secret", "PATCH", acme + "/secrets/old", "admin", `{"value": "w"}`},
	{"a cancelled job", "POST", acme + "/supervisedFineTuningJobs/j:cancel", "user", ``},
	{"a scaled deployment", "PATCH", acme + "/deployments/d1:scale", "user", `{"replicaCount": 2}`},
	{"a suspended account", "POST", "/v1/accounts/other:suspend", "operator", `{"suspendState": "CREDIT_DEPLETED"}`},
}

// createTargets creates the resources to which the requests in changes refer.
func (s *harness) createTargets() {
	s.Helper()
	for path, body := range map[string]string{
		"/datasets":    `{"dataset": {}, "datasetId": "d"}`,
		"/secrets":     `{"name": "old", "keyName": "TOKEN", "value": "v"}`,
		"/deployments": `{"baseModel": "accounts/default/models/anneal-base", "minReplicaCount": 1, "maxReplicaCount": 3}`,
	} {
		if path == "/deployments" {
			path += "?deploymentId=d1"
		}
		a := s.call("POST", acme+path, "admin", body)
		require.Equal(s, 200, a.status, "%s", a.body)
	}
	a := s.call("POST", acme+"/supervisedFineTuningJobs?supervisedFineTuningJobId=j", "admin",
		`{"dataset": "accounts/acme/datasets/d"}`)
	require.Equal(s, 200, a.status, "%s", a.body)
}

func TestRepeatedChangeHappensOnce(t *testing.T) {
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			s := newHarness(t, request.Limits{})
			s.createTargets()
			first := s.keyed("k", c.method, c.path, c.alias, c.body)
			require.Equal(t, 200, first.status, "%s", first.body)
			after := s.events()
			sameAs(t, first, s.keyed("k", c.method, c.path, c.alias, c.body))
			sameAs(t, first, s.another(func(*Options) {}).keyed("k", c.method, c.path, c.alias, c.body))
			require.Equal(t, after, s.events())
		})
	}
}

// lostResponses stores no responses, like a server that crashes before it stores a response.
type lostResponses struct{ request.IdempotencyStore }

func (lostResponses) Store(context.Context, idempotency.Claim, []byte) error {
	return errors.New("the process is dead")
}

func (lostResponses) Release(context.Context, idempotency.Claim) error {
	return errors.New("the process is dead")
}

func TestServerCrashesBeforeResponse(t *testing.T) {
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			s := newHarness(t, request.Limits{RepeatWait: time.Millisecond})
			s.createTargets()
			failing := s.another(func(o *Options) { o.Idempotency = lostResponses{o.Idempotency} })
			first := failing.keyed("k", c.method, c.path, c.alias, c.body)
			require.Equal(t, 200, first.status, "%s", first.body)
			after := s.events()
			require.NoError(t, s.world.WaitFor(t.Context(), after))

			early := s.keyed("k", c.method, c.path, c.alias, c.body)
			require.Equal(t, http.StatusConflict, early.status, "the key is still claimed: %s", early.body)
			require.Equal(t, "IDEMPOTENCY_KEY_BUSY", reasonOf(t, early))
			require.NotEmpty(t, early.header.Get("Retry-After"))
			s.clock.add(request.ClaimTime)
			second := s.keyed("k", c.method, c.path, c.alias, c.body)
			require.Equal(t, 200, second.status, "%s", second.body)
			require.Equal(t, string(first.body), string(second.body), "like the first request")
			require.Empty(t, second.header.Get("Idempotent-Replayed"))
			require.Equal(t, after, s.events(), "executed once")
			sameAs(t, second, s.keyed("k", c.method, c.path, c.alias, c.body))
		})
	}
}

// A lostAckLog appends events and then returns an error, as if the acknowledgement were lost.
type lostAckLog struct{ eventlog.Log }

func (l lostAckLog) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	if _, err := l.Log.Append(ctx, w); err != nil {
		return 0, err
	}
	return 0, errors.New("the connection broke")
}

func TestFailureReleasesKey(t *testing.T) {
	const path, body = acme + "/datasets", `{"dataset": {"displayName": "rows"}}`
	s := newHarness(t, request.Limits{})
	for name, log := range map[string]eventlog.Log{"recorded": lostAckLog{s.log}, "not recorded": brokenLog{s.log}} {
		t.Run(name, func(t *testing.T) {
			before := s.events()
			failing := s.another(func(o *Options) { o.Log = log })
			first := failing.keyed(name, "POST", path, "user", body)
			require.Equal(t, http.StatusServiceUnavailable, first.status, "%s", first.body)
			require.NoError(t, s.world.WaitFor(t.Context(), s.events()))
			second := s.keyed(name, "POST", path, "user", body)
			require.Equal(t, 200, second.status, "%s", second.body)
			require.Equal(t, before+1, s.events(), "one dataset, whatever happened to the first attempt")
			sameAs(t, second, s.keyed(name, "POST", path, "user", body))
			other := s.keyed(name, "POST", path, "user", `{"dataset": {}}`)
			require.Equal(t, http.StatusConflict, other.status, "a key belongs to its first request")
		})
	}
}

func TestKeyScope(t *testing.T) {
	s := newHarness(t, request.Limits{})
	const path, body = acme + "/datasets", `{"dataset": {"displayName": "rows"}}`
	first := s.keyed("k", "POST", path, "user", body)
	require.Equal(t, 200, first.status, "%s", first.body)
	for _, c := range []struct{ name, method, path, alias, body string }{
		{"another body", "POST", path, "user", `{"dataset": {}}`},
		{"another path", "POST", acme + "/evaluators", "user", body},
		{"another query", "POST", path + "?x=1", "user", body},
		{"another method", "PATCH", acme + "/datasets/none", "user", body},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := s.keyed("k", c.method, c.path, c.alias, c.body)
			require.Equal(t, http.StatusConflict, a.status, "%s", a.body)
			require.Equal(t, "IDEMPOTENCY_KEY_REUSED", reasonOf(t, a))
		})
	}
	t.Run("another key of the account", func(t *testing.T) { sameAs(t, first, s.keyed("k", "POST", path, "admin", body)) })
	t.Run("another account", func(t *testing.T) {
		a := s.keyed("k", "POST", "/v1/accounts/other/datasets", "other", body)
		require.Equal(t, 200, a.status, "%s", a.body)
		require.Empty(t, a.header.Get("Idempotent-Replayed"))
	})
	t.Run("an unauthorized client learns nothing", func(t *testing.T) {
		for _, alias := range []string{"inference", "other"} {
			require.Equal(t, http.StatusForbidden, s.keyed("k", "POST", path, alias, body).status)
		}
		require.Equal(t, http.StatusUnauthorized, s.keyed("k", "POST", path, "", body).status)
	})
	t.Run("reads and deletes ignore the key", func(t *testing.T) {
		require.Equal(t, 200, s.keyed("k", "GET", path, "user", "").status)
		require.Equal(t, http.StatusNotFound, s.keyed("k", "DELETE", path+"/none", "user", "").status)
	})
	t.Run("without the header it is a new request", func(t *testing.T) {
		a := s.call("POST", path, "user", body)
		require.Equal(t, 200, a.status)
		require.NotEqual(t, string(first.body), string(a.body))
	})
}

func TestIdempotencyKeyFormat(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for _, c := range []struct {
		name   string
		values []string
		status int
	}{
		{"empty", []string{""}, 400},
		{"one character", []string{"x"}, 200},
		{"255 characters", []string{strings.Repeat("é", 255)}, 200},
		{"256 characters", []string{strings.Repeat("x", 256)}, 400},
		{"twice", []string{"x", "y"}, 400},
		{"not UTF-8", []string{"\xff"}, 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := s.request("POST", acme+"/datasets", "user", strings.NewReader(`{"dataset": {}}`))
			r.Header["Idempotency-Key"] = c.values
			a := s.send(r)
			require.Equal(t, c.status, a.status, "%s", a.body)
			if c.status == 400 {
				require.Contains(t, a.json(t)["message"], "Idempotency-Key")
			}
		})
	}
}

func TestStoredErrors(t *testing.T) {
	s := newHarness(t, request.Limits{})
	t.Run("a decided error is stored", func(t *testing.T) {
		const path, body = acme + "/datasets/later", `{"name": "accounts/acme/datasets/later", "displayName": "x"}`
		first := s.keyed("decided", "PATCH", path, "user", body)
		require.Equal(t, http.StatusNotFound, first.status)
		require.Equal(t, 200, s.call("POST", acme+"/datasets", "user", `{"dataset": {}, "datasetId": "later"}`).status)
		sameAs(t, first, s.keyed("decided", "PATCH", path, "user", body))
		require.Equal(t, 200, s.keyed("decided-2", "PATCH", path, "user", body).status)
	})
	t.Run("a temporary error is not", func(t *testing.T) {
		s.deploy("d1", 1)
		const path, body = "/inference/v1/completions", `{"model": "accounts/acme/deployments/d1", "prompt": "a b c"}`
		s.replicas.responding(func(context.Context, domain.Replica, engines.CompletionRequest,
			func(engines.Chunk) error) (engines.Usage, error) {
			return engines.Usage{}, domain.Errorf(domain.Unavailable, "not now")
		})
		require.Equal(t, 503, s.keyed("k", "POST", path, "inference", body).status)
		s.replicas.responding(nil)
		second := s.keyed("k", "POST", path, "inference", body)
		require.Equal(t, 200, second.status, "%s", second.body)
		sameAs(t, second, s.keyed("k", "POST", path, "inference", body))
	})
}

func (c *fakeReplicas) responding(respond func(context.Context, domain.Replica, engines.CompletionRequest,
	func(engines.Chunk) error) (engines.Usage, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.respond = respond
}

// watchedResponses sends on busy when a claim finds another attempt in progress, and records the
// stored responses.
type watchedResponses struct {
	request.IdempotencyStore
	busy   chan struct{}
	mu     sync.Mutex
	stored [][]byte
	claims []idempotency.Claim // with which the responses were stored
}

func (w *watchedResponses) Claim(ctx context.Context, key string, digest []byte, now time.Time,
	lease time.Duration) (idempotency.Claim, error) {
	claim, err := w.IdempotencyStore.Claim(ctx, key, digest, now, lease)
	if claim.State == idempotency.InProgress {
		select {
		case w.busy <- struct{}{}:
		default:
		}
	}
	return claim, err
}

func (w *watchedResponses) Store(ctx context.Context, claim idempotency.Claim, response []byte) error {
	w.mu.Lock()
	w.stored, w.claims = append(w.stored, response), append(w.claims, claim)
	w.mu.Unlock()
	return w.IdempotencyStore.Store(ctx, claim, response)
}

func TestConcurrentRepeatsOnTwoServers(t *testing.T) {
	s := newHarness(t, request.Limits{RepeatWait: time.Minute})
	s.deploy("d1", 1)
	release := make(chan struct{})
	s.replicas.responding(func(ctx context.Context, r domain.Replica, req engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		<-release
		return echo(ctx, r, req, emit)
	})
	watched := &watchedResponses{IdempotencyStore: s.answers, busy: make(chan struct{}, 1)}
	servers := []*harness{s.another(func(o *Options) { o.Idempotency = watched }),
		s.another(func(o *Options) { o.Idempotency = watched })}
	answers := make([]response, len(servers))
	var all sync.WaitGroup
	for i, server := range servers {
		all.Go(func() {
			answers[i] = server.keyed("k", "POST", "/inference/v1/completions", "inference",
				`{"model": "accounts/acme/deployments/d1", "prompt": "a b c"}`)
		})
	}
	<-watched.busy
	close(release)
	all.Wait()
	first, second := answers[0], answers[1]
	if first.header.Get("Idempotent-Replayed") != "" {
		first, second = second, first
	}
	require.Equal(t, 200, first.status, "%s", first.body)
	sameAs(t, first, second)
	require.Equal(t, first.header.Get("Anneal-Prompt-Tokens"), second.header.Get("Anneal-Prompt-Tokens"))
	require.Equal(t, "3", second.header.Get("Anneal-Prompt-Tokens"))
	require.Len(t, s.replicas.requestIDs(), 1, "one generation")
}

func TestStoredResponsesAreSealed(t *testing.T) {
	s := newHarness(t, request.Limits{})
	watched := &watchedResponses{IdempotencyStore: s.answers}
	server := s.another(func(o *Options) { o.Idempotency = watched })
	const canary = "canary-5e1f"
	secret := server.keyed("k1", "POST", acme+"/secrets", "admin",
		`{"name": "s1", "keyName": "TOKEN", "value": "`+canary+`"}`)
	require.Contains(t, string(secret.body), canary)
	key := server.keyed("k2", "POST", acme+"/apiKeys", "admin", `{"apiKey": {"role": "user"}}`)
	minted, _ := key.json(t)["key"].(string)
	require.NotEmpty(t, minted)
	sameAs(t, key, server.keyed("k2", "POST", acme+"/apiKeys", "admin", `{"apiKey": {"role": "user"}}`))
	require.Len(t, watched.stored, 2)
	for n, made := range []response{secret, key} {
		position, err := strconv.ParseUint(made.header.Get("Anneal-Position"), 10, 63)
		require.NoError(t, err)
		require.Positive(t, position)
		require.GreaterOrEqual(t, watched.claims[n].Position, position, "for a restore to an earlier position")
	}
	for _, stored := range watched.stored {
		for _, text := range []string{canary, minted, "keyName", "accounts/acme"} {
			require.NotContains(t, string(stored), text)
		}
	}
	require.NotContains(t, s.logged.String(), canary)
	r := server.request("GET", "/v1/accounts/acme/datasets", "", nil)
	r.Header.Set("Authorization", "Bearer "+minted)
	require.Equal(t, 200, server.send(r).status, "the key is valid")
}

func TestResponsesAreStoredForADay(t *testing.T) {
	s := newHarness(t, request.Limits{})
	const path, body = acme + "/datasets", `{"dataset": {}}`
	first := s.keyed("k", "POST", path, "user", body)
	s.clock.add(idempotency.Retention - time.Minute)
	sameAs(t, first, s.keyed("k", "POST", path, "user", body))
	s.clock.add(time.Minute)
	after := s.keyed("k", "POST", path, "user", body)
	require.Equal(t, 200, after.status)
	require.NotEqual(t, string(first.body), string(after.body), "the key is a new one")
}

func TestRepeatedUpload(t *testing.T) {
	s := newHarness(t, request.Limits{Body: 4 << 10})
	require.Equal(t, 200, s.call("POST", acme+"/datasets", "user", `{"dataset": {}, "datasetId": "d"}`).status)
	send := func(content, boundary string) response {
		form := "--" + boundary + "\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\n\r\n" +
			content + "\r\n--" + boundary + "--\r\n"
		r := s.request("POST", acme+"/datasets/d:upload", "user", strings.NewReader(form))
		r.Header.Set("Content-Type", "multipart/form-data; boundary="+boundary)
		r.Header.Set("Idempotency-Key", "k")
		return s.send(r)
	}
	rows := strings.Repeat(`{"prompt": "a", "completion": "b"}`+"\n", 3)
	first := send(rows, "one")
	require.Equal(t, 200, first.status, "%s", first.body)
	sameAs(t, first, send(rows, "two"))
	require.Equal(t, http.StatusConflict, send(rows+rows, "one").status)
	large := send(strings.Repeat(rows, 100), "one")
	require.Equal(t, http.StatusRequestEntityTooLarge, large.status)
	require.Contains(t, large.json(t)["message"], "Idempotency-Key")
}

// TestServerCrashesAfterUpload checks that a repeated upload does not delete the files of the first
// attempt, after which the server has crashed.
func TestServerCrashesAfterUpload(t *testing.T) {
	const rows = `{"prompt": "a", "completion": "b"}` + "\n" + `{"prompt": "c", "completion": "d"}` + "\n" +
		`{"prompt": "e", "completion": "f"}` + "\n"
	s := newHarness(t, request.Limits{})
	failing := s.another(func(o *Options) { o.Idempotency = lostResponses{o.Idempotency} })
	require.Equal(t, 200, failing.call("POST", acme+"/datasets", "user", `{"dataset": {}, "datasetId": "d"}`).status)
	send := func(to *harness) response {
		form := "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\n\r\n" + rows + "\r\n--x--\r\n"
		r := to.request("POST", acme+"/datasets/d:upload", "user", strings.NewReader(form))
		r.Header.Set("Content-Type", "multipart/form-data; boundary=x")
		r.Header.Set("Idempotency-Key", "k")
		return to.send(r)
	}
	first := send(failing)
	require.Equal(t, 200, first.status, "%s", first.body)
	after := s.events()
	s.clock.add(request.ClaimTime)
	second := send(s)
	require.Equal(t, 200, second.status, "%s", second.body)
	require.Equal(t, string(first.body), string(second.body))
	require.Equal(t, after, s.events())
	preview := s.call("GET", acme+"/datasets/d:preview", "user", "")
	require.Equal(t, "3", fmt.Sprint(preview.json(t)["totalCount"]), "%s", preview.body)
}

func TestResponsesThatAreNotStored(t *testing.T) {
	s := servingHarness(t, 1)
	t.Run("a stream", func(t *testing.T) {
		a := s.keyed("k", "POST", "/inference/v1/completions", "inference",
			`{"model": "accounts/acme/deployments/d1", "prompt": "a", "stream": true}`)
		require.Equal(t, 400, a.status)
		require.Contains(t, string(a.body), "Idempotency-Key")
		require.Empty(t, s.replicas.requestIDs())
	})
	t.Run("the response is too large", func(t *testing.T) {
		s.replicas.responding(func(_ context.Context, _ domain.Replica, _ engines.CompletionRequest,
			emit func(engines.Chunk) error) (engines.Usage, error) {
			err := emit(engines.Chunk{Text: string(bytes.Repeat([]byte("x"), idempotency.MaxResponse)),
				Finish: engines.FinishStop})
			return engines.Usage{PromptTokens: 1, CompletionTokens: 1}, err
		})
		const body = `{"model": "accounts/acme/deployments/d1", "prompt": "a"}`
		first := s.keyed("large", "POST", "/inference/v1/completions", "inference", body)
		require.Equal(t, 200, first.status)
		second := s.keyed("large", "POST", "/inference/v1/completions", "inference", body)
		require.Equal(t, http.StatusConflict, second.status)
		require.Contains(t, string(second.body), "ANSWER_NOT_KEPT")
		require.Len(t, s.replicas.requestIDs(), 1)
	})
}

func TestPanicReleasesKey(t *testing.T) {
	s := newHarness(t, request.Limits{})
	broken := s.another(func(o *Options) { o.Sealer = nil }) // sealing a secret fails
	const body = `{"name": "s1", "keyName": "TOKEN", "value": "v"}`
	first := broken.keyed("k", "POST", acme+"/secrets", "admin", body)
	require.Equal(t, http.StatusInternalServerError, first.status, "%s", first.body)
	second := s.keyed("k", "POST", acme+"/secrets", "admin", body)
	require.Equal(t, 200, second.status, "%s", second.body)
	assert.Empty(t, second.header.Get("Idempotent-Replayed"))
}
