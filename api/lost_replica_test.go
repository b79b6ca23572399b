package api

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/engines"
	"anneal/projections/live"
)

// deployOn creates the deployment d1 with one ready replica on each of the nodes.
func (s *harness) deployOn(nodes ...string) domain.Name {
	s.Helper()
	name, n := domain.NewName("acme", domain.Deployments.Collection, "d1"), len(nodes)
	s.deployment(name, domain.CreateDeployment{DeploymentSpec: domain.DeploymentSpec{
		BaseModel: "accounts/default/models/anneal-base", MinReplicaCount: n, MaxReplicaCount: &n}, Operator: true})
	for _, node := range nodes {
		s.placeOn(name, node)
	}
	s.deployment(name, domain.MarkDeploymentReady{Generation: 1})
	return name
}

func (s *harness) placeOn(name domain.Name, node string) {
	s.Helper()
	id, on := mustRow(s, name).NextReplica(), domain.NewName(domain.System, domain.Nodes.Collection, node)
	s.deployment(name, domain.PlaceReplica{ID: id, Node: on, Generation: 1})
	s.deployment(name, domain.AdvanceReplica{ID: id, State: domain.ReplicaReady, Node: on})
}

// A dyingReplica makes the requests to the replica on one node fail.
type dyingReplica struct {
	node   string
	reason string // reason of the error; "" means an error of the engine
	chunks int    // chunks that are emitted before the error
	code   domain.Code

	mu   sync.Mutex
	runs int // requests to the node
}

// die makes all requests to one node fail: to d.node or, if that is empty, to the first node that gets
// a request.
func (s *harness) die(d *dyingReplica) {
	s.replicas.responding(func(ctx context.Context, r domain.Replica, req engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		d.mu.Lock()
		if d.node == "" {
			d.node = r.Node.ID()
		}
		fails := d.node == r.Node.ID()
		if fails {
			d.runs++
		}
		d.mu.Unlock()
		if !fails {
			return echo(ctx, r, req, emit)
		}
		for i := range d.chunks {
			if err := emit(engines.Chunk{Text: fmt.Sprint("lost", i, " "), Tokens: []int{i}}); err != nil {
				return engines.Usage{}, err
			}
		}
		return engines.Usage{PromptTokens: 1000, CompletionTokens: 1000},
			&domain.Error{Code: d.code, Reason: d.reason, Message: "the replica died"}
	})
}

// TestReplicaDies checks what becomes of a request whose replica dies at each point: another replica
// generates the response as long as no part of it was sent to the client, the dead replica gets no
// further request, and the usage is counted once.
func TestReplicaDies(t *testing.T) {
	for name, one := range map[string]struct {
		dying   *dyingReplica
		stream  bool
		status  int
		records int
	}{
		"before it accepts":              {&dyingReplica{reason: engines.ReplicaUnreachable}, true, 200, 1},
		"when it was removed":            {&dyingReplica{reason: engines.ReplicaGone}, true, 200, 1},
		"before the first token":         {&dyingReplica{reason: engines.ReplicaLost}, true, 200, 1},
		"before the first token, whole":  {&dyingReplica{reason: engines.ReplicaLost}, false, 200, 1},
		"after the first token":          {&dyingReplica{reason: engines.ReplicaLost, chunks: 2}, true, 0, 1},
		"after the first token, whole":   {&dyingReplica{reason: engines.ReplicaLost, chunks: 2}, false, 200, 1},
		"its engine fails":               {&dyingReplica{code: domain.Internal}, false, 500, 0},
		"its engine ends in a response":  {&dyingReplica{chunks: 1}, false, 503, 1},
		"its engine rejects the request": {&dyingReplica{}, false, 200, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newHarness(t, request.Limits{})
			meter := &usageRecorder{}
			s.server.inference.Router.Meter = meter
			s.deployOn("n1", "n2")
			dying := one.dying
			if dying.code == 0 {
				dying.code = domain.Unavailable
			}
			s.die(dying)
			a := s.complete(fmt.Sprintf(`"prompt": "one two", "stream": %t`, one.stream))
			switch {
			case one.status == 0:
				require.Contains(t, string(a.body), "lost0")
				require.Contains(t, string(a.body), "the replica died")
				require.NotContains(t, string(a.body), "[DONE]")
			case one.status != 200:
				require.Equal(t, one.status, a.status, "%s", a.body)
			case one.stream:
				require.Len(t, chunks(t, string(a.body)), 3)
				require.NotContains(t, string(a.body), "lost")
			default:
				require.Equal(t, "one two ", textOf(t, a))
				require.EqualValues(t, 2, a.json(t)["usage"].(map[string]any)["completion_tokens"])
			}
			records := meter.taken(t)
			require.Len(t, records, one.records)
			if one.status == 200 {
				require.True(t, records[0].Complete)
				require.Equal(t, 2, records[0].PromptTokens)
				require.Equal(t, 2, records[0].CompletionTokens)
			}
			require.Equal(t, 1, dying.runs)
			if dying.reason == "" {
				return
			}
			for range 3 {
				require.Equal(t, "one two ", textOf(t, s.complete(`"prompt": "one two"`)))
			}
			require.Equal(t, 1, dying.runs, "an unreachable replica gets no requests")
		})
	}
}

