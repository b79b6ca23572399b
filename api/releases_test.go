package api

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/routing"
	"anneal/domain"
	"anneal/engines"
	"anneal/eventlog/metering"
	"anneal/projections/live"
	"anneal/schedulers"
)

// A model answers the requests to one deployment of a releaseHarness.
type model struct {
	latency time.Duration // before the first token
	chunks  int           // emitted before fault
	fault   error         // nil answers all requests
	runs    atomic.Int64
}

func (m *model) answer(ctx context.Context, r domain.Replica, req engines.CompletionRequest,
	emit func(engines.Chunk) error) (engines.Usage, error) {
	m.runs.Add(1)
	if m.latency > 0 {
		select {
		case <-time.After(m.latency):
		case <-ctx.Done():
			return engines.Usage{}, ctx.Err()
		}
	}
	if m.fault == nil {
		return echo(ctx, r, req, emit)
	}
	for i := range m.chunks {
		if err := emit(engines.Chunk{Text: fmt.Sprint("lost", i, " "), Tokens: []int{i}}); err != nil {
			return engines.Usage{}, err
		}
	}
	return engines.Usage{}, m.fault
}

// A releaseHarness has the deployments d1 on node n1 and d2 on node n2, and the scheduler of releases.
type releaseHarness struct {
	*harness
	stable, candidate *model
	meter             *usageRecorder
}

func newReleaseHarness(t *testing.T, stable, candidate *model) *releaseHarness {
	s := &releaseHarness{newHarness(t, request.Limits{}), stable, candidate, &usageRecorder{}}
	s.server.inference.Router.Meter = s.meter
	s.deployOn("n1")
	one, d2 := 1, domain.NewName("acme", domain.Deployments.Collection, "d2")
	s.deployment(d2, domain.CreateDeployment{DeploymentSpec: domain.DeploymentSpec{DisableAutoDeploy: true,
		BaseModel: "accounts/default/models/anneal-base", MinReplicaCount: 1, MaxReplicaCount: &one}, Operator: true})
	s.placeOn(d2, "n2")
	s.deployment(d2, domain.MarkDeploymentReady{Generation: 1})
	s.replicas.responding(func(ctx context.Context, r domain.Replica, req engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		if r.Node.ID() == "n2" {
			return s.candidate.answer(ctx, r, req, emit)
		}
		return s.stable.answer(ctx, r, req, emit)
	})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		_ = schedulers.Run(ctx, s.log, s.world, schedulers.Releases{}, slog.New(slog.DiscardHandler))
	})
	t.Cleanup(func() { stop(); running.Wait() })
	return s
}

// release starts a release of d1 to d2.
func (s *releaseHarness) release(fields string) {
	s.Helper()
	a := s.call("POST", "/v1/accounts/acme/deployments/d1:startRelease", "user",
		`{"candidate": "accounts/acme/deployments/d2"`+fields+`}`)
	require.Equal(s, 200, a.status, "%s", a.body)
}

// split returns the newest release of d1.
func (s *releaseHarness) split() *domain.TrafficSplit {
	return mustRow(s.harness, "accounts/acme/deployments/d1").Release
}

// untilEnded sends requests, several at a time, until the release is no longer RUNNING, and returns
// their number. Every request must succeed.
func (s *releaseHarness) untilEnded(stream bool) int {
	s.Helper()
	const limit = 1000
	var sent atomic.Int64
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for s.split().State == domain.ReleaseRunning && sent.Add(1) < limit {
				a := s.complete(fmt.Sprintf(`"prompt": "one two", "stream": %t`, stream))
				if a.status != 200 || strings.Contains(string(a.body), "lost") || strings.Contains(string(a.body), "error") {
					s.Errorf("a client's request failed: %d %s", a.status, a.body)
					return
				}
			}
		})
	}
	clients.Wait()
	require.Less(s, sent.Load(), int64(limit), "%s", s.call("GET", "/v1/accounts/acme/deployments/d1", "user", "").body)
	return int(sent.Load())
}

