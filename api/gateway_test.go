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

	"anneal/domain"
	"anneal/engines"
)

const toD1 = `"model": "accounts/acme/deployments/d1"`

func (s *stage) complete(fields string) answer {
	s.Helper()
	return s.call("POST", "/inference/v1/completions", "inference", `{`+toD1+`, `+fields+`}`)
}

func textOf(t *testing.T, a answer) string {
	t.Helper()
	require.Equal(t, 200, a.status, "%s", a.body)
	return a.json(t)["choices"].([]any)[0].(map[string]any)["text"].(string)
}

// pieces reads a stream of completion chunks to [DONE].
func pieces(t *testing.T, body string) []map[string]any {
	t.Helper()
	var all []map[string]any
	require.True(t, strings.HasSuffix(body, "data: [DONE]\n\n"), "%s", body)
	for lines := bufio.NewScanner(strings.NewReader(body)); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			require.True(t, ok || lines.Text() == "", "only data lines: %q", lines.Text())
			continue
		}
		var piece map[string]any
		require.NoError(t, json.Unmarshal([]byte(data), &piece))
		all = append(all, piece)
	}
	return all
}

func TestAStreamedCompletion(t *testing.T) {
	s := newStage(t, Limits{})
	s.deploy("d1", 1)
	a := s.complete(`"prompt": ["a b c", "d e"], "n": 2, "stream": true, "max_tokens": 2, "echo": true, "perf_metrics_in_response": true`)
	require.Equal(t, 200, a.status)
	require.Equal(t, "text/event-stream", a.header.Get("Content-Type"))
	texts, finished := map[int]string{}, map[int]string{}
	all := pieces(t, string(a.body))
	for i, piece := range all {
		require.Equal(t, "text_completion", piece["object"])
		require.Equal(t, all[0]["id"], piece["id"])
		choice := piece["choices"].([]any)[0].(map[string]any)
		index := int(choice["index"].(float64))
		require.Empty(t, finished[index], "nothing comes after the end of a choice")
		texts[index] += choice["text"].(string)
		if reason, ok := choice["finish_reason"].(string); ok {
			finished[index] = reason
		}
		usage, told := piece["usage"]
		require.True(t, told)
		require.Equal(t, i == len(all)-1, usage != nil, "usage is null but in the last")
		require.Equal(t, i == len(all)-1, piece["perf_metrics"] != nil)
	}
	require.Equal(t, map[int]string{0: "a b ca b ", 1: "a b ca b ", 2: "d ed e ", 3: "d ed e "}, texts)
	require.Equal(t, map[int]string{0: "length", 1: "length", 2: "stop", 3: "stop"}, finished)
	require.Equal(t, map[string]any{"prompt_tokens": 5.0, "completion_tokens": 8.0, "total_tokens": 13.0, "prompt_tokens_details": map[string]any{"cached_tokens": 0.0}}, all[len(all)-1]["usage"])
}

