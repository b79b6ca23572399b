package schedulers_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/schedulers"
)

// TestCordonedNodesGetNoWork checks that no attempt, gang or replica is placed on a cordoned node,
// and that the work on it continues.
func TestCordonedNodesGetNoWork(t *testing.T) {
	s := begin(t, node("n1", "", 4, nil), node("n2", "", 4, nil))
	s.given(onNode("n1", domain.CordonNode{Reason: "new driver"}))
	s.pending(1, "single")
	s.pending(2, "gang")
	s.given(deployment("d1", 1, 1, nil))
	s.execute(schedulers.Jobs{}, schedulers.Replicas{})
	s.comment("the work on n2 continues")
	s.given(onNode("n2", domain.CordonNode{Reason: "new driver"}))
	s.execute(schedulers.Replicas{}, schedulers.Drain{})
	s.comment("the gang starts once both nodes are uncordoned")
	s.given(onNode("n1", domain.UncordonNode{}))
	s.execute(schedulers.Jobs{})
	s.given(onNode("n2", domain.UncordonNode{}))
	s.execute(schedulers.Jobs{})
	s.compare("nodes_cordoned")
}

// TestNodesAreDrained checks that jobs save a checkpoint and move, that a replica moves when its
// replacement is ready, and that the node is then DRAINED.
func TestNodesAreDrained(t *testing.T) {
	s := begin(t, node("n1", "", 4, nil))
	s.pending(1, "single")
	s.given(deployment("d1", 1, 1, nil))
	s.serve("d1", "r1")
	s.given(onNode("n1", domain.DrainNode{Reason: "new driver", Within: time.Minute}))
	s.comment("without another node, the replica stays until the deadline")
	s.execute(schedulers.Replicas{}, schedulers.Drain{}, schedulers.Drain{})
	s.given(node("n2", "", 4, nil))
	s.execute(schedulers.Replicas{})
	s.comment("the attempt has saved its checkpoint")
	s.given(onJob("single", s.jobLife("single").ConfirmStop(1)))
	s.execute(schedulers.Jobs{}, schedulers.Jobs{})
	require.Zero(t, s.jobLife("single").Failures, "a drain is not a failure")
	s.execute(schedulers.Replicas{})
	s.report("d1", "r2", "n2", domain.ReplicaReady)
	s.execute(schedulers.Replicas{}, schedulers.Drain{}, schedulers.Allocations{}, schedulers.Drain{}, schedulers.Drain{})
	s.compare("nodes_drained")
}

// TestDrainStopsAtItsDeadline checks that what is left at the deadline is stopped: an attempt that
// is still saving, one that is being cancelled, and a replica without a place elsewhere.
func TestDrainStopsAtItsDeadline(t *testing.T) {
	s := begin(t, node("n1", "", 8, nil))
	s.pending(1, "saving", "cancelled")
	s.given(deployment("d1", 1, 1, nil))
	s.serve("d1", "r1")
	s.given(onJob("cancelled", domain.CancelJob{}))
	s.given(onNode("n1", domain.DrainNode{Reason: "new driver", Within: time.Minute}))
	s.execute(schedulers.Drain{})
	s.advance(time.Minute)
	s.execute(schedulers.Drain{}, schedulers.Allocations{}, schedulers.Drain{}, schedulers.Replicas{})
	require.Zero(t, s.jobLife("saving").Failures, "a drain is not a failure")
	s.compare("nodes_drain_deadline")
}

// TestDrainKeepsTheLimitOfReplicas checks that two replicas on a node that is being drained move
// one after the other.
func TestDrainKeepsTheLimitOfReplicas(t *testing.T) {
	s := begin(t, node("n1", domain.PoolInference, 4, nil), deployment("d1", 2, 2, nil))
	s.serve("d1", "r1", "r2")
	s.given(node("n2", domain.PoolInference, 4, nil))
	s.given(onNode("n1", domain.DrainNode{Reason: "new driver", Within: time.Minute}))
	ready := func() int {
		row, _ := s.world.View().Deployments.Get(deploymentName("d1"))
		require.LessOrEqual(t, len(row.State.Replicas), 3)
		return row.State.ReadyReplicas()
	}
	for _, next := range []string{"r3", "r4"} {
		s.execute(schedulers.Replicas{})
		require.Equal(t, 2, ready())
		s.report("d1", next, "n2", domain.ReplicaReady)
	}
	s.execute(schedulers.Replicas{})
	require.Equal(t, 2, ready())
	s.execute(schedulers.Allocations{}, schedulers.Drain{})
	s.compare("nodes_drained_one_by_one")
}

// TestDrainWaitsForCheckpointsUntilItsDeadline checks that an attempt that leaves a node may save
// its checkpoint until the deadline of the drain, also if that takes longer than a cancellation
// may.
func TestDrainWaitsForCheckpointsUntilItsDeadline(t *testing.T) {
	const within = 2 * schedulers.CancelWithin
	s := begin(t, node("n1", "", 4, nil))
	s.pending(1, "slow")
	s.execute(schedulers.Jobs{})
	s.given(onNode("n1", domain.DrainNode{Reason: "new driver", Within: within}))
	s.execute(schedulers.Drain{})
	s.advance(schedulers.CancelWithin)
	plan := s.plan(schedulers.Jobs{})
	require.Empty(t, plan.Steps)
	require.Equal(t, s.now.Add(within-schedulers.CancelWithin), plan.Again)
	s.advance(within - schedulers.CancelWithin)
	s.execute(schedulers.Drain{})
	require.Equal(t, domain.JobReQueueingState, s.jobLife("slow").State)
	require.Zero(t, s.jobLife("slow").Failures)
}

// TestDrainKeepsReplicasRevocable checks that a drain moves revocable replicas only into capacity
// that no other work needs, and moves all of them if there is enough.
func TestDrainKeepsReplicasRevocable(t *testing.T) {
	s := begin(t, node("n1", "", 40, map[string]int{l4: 2}))
	s.lend("d1", 2)
	s.given(node("n2", "", 40, map[string]int{l4: 2}))
	s.given(onNode("n1", domain.DrainNode{Reason: "new driver", Within: time.Minute}))
	s.execute(schedulers.Replicas{})
	require.Equal(t, []string{"r1", "r2", "r3"}, s.placed("d1"))
	s.report("d1", "r3", "n2", domain.ReplicaReady)
	s.given(deployment("d2", 1, 1, onL4))
	s.execute(schedulers.Replicas{})
	require.Equal(t, []string{"r1"}, s.placed("d2"), "a replica within its maximum is placed first")
	require.Equal(t, []string{"r1", "r3"}, s.placed("d1"))

	s.given(node("n3", "", 40, map[string]int{l4: 1}))
	s.runPlans()
	require.Equal(t, []string{"r3", "r4"}, s.placed("d1"))
	s.execute(schedulers.Drain{})
	row, _ := s.world.View().Nodes.Get(nodeName("n1"))
	require.Equal(t, domain.NodeDrainedState, row.State.Scheduling())
}