// TestBadCandidatesAreRolledBack checks over HTTP that a bad candidate is rolled back within 100
// requests to it, and that no request of a client fails.
func TestBadCandidatesAreRolledBack(t *testing.T) {
	engineError := &domain.Error{Code: domain.Internal, Message: "the engine failed"}
	for name, one := range map[string]struct {
		candidate *model
		stream    bool
		reason    string
	}{
		"its engine fails":       {&model{fault: engineError}, true, "requests failed on the candidate"},
		"fails in the middle":    {&model{fault: engineError, chunks: 1}, false, "requests failed on the candidate"},
		"rejects valid requests": {&model{fault: domain.Errorf(domain.InvalidArgument, "no such field")}, false, "failed"},
		"is overloaded":          {&model{fault: domain.Errorf(domain.ResourceExhausted, "queue full")}, false, "failed"},
		"cannot be reached":      {&model{fault: &domain.Error{Code: domain.Unavailable, Message: "gone"}}, true, "failed"},
		"takes twice as long":    {&model{latency: 80 * time.Millisecond}, true, "time to the first token"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newReleaseHarness(t, &model{latency: one.candidate.latency / 2}, one.candidate)
			s.release(`, "steps": [25, 50]`)
			sent := s.untilEnded(one.stream)
			t.Logf("%s: rolled back after %d requests to the candidate, of %d: %s", name, one.candidate.runs.Load(), sent,
				s.split().Reason)
			require.Equal(t, domain.ReleaseRolledBackState, s.split().State)
			require.Contains(t, s.split().Reason, one.reason)
			require.LessOrEqual(t, one.candidate.runs.Load(), int64(100))
			runs := one.candidate.runs.Load()
			for range 20 {
				a := s.complete(`"prompt": "one"`)
				require.Equal(t, 200, a.status)
				require.NotContains(t, a.header.Get("anneal-route"), "release=")
			}
			require.Equal(t, runs, one.candidate.runs.Load())
		})
	}
}

// TestGoodCandidateIsPromoted checks that a good candidate passes all steps, each of which is an event,
// and then gets all requests, also those with the deployment's name, until it is rolled back.
func TestGoodCandidateIsPromoted(t *testing.T) {
	s := newReleaseHarness(t, &model{latency: 5 * time.Millisecond}, &model{latency: 5 * time.Millisecond})
	s.release(`, "steps": [20, 50], "minSamples": 20, "maxLatencyPercent": 300`)
	s.untilEnded(false)
	require.Equal(t, domain.ReleasePromotedState, s.split().State, s.split().Reason)
	types := []string{}
	for e, err := range s.log.Read(t.Context(), "events.acme.deployments.d1", 0) {
		require.NoError(t, err)
		if strings.Contains(e.Type, "release") {
			types = append(types, e.Type)
		}
	}
	require.Equal(t, []string{"deployment.releaseStarted.v1", "deployment.releaseAdvanced.v1",
		"deployment.releasePromoted.v1"}, types)

	s.meter.taken(t)
	a := s.complete(`"prompt": "one"`)
	require.Equal(t, "accounts/acme/deployments/d2", a.header.Get("anneal-deployment"))
	require.Equal(t, domain.Name("accounts/acme/deployments/d2"), s.meter.taken(t)[0].Deployment)

	d2 := domain.Name("accounts/acme/deployments/d2")
	s.deployment(d2, domain.DeleteDeployment{IgnoreChecks: true, Reason: "by its user"})
	require.Eventually(t, func() bool { return s.split().State == domain.ReleaseRolledBackState }, patience,
		10*time.Millisecond)
	require.Equal(t, "the candidate is DELETING", s.split().Reason)
	require.Equal(t, "accounts/acme/deployments/d1", s.complete(`"prompt": "one"`).header.Get("anneal-deployment"))
}

// TestManualPromotion checks that a release with promotion MANUAL waits after its last step, still
// splits the requests, and is promoted and rolled back by its user.
func TestManualPromotion(t *testing.T) {
	s := newReleaseHarness(t, &model{}, &model{})
	s.release(`, "steps": [50], "minSamples": 10, "maxLatencyPercent": 1000, "promotion": "MANUAL"`)
	s.untilEnded(false)
	require.Equal(t, domain.ReleaseWaiting, s.split().State, s.split().Reason)
	require.Equal(t, 50, s.split().Percent())
	for verb, state := range map[string]string{"promoteRelease": domain.ReleasePromotedState} {
		a := s.call("POST", "/v1/accounts/acme/deployments/d1:"+verb, "user", `{"reason": "reviewed"}`)
		require.Equal(t, state, a.json(t)["trafficSplit"].(map[string]any)["state"], "%s", a.body)
	}
	a := s.call("POST", "/v1/accounts/acme/deployments/d1:startRelease", "user",
		`{"candidate": "accounts/acme/deployments/d2", "evaluator": "accounts/acme/evaluators/e"}`)
	require.Equal(t, 400, a.status)
	require.Contains(t, string(a.body), `"field":"evaluator"`, "there is no such field")
	a = s.call("POST", "/v1/accounts/acme/deployments/d1:startRelease", "user",
		`{"candidate": "accounts/acme/deployments/d2"}`)
	require.Equal(t, 400, a.status)
	require.Contains(t, string(a.body), "RELEASE_PROMOTED")
	a = s.call("POST", "/v1/accounts/acme/deployments/d1:rollBackRelease", "user", "")
	require.Equal(t, "rolled back by its user", s.split().Reason, "%s", a.body)
}

