package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/engines"
)

const toD1 = `"model": "accounts/acme/deployments/d1"`

func (s *harness) complete(fields string) response {
	s.Helper()
	return s.call("POST", "/inference/v1/completions", "inference", `{`+toD1+`, `+fields+`}`)
}

func textOf(t *testing.T, a response) string {
	t.Helper()
	require.Equal(t, 200, a.status, "%s", a.body)
	return a.json(t)["choices"].([]any)[0].(map[string]any)["text"].(string)
}

// chunks reads a stream of completion chunks to [DONE].
func chunks(t *testing.T, body string) []map[string]any {
	t.Helper()
	var all []map[string]any
	require.True(t, strings.HasSuffix(body, "data: [DONE]\n\n"), "%s", body)
	for lines := bufio.NewScanner(strings.NewReader(body)); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			require.True(t, ok || lines.Text() == "", "only data lines: %q", lines.Text())
			continue
		}
		var chunk map[string]any
		require.NoError(t, json.Unmarshal([]byte(data), &chunk))
		all = append(all, chunk)
	}
	return all
}

func TestStreamedCompletion(t *testing.T) {
	s := servingHarness(t, 1)
	a := s.complete(`"prompt": ["a b c", "d e"], "n": 2, "stream": true, "max_tokens": 2, "echo": true, ` +
		`"perf_metrics_in_response": true`)
	require.Equal(t, 200, a.status)
	require.Equal(t, "text/event-stream", a.header.Get("Content-Type"))
	texts, finished := map[int]string{}, map[int]string{}
	all := chunks(t, string(a.body))
	for i, chunk := range all {
		require.Equal(t, "text_completion", chunk["object"])
		require.Equal(t, all[0]["id"], chunk["id"])
		choice := chunk["choices"].([]any)[0].(map[string]any)
		index := int(choice["index"].(float64))
		require.Empty(t, finished[index], "no chunk follows the end of a choice")
		texts[index] += choice["text"].(string)
		if reason, ok := choice["finish_reason"].(string); ok {
			finished[index] = reason
		}
		usage, fullOutput := chunk["usage"]
		require.True(t, fullOutput)
		require.Equal(t, i == len(all)-1, usage != nil, "usage is null in all chunks but the last")
		require.Equal(t, i == len(all)-1, chunk["perf_metrics"] != nil)
	}
	require.Equal(t, map[int]string{0: "a b ca b ", 1: "a b ca b ", 2: "d ed e ", 3: "d ed e "}, texts)
	require.Equal(t, map[int]string{0: "length", 1: "length", 2: "stop", 3: "stop"}, finished)
	require.Equal(t, map[string]any{"prompt_tokens": 5.0, "completion_tokens": 8.0, "total_tokens": 13.0,
		"prompt_tokens_details": map[string]any{"cached_tokens": 0.0}}, all[len(all)-1]["usage"])
}

func TestRequestOfEngine(t *testing.T) {
	s := servingHarness(t, 1)
	a := s.complete(`"prompt": "a", "n": 2, "seed": 7, "temperature": 0.5, "top_k": 3, "top_p": 0, "stop": ["x", "y"], ` +
		`"ignore_eos": true, "max_completion_tokens": 5`)
	require.Equal(t, 200, a.status)
	s.replicas.mu.Lock()
	defer s.replicas.mu.Unlock()
	var seeds []int
	for _, req := range s.replicas.reqs {
		seeds = append(seeds, int(*req.Seed))
		require.Equal(t, []string{"x", "y"}, req.Stop)
		require.Equal(t, 5, req.MaxTokens)
		require.Equal(t, 3, req.TopK)
		require.InDelta(t, 0.5, req.Temperature, 0)
		require.Positive(t, req.TopP)
		require.Less(t, req.TopP, 1e-6)
		require.True(t, req.IgnoreEOS)
	}
	slices.Sort(seeds)
	require.Equal(t, []int{7, 8}, seeds)
}

