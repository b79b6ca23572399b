package schedulers_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/schedulers"
)

// settle executes the plans of the schedulers until they propose nothing, and fails if that takes
// more than ten rounds. Replicas become ready between rounds.
func (s *harness) settle() {
	s.t.Helper()
	for range 10 {
		before := s.world.Position()
		for _, scheduler := range []schedulers.Scheduler{schedulers.Jobs{}, schedulers.Replicas{},
			schedulers.Allocations{}} {
			s.execute(scheduler)
		}
		for row := range s.world.View().Deployments.All() {
			for _, r := range row.State.Ordered() {
				s.do(domain.Intend(domain.Deployments, row.Name, domain.Command[domain.Deployment](domain.AdvanceReplica{
					ID: r.ID, Node: r.Node, State: domain.ReplicaReady})))
			}
		}
		if s.world.Position() == before {
			return
		}
	}
	s.t.Fatalf("the schedulers do not come to rest:\n%s", s.transcript.String())
}

// placed returns the IDs of a deployment's replicas.
func (s *harness) placed(id string) (ids []string) {
	row, _ := s.world.View().Deployments.Get(deploymentName(id))
	for _, r := range row.State.Ordered() {
		ids = append(ids, r.ID)
	}
	return ids
}

// onL4 makes each replica take one L4.
func onL4(d *domain.DeploymentSpec) { d.AcceleratorType, d.AcceleratorCount = "VENDOR_A_L4_24GB", 1 }

// TestRevocableReplicasGiveWay checks that replicas above maxReplicaCount take only free capacity,
// and that no more of them are revoked than a job, or a replica within maxReplicaCount, needs.
func TestRevocableReplicasGiveWay(t *testing.T) {
	s := newHarness(t)
	s.prerequisites()
	s.given(node("n1", "", 40, map[string]int{"VENDOR_A_L4_24GB": 4}))
	s.given(deployment("d1", 1, 1, func(d *domain.DeploymentSpec) {
		onL4(d)
		d.MaxWithRevocableReplicaCount = 6
	}))
	s.settle()
	s.given(onDeployment("d1", domain.ScaleDeployment{Replicas: 6, Reason: "scaled by its user"}))
	s.settle()
	require.Equal(t, []string{"r1", "r2", "r3", "r4"}, s.placed("d1"), "four fit")

	s.comment("another deployment needs room: the newest replica gives way")
	s.given(deployment("d2", 1, 1, onL4))
	s.settle()
	require.Equal(t, []string{"r1", "r2", "r3"}, s.placed("d1"))
	require.Equal(t, []string{"r1"}, s.placed("d2"))

	s.comment("a job needs room")
	s.pending(1, "j1")
	s.settle()
	row, ok := s.world.View().Job(jobName("j1"))
	require.True(t, ok)
	require.True(t, row.State.Life().Active(), "the job waits: %s", row.State.Life().Status.Message)
	require.Equal(t, []string{"r1", "r2"}, s.placed("d1"))

	s.comment("a replica within the maximum never gives way, and in vain none does")
	s.given(deployment("d3", 1, 1, func(d *domain.DeploymentSpec) {
		onL4(d)
		d.AcceleratorCount = 4
	}))
	s.settle()
	require.Equal(t, []string{"r1", "r2"}, s.placed("d1"))
	require.Empty(t, s.placed("d3"))

	s.comment("the room is free again")
	s.given(onDeployment("d3", domain.DeleteDeployment{IgnoreChecks: true}),
		onDeployment("d2", domain.DeleteDeployment{IgnoreChecks: true}))
	s.settle()
	require.Equal(t, []string{"r1", "r2", "r5"}, s.placed("d1"))
	s.compare("revocable")
}

// TestRevocableReplicasAreRolledOut checks that a rollout replaces revocable replicas too, and that
// the deployment does not change after that.
func TestRevocableReplicasAreRolledOut(t *testing.T) {
	s := newHarness(t)
	s.prerequisites()
	s.do(node("n1", "", 40, map[string]int{"VENDOR_A_L4_24GB": 4}))
	spec := func(d *domain.DeploymentSpec) {
		onL4(d)
		d.MaxWithRevocableReplicaCount = 3
	}
	s.do(deployment("d1", 1, 1, spec))
	s.settle()
	s.do(onDeployment("d1", domain.ScaleDeployment{Replicas: 3, Reason: "scaled by its user"}))
	s.settle()
	row, _ := s.world.View().Deployments.Get(deploymentName("d1"))
	changed := row.State.DeploymentSpec
	changed.MaxContextLength = 512
	s.do(onDeployment("d1", domain.UpdateDeployment{DeploymentSpec: changed}))
	s.settle()
	row, _ = s.world.View().Deployments.Get(deploymentName("d1"))
	require.Equal(t, domain.DeploymentReadyState, row.State.State)
	require.Equal(t, 3, row.State.Current())
}

// TestOneReplicaIsRevokedForOneNeed checks that no second replica is revoked before the allocation
// of the first one is released.
func TestOneReplicaIsRevokedForOneNeed(t *testing.T) {
	s := newHarness(t)
	s.prerequisites()
	s.do(node("n1", "", 40, map[string]int{"VENDOR_A_L4_24GB": 4}))
	s.do(deployment("d1", 1, 1, func(d *domain.DeploymentSpec) {
		onL4(d)
		d.MaxWithRevocableReplicaCount = 4
	}))
	s.settle()
	s.do(onDeployment("d1", domain.ScaleDeployment{Replicas: 4, Reason: "scaled by its user"}))
	s.settle()
	require.Equal(t, []string{"r1", "r2", "r3", "r4"}, s.placed("d1"))
	s.do(deployment("d2", 1, 1, onL4))
	for range 3 {
		s.execute(schedulers.Replicas{})
	}
	require.Equal(t, []string{"r1", "r2", "r3"}, s.placed("d1"))
	require.Empty(t, s.placed("d2"), "the allocation is not released")
	s.settle()
	require.Equal(t, []string{"r1", "r2", "r3"}, s.placed("d1"))
	require.Equal(t, []string{"r1"}, s.placed("d2"))
}