// TestShadowGetsCopies checks that the candidate of a shadow release gets copies of requests, that its
// answers, faults and latency do not reach clients, that few copies are in progress, and that their
// usage is recorded as that of copies.
func TestShadowGetsCopies(t *testing.T) {
	s := newReleaseHarness(t, &model{}, &model{})
	block := make(chan struct{})
	s.replicas.responding(func(ctx context.Context, r domain.Replica, req engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		if r.Node.ID() == "n2" {
			s.candidate.runs.Add(1)
			<-block
		}
		return echo(ctx, r, req, emit)
	})
	s.release(`, "steps": [99], "mode": "SHADOW", "minSamples": 1000`)
	for range 40 {
		a := s.complete(`"prompt": "one two"`)
		require.Equal(t, "one two ", textOf(t, a))
		require.Contains(t, a.header.Get("anneal-route"), "release=1; arm=stable")
		require.Equal(t, "accounts/acme/deployments/d1", a.header.Get("anneal-deployment"))
	}
	require.Eventually(t, func() bool { return s.candidate.runs.Load() == 8 }, patience, time.Millisecond)
	for _, one := range s.meter.taken(t) {
		require.Equal(t, metering.Completion, one.Kind)
	}
	close(block)
	var copies []metering.Record
	require.Eventually(t, func() bool { copies = append(copies, s.meter.taken(t)...); return len(copies) == 8 }, patience,
		time.Millisecond)
	for _, one := range copies {
		require.Equal(t, metering.Shadow, one.Kind)
		require.Equal(t, domain.Name("accounts/acme/deployments/d2"), one.Deployment)
		require.Equal(t, 2, one.PromptTokens)
	}
}

// TestKeysStayWithTheirArm checks that all requests of a session go to the same deployment, and that a
// session on the candidate stays there in the next step.
func TestKeysStayWithTheirArm(t *testing.T) {
	s := newReleaseHarness(t, &model{}, &model{})
	s.release(`, "steps": [30, 60], "selection": "KEY", "minSamples": 100000`)
	armOf := func(key int) string {
		a := s.complete(fmt.Sprintf(`"prompt": "one", "prompt_cache_isolation_key": "tenant-%d"`, key))
		require.Equal(t, 200, a.status)
		return a.header.Get("anneal-deployment")
	}
	first, moved := map[int]string{}, 0
	const d2 = "accounts/acme/deployments/d2"
	for key := range 60 {
		first[key] = armOf(key)
		require.Equal(t, first[key], armOf(key))
		if first[key] == d2 {
			moved++
		}
	}
	require.InDelta(t, 18, moved, 12)
	s.deployment("accounts/acme/deployments/d1", domain.AdvanceRelease{Number: 1, Step: 0, Reason: "for the test"})
	later := 0
	for key := range 60 {
		arm := armOf(key)
		if arm == d2 {
			later++
		}
		require.False(t, first[key] == d2 && arm != d2, "a session left the candidate")
	}
	require.Greater(t, later, moved)
}