func TestReplicaFailsBeforeFirstToken(t *testing.T) {
	s := servingHarness(t, 3)
	failing := map[string]bool{}
	var mu sync.Mutex
	s.replicas.respond = func(ctx context.Context, r domain.Replica, req engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		mu.Lock()
		if len(failing) < 2 {
			failing[r.ID] = true
		}
		broken := failing[r.ID]
		mu.Unlock()
		if broken {
			return engines.Usage{}, domain.Errorf(domain.Unavailable, "the node is gone")
		}
		return echo(ctx, r, req, emit)
	}
	require.Equal(t, "one two ", textOf(t, s.complete(`"prompt": "one two"`)))
	sent := s.replicas.requestIDs()
	require.Len(t, sent, 3)
	require.Len(t, failing, 2)
	require.Contains(t, s.logged.String(), "failed before its response began")
}

// TestFullReplicas checks that the response is 429 with Retry-After and reports a full queue when
// the queues of all reachable replicas are full, also when another replica cannot be reached.
func TestFullReplicas(t *testing.T) {
	for replicas := range 3 {
		s := newHarness(t, request.Limits{})
		s.deploy("d1", 1+replicas)
		var sent atomic.Int32
		s.replicas.respond = func(context.Context, domain.Replica, engines.CompletionRequest,
			func(engines.Chunk) error) (engines.Usage, error) {
			if sent.Add(1) == 2 {
				return engines.Usage{}, domain.Errorf(domain.Unavailable, "the node is gone")
			}
			return engines.Usage{}, domain.Errorf(domain.ResourceExhausted, "the model has 256 requests waiting")
		}
		a := s.complete(`"prompt": "one two"`)
		require.Equal(t, 429, a.status, "%d replicas: %s", 1+replicas, a.body)
		require.Contains(t, string(a.body), "256 requests waiting")
		require.NotEmpty(t, a.header.Get("Retry-After"))
	}
}

func TestUserErrorsAreNotRetried(t *testing.T) {
	s := servingHarness(t, 3)
	s.replicas.respond = func(context.Context, domain.Replica, engines.CompletionRequest,
		func(engines.Chunk) error) (engines.Usage, error) {
		return engines.Usage{}, domain.Errorf(domain.InvalidArgument, "the prompt fills the window")
	}
	a := s.complete(`"prompt": "one two"`)
	require.Equal(t, 400, a.status)
	require.Contains(t, string(a.body), "the prompt fills the window")
	require.Len(t, s.replicas.requestIDs(), 1)
}

func TestInterruptedStream(t *testing.T) {
	s := servingHarness(t, 2)
	s.replicas.respond = func(_ context.Context, _ domain.Replica, _ engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		if err := emit(engines.Chunk{Text: "half"}); err != nil {
			return engines.Usage{}, err
		}
		return engines.Usage{}, domain.Errorf(domain.Unavailable, "the node is gone")
	}
	a := s.complete(`"prompt": "one two", "stream": true`)
	require.Equal(t, 200, a.status)
	require.Contains(t, string(a.body), `"text":"half"`)
	require.Contains(t, string(a.body), `"message":"the node is gone"`)
	require.NotContains(t, string(a.body), "[DONE]")
	require.Len(t, s.replicas.requestIDs(), 1, "a response that has begun is not retried on another replica")
	a = s.complete(`"prompt": "one two"`)
	require.Equal(t, 503, a.status)
}

func TestSessionAffinity(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.deploy("d1", 4, func(d *domain.DeploymentSpec) { d.EnableSessionAffinity = true })
	home := map[string]string{}
	for round := range 3 {
		for u := range 12 {
			user := fmt.Sprint("user-", u)
			textOf(t, s.complete(`"prompt": "a", "user": "`+user+`"`))
			sent := s.replicas.requestIDs()
			at := sent[len(sent)-1]
			if round == 0 {
				home[user] = at
			}
			require.Equal(t, home[user], at)
		}
	}
	places := map[string]bool{}
	for _, at := range home {
		places[at] = true
	}
	require.Greater(t, len(places), 1, "sessions spread")
	lost := home["user-0"]
	s.deployment("accounts/acme/deployments/d1", domain.RemoveReplica{ID: lost, Reason: "test"})
	for user, at := range home {
		textOf(t, s.complete(`"prompt": "a", "user": "`+user+`"`))
		sent := s.replicas.requestIDs()
		now := sent[len(sent)-1]
		require.NotEqual(t, lost, now)
		if at != lost {
			require.Equal(t, at, now, "only sessions of the lost replica move")
		}
	}
}

