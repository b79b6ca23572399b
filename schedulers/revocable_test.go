package schedulers_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/schedulers"
)

// TestRevocableReplicasGiveWay checks that replicas above maxReplicaCount take only free capacity,
// and that no more of them are revoked than a job, or a replica within maxReplicaCount, needs.
func TestRevocableReplicasGiveWay(t *testing.T) {
	s := begin(t, node("n1", "", 40, map[string]int{l4: 4}))
	s.lend("d1", 6)
	require.Equal(t, []string{"r1", "r2", "r3", "r4"}, s.placed("d1"), "four fit")

	s.comment("another deployment needs capacity: the newest revocable replica is revoked")
	s.given(deployment("d2", 1, 1, onL4))
	s.runPlans()
	require.Equal(t, []string{"r1", "r2", "r3"}, s.placed("d1"))
	require.Equal(t, []string{"r1"}, s.placed("d2"))

	s.comment("a job needs capacity")
	s.pending(1, "j1")
	s.runPlans()
	row, ok := s.world.View().Job(jobName("j1"))
	require.True(t, ok)
	require.True(t, row.State.Life().Active(), "the job waits: %s", row.State.Life().Status.Message)
	require.Equal(t, []string{"r1", "r2"}, s.placed("d1"))

	s.comment("no replica within the maximum is revoked, and none is revoked if that does not suffice")
	s.given(deployment("d3", 1, 1, func(d *domain.DeploymentSpec) {
		onL4(d)
		d.AcceleratorCount = 4
	}))
	s.runPlans()
	require.Equal(t, []string{"r1", "r2"}, s.placed("d1"))
	require.Empty(t, s.placed("d3"))

	s.comment("the capacity is free again")
	s.given(onDeployment("d3", domain.DeleteDeployment{IgnoreChecks: true}),
		onDeployment("d2", domain.DeleteDeployment{IgnoreChecks: true}))
	s.runPlans()
	require.Equal(t, []string{"r1", "r2", "r5"}, s.placed("d1"))
	s.compare("revocable")
}

// TestRevocableReplicasAreRolledOut checks that a rollout replaces revocable replicas too, and that
// the deployment does not change after that.
func TestRevocableReplicasAreRolledOut(t *testing.T) {
	s := begin(t, node("n1", "", 40, map[string]int{l4: 4}))
	s.lend("d1", 3)
	s.rollOut("d1")
	s.runPlans()
	row, _ := s.world.View().Deployments.Get(deploymentName("d1"))
	require.Equal(t, domain.DeploymentReadyState, row.State.State)
	require.Equal(t, 3, row.State.CurrentReplicas())
}

// TestOneReplicaIsRevokedForOneNeed checks that no second replica is revoked before the allocation
// of the first one is released.
func TestOneReplicaIsRevokedForOneNeed(t *testing.T) {
	s := begin(t, node("n1", "", 40, map[string]int{l4: 4}))
	s.lend("d1", 4)
	require.Equal(t, []string{"r1", "r2", "r3", "r4"}, s.placed("d1"))
	s.do(deployment("d2", 1, 1, onL4))
	for range 3 {
		s.execute(schedulers.Replicas{})
	}
	require.Equal(t, []string{"r1", "r2", "r3"}, s.placed("d1"))
	require.Empty(t, s.placed("d2"), "the allocation is not released")
	s.runPlans()
	require.Equal(t, []string{"r1", "r2", "r3"}, s.placed("d1"))
	require.Equal(t, []string{"r1"}, s.placed("d2"))
}

// TestRolloutTakesOneReplicaAtATime checks that a rollout without capacity for another replica
// revokes one replica of another deployment, and keeps the old replica until the new one is ready.
func TestRolloutTakesOneReplicaAtATime(t *testing.T) {
	s := begin(t, node("n1", "", 40, map[string]int{l4: 3}), deployment("d1", 1, 1, onL4))
	s.runPlans()
	s.lend("d2", 2)
	s.rollOut("d1")
	for range 3 {
		s.execute(schedulers.Replicas{})
		require.Equal(t, []string{"r1"}, s.placed("d1"), "the old replica serves until its replacement is ready")
		require.Equal(t, []string{"r1"}, s.placed("d2"))
	}
	s.runPlans()
	require.Equal(t, []string{"r2"}, s.placed("d1"))
	require.Equal(t, []string{"r1", "r3"}, s.placed("d2"), "the capacity is free again")
}

// TestRolloutRevokesNoneOfItsOwn checks that a rollout without free capacity replaces the revocable
// replicas of its deployment one by one, like the other replicas.
func TestRolloutRevokesNoneOfItsOwn(t *testing.T) {
	s := begin(t, node("n1", "", 40, map[string]int{l4: 4}))
	s.lend("d1", 4)
	s.rollOut("d1")
	for range 3 {
		s.execute(schedulers.Replicas{})
		require.Len(t, s.placed("d1"), 3)
	}
	s.execute(schedulers.Allocations{})
	for range 3 {
		s.execute(schedulers.Replicas{})
		require.Equal(t, []string{"r1", "r2", "r3", "r5"}, s.placed("d1"), "the new replica is starting")
	}
	s.runPlans()
	row, _ := s.world.View().Deployments.Get(deploymentName("d1"))
	require.Equal(t, 4, row.State.CurrentReplicas())
}