// TestGatewaysShareReleases checks that the scheduler counts the samples of all gateways, each once,
// whatever messages are lost, repeated or late, and that a gateway that has lost its samples makes the
// sum smaller, never wrong.
func TestGatewaysShareReleases(t *testing.T) {
	s := newReleaseHarness(t, &model{}, &model{})
	other := s.another(func(*Options) {})
	s.release(`, "steps": [50], "minSamples": 100000, "maxLatencyPercent": 1000`)
	require.NoError(t, other.world.WaitFor(t.Context(), s.last().Position))
	row, _ := s.world.View().Deployments.Get("accounts/acme/deployments/d1")
	step := live.ReleaseStep{Deployment: row.Name, Created: row.CreateVersion, Number: 1}
	var messages [][]byte
	for range 30 {
		require.Equal(t, 200, s.complete(`"prompt": "one"`).status)
		require.Equal(t, 200, other.complete(`"prompt": "one"`).status)
		messages = append(messages, other.server.Gateway().TakeReleases(other.world.View(), false)...)
	}
	require.Len(t, messages, 30)
	total := func(s *harness) int64 {
		sum := s.world.View().Live.Release(step)
		return sum.Stable.Requests + sum.Candidate.Requests
	}
	require.Eventually(t, func() bool { return total(s.harness) == 30 && total(other) == 30 }, patience, time.Millisecond)
	add := func(message []byte) {
		t.Helper()
		ok, err := routing.AddRelease(s.world.Live(), "b", message, epoch)
		require.True(t, ok)
		require.NoError(t, err)
	}
	add(messages[20])
	require.EqualValues(t, 30+21, total(s.harness))
	add(messages[29])
	add(messages[29])
	add(messages[3])
	require.EqualValues(t, 60, total(s.harness))
	elsewhere := s.world.View().Live.ReleaseElsewhere(step)
	require.EqualValues(t, 30, elsewhere.Stable.Requests+elsewhere.Candidate.Requests)

	again := s.server.Gateway().TakeReleases(s.world.View(), true)
	require.Len(t, again, 1)
	var m struct{ Samples domain.ReleaseSamples }
	require.NoError(t, json.Unmarshal(again[0], &m))
	require.EqualValues(t, 30, m.Samples.Stable.Requests+m.Samples.Candidate.Requests)
	ok, err := routing.AddRelease(s.world.Live(), "c",
		[]byte(`{"samples": {"stable": {"requests": 1, "errors": 2}}}`), epoch)
	require.True(t, ok)
	require.ErrorContains(t, err, "impossible samples")
	s.deployment("accounts/acme/deployments/d1", domain.RollBackRelease{Reason: "for the test"})
	require.Empty(t, s.server.Gateway().TakeReleases(s.world.View(), true))
	ok, _ = routing.AddRelease(s.world.Live(), "c", []byte(`[]`), epoch)
	require.False(t, ok, "notes about prompts")
}

// TestCandidateWithoutReplicas checks that requests do not wait for a candidate that has no replica.
func TestCandidateWithoutReplicas(t *testing.T) {
	s := newReleaseHarness(t, &model{}, &model{})
	s.release(`, "steps": [99]`)
	s.deployment("accounts/acme/deployments/d2", domain.RemoveReplica{ID: "r1", Reason: "for the test"})
	for range 20 {
		a := s.complete(`"prompt": "one"`)
		require.Equal(t, 200, a.status)
		require.NotContains(t, a.header.Get("anneal-route"), "arm=candidate")
	}
	require.Zero(t, s.candidate.runs.Load())
}