func TestReplicaWithLowestLoadIsChosen(t *testing.T) {
	s := servingHarness(t, 2)
	held, release := make(chan string, 2), make(chan struct{})
	s.replicas.respond = func(ctx context.Context, r domain.Replica, req engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		held <- r.ID
		<-release
		return echo(ctx, r, req, emit)
	}
	var both sync.WaitGroup
	var first, second string
	both.Go(func() { s.complete(`"prompt": "a"`) })
	first = <-held
	both.Go(func() { s.complete(`"prompt": "a"`) })
	second = <-held
	require.NotEqual(t, first, second)
	close(release)
	both.Wait()
}

func TestDeploymentWakesFromZero(t *testing.T) {
	s := newHarness(t, request.Limits{})
	name := s.deploy("d1", 0)
	require.Zero(t, mustRow(s, name).DesiredReplicas)
	before := s.world.Position()
	answered := make(chan response)
	go func() { answered <- s.complete(`"prompt": "one two"`) }()
	<-s.world.Changed(before)
	require.Equal(t, 1, mustRow(s, name).DesiredReplicas)
	s.serveReplica(name)
	require.Equal(t, "one two ", textOf(t, <-answered))
	events := s.call("GET", "/v1/accounts/acme/deployments/d1/events?filter=type=deployment.scaled.v1", "user",
		"").json(t)["events"].([]any)
	require.Len(t, events, 1)
	require.Equal(t, "accounts/acme/apiKeys/inference", events[0].(map[string]any)["actor"])
}

// TestWaitingRequestCountsAsUse checks that a request that waits for a replica counts as use of the
// deployment for the whole wait.
func TestWaitingRequestCountsAsUse(t *testing.T) {
	s := newHarness(t, request.Limits{})
	name := s.deploy("d1", 0)
	sent := func() time.Time { return s.world.View().Live.Loads(name).LastRequest }
	answered := make(chan response)
	go func() { answered <- s.complete(`"prompt": "one two"`) }()
	require.Eventually(t, func() bool { return !sent().IsZero() }, patience, time.Millisecond)
	first := sent()
	require.Eventually(t, func() bool { return sent().After(first) }, patience, time.Millisecond)
	s.serveReplica(name)
	require.Equal(t, "one two ", textOf(t, <-answered))
}

func (s *harness) serveReplica(name domain.Name) {
	id := mustRow(s, name).NextReplica()
	s.deployment(name, domain.PlaceReplica{ID: id, Node: "accounts/system/nodes/n1", Generation: 1})
	s.deployment(name, domain.AdvanceReplica{ID: id, State: domain.ReplicaReady, Node: "accounts/system/nodes/n1"})
}

func TestWakeLongerThanWait(t *testing.T) {
	s := newHarness(t, request.Limits{Wake: 20 * time.Millisecond})
	s.deploy("d1", 0)
	a := s.complete(`"prompt": "one two", "stream": true`)
	require.Equal(t, 503, a.status)
	require.NotEmpty(t, a.header.Get("Retry-After"))
	require.Equal(t, "DEPLOYMENT_SCALING_UP", a.json(t)["error"].(map[string]any)["code"])
}

// TestServerStops checks that requests to a server that is stopping do not wait for replicas, and
// get an error that says that the server is stopping, and not that replicas have failed.
func TestServerStops(t *testing.T) {
	for replicas := range 3 {
		s := newHarness(t, request.Limits{})
		s.deploy("d1", replicas)
		s.replicas.respond = func(context.Context, domain.Replica, engines.CompletionRequest,
			func(engines.Chunk) error) (engines.Usage, error) {
			s.server.Close()
			return engines.Usage{}, domain.Errorf(domain.Unavailable, "the node is gone")
		}
		if replicas == 0 {
			before := s.world.Position()
			go func() {
				<-s.world.Changed(before) // the request waits for a replica
				s.server.Close()
			}()
		}
		a := s.complete(`"prompt": "one two"`)
		require.Equal(t, 503, a.status)
		require.Equal(t, "SERVER_STOPPING", a.json(t)["error"].(map[string]any)["code"])
		require.NotEmpty(t, a.header.Get("Retry-After"))
		require.Len(t, s.replicas.requestIDs(), min(replicas, 1))
	}
}

