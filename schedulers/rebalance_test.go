package schedulers_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/schedulers"
)

// homes returns the nodes of a deployment's replicas, sorted.
func (s *harness) homes(id string) (nodes []string) {
	row, _ := s.world.View().Deployments.Get(deploymentName(id))
	for _, r := range row.State.Ordered() {
		nodes = append(nodes, r.Node.ID())
	}
	slices.Sort(nodes)
	return nodes
}

// TestReplicasSpreadAgain checks that two replicas on one node, since the other node was lost, are
// on two nodes again after it has returned: one replica moves, and is removed only when its
// replacement is ready.
func TestReplicasSpreadAgain(t *testing.T) {
	s := begin(t, node("n1", domain.PoolInference, 4, nil), node("n2", domain.PoolInference, 4, nil),
		deployment("d1", 2, 2, nil))
	s.serve("d1", "r1", "r2")
	require.Equal(t, []string{"n1", "n2"}, s.homes("d1"))
	s.given(onNode("n2", domain.LoseNode{Reason: "silent"}))
	s.execute(schedulers.Replicas{}, schedulers.Replicas{})
	s.report("d1", "r3", "n1", domain.ReplicaReady)
	require.Equal(t, []string{"n1", "n1"}, s.homes("d1"))
	s.advance(time.Hour)

	s.comment("the node returns, and stays for a while")
	s.given(node("n2", domain.PoolInference, 4, nil))
	s.execute(schedulers.Replicas{})
	require.Equal(t, []string{"n1", "n1"}, s.homes("d1"), "the node may be lost again")
	s.advance(schedulers.RebalanceAfter)
	s.execute(schedulers.Replicas{})
	require.Equal(t, []string{"n1", "n1", "n2"}, s.homes("d1"))
	for _, state := range []string{domain.ReplicaInitializing, domain.ReplicaReady} {
		s.execute(schedulers.Replicas{})
		row, _ := s.world.View().Deployments.Get(deploymentName("d1"))
		require.Equal(t, 2, row.State.ReadyReplicas(), "both replicas serve until the new one is ready")
		require.Equal(t, domain.DeploymentReadyState, row.State.State)
		s.report("d1", "r4", "n2", state)
	}
	s.execute(schedulers.Replicas{})
	row, _ := s.world.View().Deployments.Get(deploymentName("d1"))
	require.Equal(t, 2, row.State.ReadyReplicas())
	require.Equal(t, []string{"n1", "n2"}, s.homes("d1"))

	s.comment("nothing else moves")
	s.execute(schedulers.Allocations{})
	for range 5 {
		s.advance(time.Hour)
		require.Empty(t, s.plan(schedulers.Replicas{}).Steps)
	}
	s.compare("replicas_rebalanced")
}

// TestMovesAreLimited checks that one replica moves at a time and one in RebalanceEvery, that each
// move spreads the replicas more, and that moves come to an end.
func TestMovesAreLimited(t *testing.T) {
	const deployments = 4
	s := begin(t, node("n1", domain.PoolInference, 8, nil))
	for i := range deployments {
		s.given(deployment(fmt.Sprintf("d%d", i), 3, 3, nil))
	}
	s.runPlans()
	s.given(node("n2", domain.PoolInference, 8, nil), node("n3", domain.PoolInference, 8, nil))
	s.advance(schedulers.RebalanceAfter)
	var moves []time.Time
	shared := func() (n int) {
		for i := range deployments {
			homes := s.homes(fmt.Sprintf("d%d", i))
			n += len(homes) - len(slices.Compact(homes))
		}
		return n
	}
	for last := shared(); len(moves) < 2*deployments; s.now = s.now.Add(10 * time.Second) {
		require.Less(t, s.now.Sub(noon), time.Hour, "%d moves", len(moves))
		steps := s.plan(schedulers.Replicas{}).Steps
		require.LessOrEqual(t, len(steps), 1)
		if len(steps) == 0 {
			continue
		}
		moves = append(moves, s.now)
		s.runPlans()
		require.Less(t, shared(), last, "the move does not spread replicas")
		last = shared()
	}
	for i := range moves[1:] {
		require.GreaterOrEqual(t, moves[i+1].Sub(moves[i]), schedulers.RebalanceEvery)
	}
	require.Zero(t, shared())
	s.advance(time.Hour)
	require.Empty(t, s.plan(schedulers.Replicas{}).Steps)
}