func TestWhatReachesTheEngine(t *testing.T) {
	s := newStage(t, Limits{})
	s.deploy("d1", 1)
	a := s.complete(`"prompt": "a", "n": 2, "seed": 7, "temperature": 0.5, "top_k": 3, "top_p": 0, "stop": ["x", "y"], "ignore_eos": true, "max_completion_tokens": 5`)
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

func TestAReplicaThatFailsBeforeItsFirstToken(t *testing.T) {
	s := newStage(t, Limits{})
	s.deploy("d1", 3)
	failing := map[string]bool{}
	var mu sync.Mutex
	s.replicas.sing = func(ctx context.Context, r domain.Replica, req engines.CompletionRequest, emit func(engines.Chunk) error) (engines.Usage, error) {
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
	asked := s.replicas.asks()
	require.Len(t, asked, 3)
	require.Len(t, failing, 2)
	require.Contains(t, s.logged.String(), "failed before it had answered anything")
}

// When the queues of all replicas are full the caller hears so, and when to ask
// again; that some could not be reached besides is no news to him.
func TestFullReplicas(t *testing.T) {
	for replicas := range 3 {
		s := newStage(t, Limits{})
		s.deploy("d1", 1+replicas)
		var asked atomic.Int32
		s.replicas.sing = func(context.Context, domain.Replica, engines.CompletionRequest, func(engines.Chunk) error) (engines.Usage, error) {
			if asked.Add(1) == 2 {
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

func TestAFaultOfTheUserIsNotTriedElsewhere(t *testing.T) {
	s := newStage(t, Limits{})
	s.deploy("d1", 3)
	s.replicas.sing = func(context.Context, domain.Replica, engines.CompletionRequest, func(engines.Chunk) error) (engines.Usage, error) {
		return engines.Usage{}, domain.Errorf(domain.InvalidArgument, "the prompt fills the window")
	}
	a := s.complete(`"prompt": "one two"`)
	require.Equal(t, 400, a.status)
	require.Contains(t, string(a.body), "the prompt fills the window")
	require.Len(t, s.replicas.asks(), 1)
}

func TestAStreamThatBreaks(t *testing.T) {
	s := newStage(t, Limits{})
	s.deploy("d1", 2)
	s.replicas.sing = func(_ context.Context, _ domain.Replica, _ engines.CompletionRequest, emit func(engines.Chunk) error) (engines.Usage, error) {
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
	require.Len(t, s.replicas.asks(), 1, "what has begun is not begun again elsewhere")
	a = s.complete(`"prompt": "one two"`)
	require.Equal(t, 503, a.status)
}

func TestSessionsStay(t *testing.T) {
	s := newStage(t, Limits{})
	s.deploy("d1", 4, func(d *domain.DeploymentSpec) { d.EnableSessionAffinity = true })
	home := map[string]string{}
	for round := range 3 {
		for u := range 12 {
			user := fmt.Sprint("user-", u)
			textOf(t, s.complete(`"prompt": "a", "user": "`+user+`"`))
			asked := s.replicas.asks()
			at := asked[len(asked)-1]
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
		asked := s.replicas.asks()
		now := asked[len(asked)-1]
		require.NotEqual(t, lost, now)
		if at != lost {
			require.Equal(t, at, now, "only the lost replica's sessions move")
		}
	}
}

func TestTheLeastLoadedIsAsked(t *testing.T) {
	s := newStage(t, Limits{})
	s.deploy("d1", 2)
	held, release := make(chan string, 2), make(chan struct{})
	s.replicas.sing = func(ctx context.Context, r domain.Replica, req engines.CompletionRequest, emit func(engines.Chunk) error) (engines.Usage, error) {
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

func TestADeploymentAtZeroWakes(t *testing.T) {
	s := newStage(t, Limits{})
	name := s.deploy("d1", 0)
	require.Zero(t, mustRow(s, name).DesiredReplicas)
	before := s.world.Position()
	answered := make(chan answer)
	go func() { answered <- s.complete(`"prompt": "one two"`) }()
	<-s.world.Changed(before)
	require.Equal(t, 1, mustRow(s, name).DesiredReplicas)
	s.serveReplica(name)
	require.Equal(t, "one two ", textOf(t, <-answered))
	events := s.call("GET", "/v1/accounts/acme/deployments/d1/events?filter=type=deployment.scaled.v1", "user", "").json(t)["events"].([]any)
	require.Len(t, events, 1)
	require.Equal(t, "accounts/acme/apiKeys/inference", events[0].(map[string]any)["actor"])
}

// However long a request waits, its deployment was asked something just now.
func TestARequestThatWaitsIsUse(t *testing.T) {
	s := newStage(t, Limits{})
	name := s.deploy("d1", 0)
	asked := func() time.Time { return s.world.View().Live.Loads(name).LastRequest }
	answered := make(chan answer)
	go func() { answered <- s.complete(`"prompt": "one two"`) }()
	require.Eventually(t, func() bool { return !asked().IsZero() }, patience, time.Millisecond)
	first := asked()
	require.Eventually(t, func() bool { return asked().After(first) }, patience, time.Millisecond)
	s.serveReplica(name)
	require.Equal(t, "one two ", textOf(t, <-answered))
}

func (s *stage) serveReplica(name domain.Name) {
	id := mustRow(s, name).NextReplica()
	s.deployment(name, domain.PlaceReplica{ID: id, Node: "accounts/system/nodes/n1", Generation: 1})
	s.deployment(name, domain.AdvanceReplica{ID: id, State: domain.ReplicaReady, Node: "accounts/system/nodes/n1"})
}

func TestAWakeUpThatOutlastsTheHold(t *testing.T) {
	s := newStage(t, Limits{Wake: 20 * time.Millisecond})
	s.deploy("d1", 0)
	a := s.complete(`"prompt": "one two", "stream": true`)
	require.Equal(t, 503, a.status)
	require.NotEmpty(t, a.header.Get("Retry-After"))
	require.Equal(t, "DEPLOYMENT_SCALING_UP", a.json(t)["error"].(map[string]any)["code"])
}

// A server that stops says so: it neither waits for replicas nor blames them.
func TestAServerThatStops(t *testing.T) {
	for replicas := range 3 {
		s := newStage(t, Limits{})
		s.deploy("d1", replicas)
		s.replicas.sing = func(context.Context, domain.Replica, engines.CompletionRequest, func(engines.Chunk) error) (engines.Usage, error) {
			s.server.Close()
			return engines.Usage{}, domain.Errorf(domain.Unavailable, "the node is gone")
		}
		if replicas == 0 {
			before := s.world.Position()
			go func() {
				<-s.world.Changed(before) // it waits for the deployment to wake up
				s.server.Close()
			}()
		}
		a := s.complete(`"prompt": "one two"`)
		require.Equal(t, 503, a.status)
		require.Equal(t, "SERVER_STOPPING", a.json(t)["error"].(map[string]any)["code"])
		require.NotEmpty(t, a.header.Get("Retry-After"))
		require.Len(t, s.replicas.asks(), min(replicas, 1))
	}
}

func TestAClientThatGoesAwayStopsTheGeneration(t *testing.T) {
	s := newStage(t, Limits{})
	s.deploy("d1", 1)
	stopped := make(chan error, 1)
	s.replicas.sing = func(ctx context.Context, _ domain.Replica, _ engines.CompletionRequest, emit func(engines.Chunk) error) (engines.Usage, error) {
		if err := emit(engines.Chunk{Text: "first"}); err != nil {
			return engines.Usage{}, err
		}
		<-ctx.Done()
		stopped <- ctx.Err()
		return engines.Usage{}, ctx.Err()
	}
	for _, stream := range []string{"true", "false"} {
		ctx, cancel := context.WithCancel(t.Context())
		r := s.request("POST", "/inference/v1/completions", "inference", strings.NewReader(`{`+toD1+`, "prompt": "a", "stream": `+stream+`}`)).WithContext(ctx)
		asked := len(s.replicas.asks())
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
			require.Eventually(t, func() bool { return len(s.replicas.asks()) > asked }, patience, time.Millisecond)
			cancel()
			<-gone
		}
		require.ErrorIs(t, <-stopped, context.Canceled)
	}
}

func TestGenerationsAreCounted(t *testing.T) {
	s := newStage(t, Limits{Generations: 1})
	s.deploy("d1", 1)
	begun, release := make(chan struct{}), make(chan struct{})
	s.replicas.sing = func(ctx context.Context, r domain.Replica, req engines.CompletionRequest, emit func(engines.Chunk) error) (engines.Usage, error) {
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

func TestTheStrictSettingRefusesUnknownParameters(t *testing.T) {
	s := newStage(t, Limits{})
	s.deploy("d1", 1)
	a := s.complete(`"prompt": "a", "colour": "red"`)
	require.Equal(t, 200, a.status)
	require.Contains(t, a.header.Get("anneal-warning"), `"colour"`)
	s.server.Strict = true
	a = s.complete(`"prompt": "a", "colour": "red"`)
	require.Equal(t, 400, a.status)
	require.Equal(t, "colour", a.json(t)["error"].(map[string]any)["param"])
}

// Each number is accepted at its bounds and refused one step past them.
func TestCompletionRanges(t *testing.T) {
	for _, c := range []struct {
		field  string
		ok     []string
		tooFar []string
	}{
		{"n", []string{"1", "128"}, []string{"0", "129", "1.5"}},
		{"temperature", []string{"0", "2"}, []string{"-0.1", "2.1"}},
		{"top_k", []string{"0", "100"}, []string{"-1", "101"}},
		{"top_p", []string{"0", "1"}, []string{"-0.1", "1.1"}},
		{"min_p", []string{"0", "0.5", "1"}, []string{"-0.1", "1.1"}},
		{"typical_p", []string{"0", "1"}, []string{"-0.1", "1.1"}},
		{"frequency_penalty", []string{"-2", "2"}, []string{"-2.1", "2.1"}},
		{"presence_penalty", []string{"-2", "2"}, []string{"-2.1", "2.1"}},
		{"repetition_penalty", []string{"0", "2"}, []string{"-0.1", "2.1"}},
		{"mirostat_target", []string{"1", "5.5", "1000000", "null"}, []string{"0", "0.9", "1000001", `"5"`}},
		{"mirostat_lr", []string{"0", "1"}, []string{"-0.1", "1.1"}},
		{"max_tokens", []string{"0", "1048576"}, []string{"-1", "1048577"}},
		{"max_completion_tokens", []string{"0", "1048576"}, []string{"-1", "1048577"}},
		{"seed", []string{"-9223372036854775808", "0", "9223372036854775807"}, []string{"1.5", `"1"`, "9223372036854775808"}},
		{"logprobs", []string{"false", "true", "null", "0", "5"}, []string{"-1", "6", "1.5", `"x"`, "[]"}},
		{"top_logprobs", []string{"null", "0"}, []string{"-1", "6", "3"}},
		{"echo", []string{"true", "false"}, []string{"1"}},
		{"echo_last", []string{"0", "1048576"}, []string{"-1", "1048577"}},
		{"ignore_eos", []string{"true"}, []string{`"yes"`}},
		{"return_token_ids", []string{"true"}, []string{"1"}},
		{"raw_output", []string{"true"}, []string{"1"}},
		{"perf_metrics_in_response", []string{"true"}, []string{"1"}},
		{"stream", []string{"true"}, []string{"1"}},
		{"stream_options", []string{`{}`, `{"include_usage":true}`, `{"chunk":1}`}, []string{"5"}},
		{"stop", []string{`"a"`, `["a","b","c","d"]`, `[]`, "null"}, []string{`["a","b","c","d","e"]`, `""`, `[5]`, `5`}},
		{"logit_bias", []string{`{}`, `{"5": 100, "6": -100}`}, []string{`{"5": 101}`, `{"5": -100.5}`, `{"a": 1}`, `{"-1": 1}`, `{"5": "1"}`, `5`}},
		{"response_format", []string{`{"type":"text"}`, `{"type":"json_object"}`, `{"type":"json_schema","schema":{"type":"object"}}`,
			`{"type":"json_schema","json_schema":"{}"}`, `{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"}}}`, `{"type":"grammar","grammar":"root ::= \"a\""}`}, []string{`5`}},
		{"response_format.type", nil, []string{`{"type":"xml"}`, `{}`}},
		{"response_format.json_schema", nil, []string{`{"type":"json_schema"}`, `{"type":"json_schema","json_schema":5}`, `{"type":"json_schema","json_schema":"{"}`}},
		{"response_format.grammar", nil, []string{`{"type":"grammar"}`, `{"type":"grammar","grammar":5}`, `{"type":"json_object","grammar":"root ::= \"a\""}`}},
		{"response_format.schema", nil, []string{`{"type":"json_schema","schema":{},"json_schema":{}}`, `{"type":"text","schema":{}}`, `{"type":"grammar","grammar":"root ::= \"a\"","json_schema":{}}`}},
		{"thinking", []string{`{"type":"disabled"}`, `{"type":"enabled","budget_tokens":1024}`}, []string{`5`}},
		{"thinking.type", nil, []string{`{}`, `{"type":"maybe"}`}},
		{"thinking.budget_tokens", nil, []string{`{"type":"enabled","budget_tokens":1023}`}},
		{"reasoning_effort", []string{`"none"`, `"low"`, `"medium"`, `"high"`, `false`, `true`, `5`}, []string{`0`, `-1`, `1.5`, `"much"`, `{}`}},
		{"reasoning_history", []string{`"disabled"`, `"interleaved"`, `"preserved"`}, []string{`"other"`, `5`}},
		{"prediction", []string{`"text"`, `{"type":"content","content":"text"}`}, []string{`5`}},
		{"prediction.type", nil, []string{`{"type":"other","content":"x"}`}},
		{"speculation", []string{`"ngram"`}, []string{`5`}},
		{"context_length_exceeded_behavior", []string{`"truncate"`, `"error"`}, []string{`"ignore"`, `""`}},
		{"images", []string{`[]`}, []string{`["x"]`, `5`}},
		{"metadata", []string{`{}`}, []string{`5`}},
		{"user", []string{`"` + strings.Repeat("u", 512) + `"`}, []string{`"` + strings.Repeat("u", 513) + `"`}},
		{"prompt", []string{`""`, `[]`, `[0]`, `["a"]`, `[[1]]`}, []string{`{}`, `[-1]`, `[1.5]`, `["a", 1]`, `[["a"]]`, `[1, [2]]`, `null`, `5`}},
	} {
		try := func(value string) error {
			field, _, _ := strings.Cut(c.field, ".")
			fields := `{"model": "accounts/acme/models/m", "prompt": "p", "` + field + `": ` + value + `}`
			if c.field == "prompt" {
				fields = `{"model": "accounts/acme/models/m", "prompt": ` + value + `}`
			}
			tree, err := parseLast(fields)
			require.NoError(t, err)
			_, err = readCompletion(tree, nil, false)
			return err
		}
		for _, value := range c.ok {
			require.NoError(t, try(value), "%s %s", c.field, value)
		}
		for _, value := range c.tooFar {
			require.ErrorContains(t, try(value), c.field+": ", "%s %s", c.field, value)
		}
	}
}

// parseLast is parseJSON, but the last of two keys counts.
func parseLast(text string) (any, error) {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var tree any
	err := dec.Decode(&tree)
	return tree, err
}

// A request that is too large for a replica is answered 413, and no other
// replica is asked, nor is one blamed.
func TestRequestTooLargeForReplicas(t *testing.T) {
	s := newStage(t, Limits{})
	s.deploy("d1", 3)
	var asked atomic.Int32
	s.replicas.singing(func(context.Context, domain.Replica, engines.CompletionRequest, func(engines.Chunk) error) (engines.Usage, error) {
		asked.Add(1)
		return engines.Usage{}, &domain.Error{Code: domain.OutOfRange, Reason: engines.RequestTooLarge, Message: "shorten it"}
	})
	a := s.complete(`"prompt": "a"`)
	require.Equal(t, http.StatusRequestEntityTooLarge, a.status)
	require.Equal(t, "REQUEST_TOO_LARGE", a.json(t)["error"].(map[string]any)["code"])
	require.EqualValues(t, 1, asked.Load())
	require.NotContains(t, s.logged.String(), "a replica failed")
}