func TestDisconnectStopsGeneration(t *testing.T) {
	s := servingHarness(t, 1)
	stopped := make(chan error, 1)
	s.replicas.respond = func(ctx context.Context, _ domain.Replica, _ engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		if err := emit(engines.Chunk{Text: "first"}); err != nil {
			return engines.Usage{}, err
		}
		<-ctx.Done()
		stopped <- ctx.Err()
		return engines.Usage{}, ctx.Err()
	}
	for _, stream := range []string{"true", "false"} {
		ctx, cancel := context.WithCancel(t.Context())
		r := s.request("POST", "/inference/v1/completions", "inference",
			strings.NewReader(`{`+toD1+`, "prompt": "a", "stream": `+stream+`}`)).WithContext(ctx)
		sent := len(s.replicas.requestIDs())
		if stream == "true" {
			response, err := http.DefaultClient.Do(r)
			require.NoError(t, err)
			_, err = bufio.NewReader(response.Body).ReadString('\n')
			require.NoError(t, err)
			cancel()
			response.Body.Close()
		} else {
			gone := make(chan struct{})
			go func() { defer close(gone); _, _ = http.DefaultClient.Do(r) }()
			require.Eventually(t, func() bool { return len(s.replicas.requestIDs()) > sent }, patience, time.Millisecond)
			cancel()
			<-gone
		}
		require.ErrorIs(t, <-stopped, context.Canceled)
	}
}

func TestGenerationsAreCounted(t *testing.T) {
	s := newHarness(t, request.Limits{Generations: 1})
	s.deploy("d1", 1)
	begun, release := make(chan struct{}), make(chan struct{})
	s.replicas.respond = func(ctx context.Context, r domain.Replica, req engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		close(begun)
		<-release
		return echo(ctx, r, req, emit)
	}
	var one sync.WaitGroup
	one.Go(func() { s.complete(`"prompt": "a"`) })
	<-begun
	a := s.complete(`"prompt": "a"`)
	require.Equal(t, 429, a.status)
	require.NotEmpty(t, a.header.Get("Retry-After"))
	close(release)
	one.Wait()
}

func TestStrictRejectsUnknownParameters(t *testing.T) {
	s := servingHarness(t, 1)
	a := s.complete(`"prompt": "a", "colour": "red"`)
	require.Equal(t, 200, a.status)
	require.Contains(t, a.header.Get("anneal-warning"), `"colour"`)
	s.server.inference.Strict = true
	a = s.complete(`"prompt": "a", "colour": "red"`)
	require.Equal(t, 400, a.status)
	require.Equal(t, "colour", a.json(t)["error"].(map[string]any)["param"])
}

// TestRequestTooLargeForReplicas checks that a request that is too large for a replica gets 413, is
// not sent to another replica, and does not cause a warning about a failed replica.
func TestRequestTooLargeForReplicas(t *testing.T) {
	s := servingHarness(t, 3)
	var sent atomic.Int32
	s.replicas.responding(func(context.Context, domain.Replica, engines.CompletionRequest,
		func(engines.Chunk) error) (engines.Usage, error) {
		sent.Add(1)
		return engines.Usage{}, &domain.Error{Code: domain.OutOfRange, Reason: engines.RequestTooLarge, Message: "shorten it"}
	})
	a := s.complete(`"prompt": "a"`)
	require.Equal(t, http.StatusRequestEntityTooLarge, a.status)
	require.Equal(t, "REQUEST_TOO_LARGE", a.json(t)["error"].(map[string]any)["code"])
	require.EqualValues(t, 1, sent.Load())
	require.NotContains(t, s.logged.String(), "a replica failed")
}