// TestReleasedDeploymentIsProtected checks that the deployment that clients name is not deleted by mistake
// while a candidate serves its requests, and that starting a release warns of an expireTime.
func TestReleasedDeploymentIsProtected(t *testing.T) {
	s := newReleaseHarness(t, &model{}, &model{})
	const d1, d2 = "accounts/acme/deployments/d1", "accounts/acme/deployments/d2"
	for _, name := range []string{d1, d2} {
		a := s.call("PATCH", "/v1/"+name, "user", `{"expireTime": "2099-01-02T03:04:05Z"}`)
		require.Equal(t, 200, a.status, "%s", a.body)
	}
	a := s.call("POST", "/v1/"+d1+":startRelease", "user", `{"candidate": "`+d2+`", "promotion": "MANUAL"}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	warnings := strings.Join(a.header.Values(request.WarningHeader), "\n")
	for _, name := range []string{d1, d2} {
		require.Contains(t, warnings, "candidate: "+name+" has an expireTime and is deleted at 2099-01-02T03:04:05Z")
	}
	refused := func(reason string) {
		t.Helper()
		a := s.call("DELETE", "/v1/"+d1, "user", "")
		require.Equal(t, 400, a.status, "%s", a.body)
		require.Contains(t, string(a.body), reason)
	}
	refused("RELEASE_ACTIVE")
	require.Equal(t, 200, s.call("POST", "/v1/"+d1+":promoteRelease", "user", "").status)
	refused("RELEASE_ACTIVE")
	require.Equal(t, 200, s.complete(`"prompt": "one"`).status)
	require.NotZero(t, s.candidate.runs.Load())
	require.Zero(t, s.stable.runs.Load())
	require.Equal(t, 200, s.call("POST", "/v1/"+d1+":rollBackRelease", "user", "").status)
	refused("RECENTLY_USED")
	require.Equal(t, 200, s.call("DELETE", "/v1/"+d1+"?ignoreChecks=true", "user", "").status)
}

// TestReleasesOfEmbeddingModels checks that no deployment of an embedding model takes part in a release,
// whose steps it could never pass: releases move no embeddings.
func TestReleasesOfEmbeddingModels(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for _, id := range []string{"text", "vectors"} {
		s.model(domain.NewName("acme", domain.Models.Collection, id), domain.BaseModel, "",
			domain.ModelMetadata{ModelType: "llama", ParameterCount: 1000, Embedding: id == "vectors"})
		for _, n := range []string{"1", "2"} {
			name, one := domain.NewName("acme", domain.Deployments.Collection, id+n), 1
			s.deployment(name, domain.CreateDeployment{DeploymentSpec: domain.DeploymentSpec{MaxReplicaCount: &one,
				BaseModel: "accounts/acme/models/" + id}, Operator: true})
			s.serve(name)
		}
	}
	for _, one := range []struct{ stable, candidate, violation string }{
		{"text1", "text2", ""},
		{"text1", "vectors1", "accounts/acme/deployments/vectors1 serves the embedding model accounts/acme/models/vectors, " +
			"which generates no text: name a deployment of a text model"},
		{"vectors1", "text2", "accounts/acme/deployments/text2 cannot get requests of accounts/acme/deployments/vectors1, " +
			"which serves the embedding model accounts/acme/models/vectors: releases compare generated text, so change the " +
			"model name in the requests instead"},
		{"vectors1", "vectors2", "accounts/acme/deployments/vectors2 cannot get requests of"},
	} {
		a := s.call("POST", "/v1/accounts/acme/deployments/"+one.stable+":startRelease", "user",
			`{"candidate": "accounts/acme/deployments/`+one.candidate+`"}`)
		if one.violation == "" {
			require.Equal(t, 200, a.status, "%s", a.body)
			s.call("POST", "/v1/accounts/acme/deployments/"+one.stable+":rollBackRelease", "user", "")
			continue
		}
		require.Equal(t, 400, a.status, "%s", a.body)
		require.Contains(t, string(a.body), one.violation)
		require.Contains(t, string(a.body), `"field":"candidate"`)
	}
}

// TestContextLengthIsThatOfTheStableDeployment checks that the stable deployment decides whether a prompt
// and max_tokens exceed the context length, even if the candidate has a shorter one.
func TestContextLengthIsThatOfTheStableDeployment(t *testing.T) {
	s := newReleaseHarness(t, &model{}, &model{})
	var counted sync.Map
	s.replicas.responding(func(ctx context.Context, r domain.Replica, req engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		usage, err := echo(ctx, r, req, emit)
		if usage.ContextLength = 100; r.Node.ID() == "n2" {
			usage.ContextLength = 5
		}
		if req.MaxTokens == 0 {
			counted.Store(r.Node.ID(), true)
		}
		return usage, err
	})
	s.release(`, "steps": [99], "minSamples": 1000`)
	for range 10 {
		a := s.complete(`"prompt": "one two", "max_tokens": 10, "context_length_exceeded_behavior": "error"`)
		require.Equal(t, 200, a.status, "%s", a.body)
	}
	_, stable := counted.Load("n1")
	_, candidate := counted.Load("n2")
	require.True(t, stable)
	require.False(t, candidate)
}

// TestChoicesAreMeteredByDeployment checks that the usage of choices of one request is recorded for the
// deployments that generated them: the candidate fails for every second choice.
func TestChoicesAreMeteredByDeployment(t *testing.T) {
	s := newReleaseHarness(t, &model{}, &model{})
	s.replicas.responding(func(ctx context.Context, r domain.Replica, req engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		if r.Node.ID() == "n2" && *req.Seed%2 == 1 {
			return engines.Usage{}, domain.Errorf(domain.InvalidArgument, "no odd seeds")
		}
		return echo(ctx, r, req, emit)
	})
	s.release(`, "steps": [99], "minSamples": 1000`)
	a := s.complete(`"prompt": "one two", "n": 4, "seed": 2`)
	require.Equal(t, 200, a.status, "%s", a.body)
	records := map[domain.Name]metering.Record{}
	for _, one := range s.meter.taken(t) {
		records[one.Deployment] = one
	}
	require.Len(t, records, 2)
	stable, candidate := records["accounts/acme/deployments/d1"], records["accounts/acme/deployments/d2"]
	require.Equal(t, []int{0, 4}, []int{stable.PromptTokens, stable.CompletionTokens})
	require.Equal(t, []int{2, 4}, []int{candidate.PromptTokens, candidate.CompletionTokens})
	require.True(t, stable.Complete && candidate.Complete)
	usage := a.json(t)["usage"].(map[string]any)
	require.EqualValues(t, 2, usage["prompt_tokens"])
	require.EqualValues(t, 8, usage["completion_tokens"])
}