// TestUnreachableReplicaReturns checks that a replica is chosen again once a heartbeat lists it.
func TestUnreachableReplicaReturns(t *testing.T) {
	s := newHarness(t, request.Limits{})
	name := s.deployOn("n1")
	dying := &dyingReplica{reason: engines.ReplicaUnreachable, code: domain.Unavailable}
	s.die(dying)
	answered := make(chan response)
	go func() { answered <- s.complete(`"prompt": "one two"`) }()
	require.Eventually(t, func() bool { return len(s.replicas.requestIDs()) == 1 }, patience, time.Millisecond)
	s.replicas.responding(nil)
	s.world.Live().Load(name, s.replicas.requestIDs()[0], live.ReplicaLoad{Ready: true, Slots: 8,
		Node: "accounts/system/nodes/n1", Time: s.clock.tick().Add(time.Second)})
	require.Equal(t, "one two ", textOf(t, <-answered))
	require.Len(t, s.replicas.requestIDs(), 2)
}

// TestUnreachableReplicaIsNotReady checks that a dead replica counts as ready in no response, from the
// request that finds it until a heartbeat lists it again.
func TestUnreachableReplicaIsNotReady(t *testing.T) {
	s := newHarness(t, request.Limits{})
	name := s.deployOn("n1", "n2")
	stats := func() (ready, all float64, message string) {
		d := s.ok("GET", acme+"/deployments/d1", "").json(t)
		listed := s.ok("GET", acme+"/deployments", "").json(t)["deployments"].([]any)[0].(map[string]any)
		require.Equal(t, d["replicaStats"], listed["replicaStats"])
		message, _ = d["status"].(map[string]any)["message"].(string)
		return d["replicaStats"].(map[string]any)["readyReplicaCount"].(float64), d["replicaCount"].(float64), message
	}
	requireStats := func(ready, all float64, part string) {
		t.Helper()
		gotReady, gotAll, message := stats()
		require.Equal(t, [2]float64{ready, all}, [2]float64{gotReady, gotAll}, message)
		require.Contains(t, message, part)
	}
	requireStats(2, 2, "")
	s.die(&dyingReplica{node: "n1", reason: engines.ReplicaUnreachable, code: domain.Unavailable})
	for range 3 {
		require.Equal(t, "one two ", textOf(t, s.complete(`"prompt": "one two"`)))
	}
	requireStats(1, 2, "1 of 2 replicas cannot be reached")
	for id, r := range mustRow(s, name).Replicas {
		s.world.Live().Load(name, id, live.ReplicaLoad{Ready: true, Slots: 8, Node: r.Node,
			Time: s.clock.tick().Add(time.Second)})
	}
	requireStats(2, 2, "")
}

// TestRequestWaitsForReplacement checks that a request whose only replica is dead waits until the
// replica is replaced, and fails when Limits.Wake has passed.
func TestRequestWaitsForReplacement(t *testing.T) {
	s := newHarness(t, request.Limits{})
	name := s.deployOn("n1")
	s.die(&dyingReplica{node: "n1", reason: engines.ReplicaUnreachable, code: domain.Unavailable})
	answered := make(chan response)
	go func() { answered <- s.complete(`"prompt": "one two"`) }()
	require.Eventually(t, func() bool { return len(s.replicas.requestIDs()) == 1 }, patience, time.Millisecond)
	s.deployment(name, domain.RemoveReplica{ID: s.replicas.requestIDs()[0], Reason: "node n1 was lost"})
	s.placeOn(name, "n2")
	require.Equal(t, "one two ", textOf(t, <-answered))

	s = newHarness(t, request.Limits{Wake: 20 * time.Millisecond})
	s.deployOn("n1")
	s.die(&dyingReplica{node: "n1", reason: engines.ReplicaUnreachable, code: domain.Unavailable})
	a := s.complete(`"prompt": "one two"`)
	require.Equal(t, 503, a.status)
	require.NotEmpty(t, a.header.Get("Retry-After"))
	require.Contains(t, string(a.body), "1 of its 1 replicas cannot be reached")
}

// TestRequestThatEndsNodesIsNotRepeatedForever checks that a request during which maxAttempts nodes
// were lost fails.
func TestRequestThatEndsNodesIsNotRepeatedForever(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.deployOn("n1", "n2", "n3", "n4", "n5")
	s.replicas.responding(func(context.Context, domain.Replica, engines.CompletionRequest,
		func(engines.Chunk) error) (engines.Usage, error) {
		return engines.Usage{}, &domain.Error{Code: domain.Unavailable, Reason: engines.ReplicaLost, Message: "it died"}
	})
	a := s.complete(`"prompt": "one two"`)
	require.Equal(t, 503, a.status)
	require.Contains(t, string(a.body), "it died")
	require.Len(t, s.replicas.requestIDs(), 3)
}