// TestNothingMovesWhere checks the situations in which no replica moves, and that one moves
// otherwise.
func TestNothingMovesWhere(t *testing.T) {
	devices := func(n int) map[string]int { return map[string]int{l4: n} }
	packed := func(d *domain.DeploymentSpec) {
		onL4(d)
		d.PlacementStrategy = domain.PlacementPack
	}
	for name, c := range map[string]struct {
		edit  func(d *domain.DeploymentSpec)
		n1    map[string]int // accelerators
		then  func(s *harness)
		moves bool
	}{
		"none of them": {nil, nil, func(s *harness) {
			s.given(node("n2", "", 40, nil))
		}, true},
		"no accelerators would be fragmented": {onL4, devices(4), func(s *harness) {
			s.given(node("n2", "", 40, devices(1)))
		}, true},
		"accelerators would be fragmented": {onL4, devices(2), func(s *harness) {
			s.given(node("n2", "", 40, devices(4)))
		}, false},
		"the deployment packs its replicas": {packed, devices(4), func(s *harness) {
			s.given(node("n2", "", 40, devices(1)))
		}, false},
		"the node is cordoned": {nil, nil, func(s *harness) {
			s.given(node("n2", "", 40, nil), onNode("n2", domain.CordonNode{Reason: "new driver"}))
		}, false},
		"a job waits": {nil, nil, func(s *harness) {
			s.given(node("n2", "", 40, nil))
			s.pending(3, "j1")
			s.execute(schedulers.Jobs{})
			require.True(t, s.lifeOf("j1").HeldForCapacity())
		}, false},
		"another deployment waits": {nil, nil, func(s *harness) {
			s.given(node("n2", "", 40, nil), deployment("d2", 1, 1, onL4))
		}, false},
		"the deployment is rolled out": {onL4, devices(4), func(s *harness) {
			s.given(node("n2", "", 40, devices(1)))
			s.rollOut("d1")
		}, false},
		"another replica moves": {nil, nil, func(s *harness) {
			s.given(deployment("d2", 2, 2, nil))
			s.runPlans()
			s.given(node("n2", "", 40, nil))
			s.advance(schedulers.RebalanceAfter)
			s.execute(schedulers.Replicas{})
			require.Equal(t, []string{"n1", "n1", "n2"}, s.homes("d1"))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t, node("n1", "", 40, c.n1), deployment("d1", 2, 2, c.edit))
			s.runPlans()
			require.Equal(t, []string{"n1", "n1"}, s.homes("d1"))
			c.then(s)
			s.advance(time.Hour)
			moves := false
			for _, step := range s.plan(schedulers.Replicas{PlaceWithin: 24 * time.Hour}).Steps {
				moves = moves || strings.Contains(step.String(), "shares node")
			}
			require.Equal(t, c.moves, moves)
		})
	}
}

// TestAMoveThatFails checks that a replica stays when the one that replaces it fails or its node is
// lost.
func TestAMoveThatFails(t *testing.T) {
	for name, fail := range map[string]func(s *harness){
		"the new replica fails": func(s *harness) {
			s.given(onDeployment("d1", domain.RemoveReplica{ID: "r3", Reason: "out of memory", Failed: true}))
		},
		"the new node is lost": func(s *harness) {
			s.given(onNode("n2", domain.LoseNode{Reason: "silent"}))
		},
		"the new node is drained": func(s *harness) {
			s.given(onNode("n2", domain.DrainNode{Reason: "new driver", Within: time.Minute}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t, node("n1", domain.PoolInference, 4, nil), deployment("d1", 2, 2, nil))
			s.runPlans()
			s.given(node("n2", domain.PoolInference, 4, nil))
			s.advance(schedulers.RebalanceAfter)
			s.execute(schedulers.Replicas{})
			require.Equal(t, []string{"r1", "r2", "r3"}, s.placed("d1"))
			fail(s)
			for range 3 {
				s.execute(schedulers.Replicas{}, schedulers.Allocations{})
			}
			require.Equal(t, []string{"r1", "r2"}, s.placed("d1"), "the move is not repeated at once")
			row, _ := s.world.View().Deployments.Get(deploymentName("d1"))
			require.Equal(t, 2, row.State.ReadyReplicas())
			for range 3 {
				s.advance(time.Hour)
				require.Empty(t, s.plan(schedulers.Replicas{}).Steps, "the move is not repeated")
			}
		})
	}
}
