package schedulers_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/schedulers"
)

// The methods in this file build the states in which tests of replicas begin.

const l4 = "VENDOR_A_L4_24GB"

// onL4 makes each replica take one L4.
func onL4(d *domain.DeploymentSpec) { d.AcceleratorType, d.AcceleratorCount = l4, 1 }

// begin returns a harness with the prerequisites, in which the intents are given.
func begin(t *testing.T, intents ...domain.Intent) *harness {
	t.Helper()
	s := newHarnessWithInputs(t)
	s.given(intents...)
	return s
}

// report records the state of a replica, as its node reports it.
func (s *harness) report(id, replica, node, state string) {
	s.t.Helper()
	s.given(onDeployment(id, domain.AdvanceReplica{ID: replica, Node: nodeName(node), State: state}))
}

// serve places the replicas of a deployment and the jobs that wait, and reports the replicas as
// ready.
func (s *harness) serve(id string, replicas ...string) {
	s.t.Helper()
	s.execute(schedulers.Jobs{}, schedulers.Replicas{})
	row, _ := s.world.View().Deployments.Get(deploymentName(id))
	for _, replica := range replicas {
		s.report(id, replica, row.State.Replicas[replica].Node.ID(), domain.ReplicaReady)
	}
	s.execute(schedulers.Replicas{})
}

// lend creates a deployment that is scaled to the given number of replicas, each of which takes one
// L4. One replica is within its maximum, and the others are revocable.
func (s *harness) lend(id string, replicas int) {
	s.t.Helper()
	s.given(deployment(id, 1, 1, func(d *domain.DeploymentSpec) {
		onL4(d)
		d.MaxWithRevocableReplicaCount = replicas
	}))
	s.runPlans()
	s.given(onDeployment(id, domain.ScaleDeployment{Replicas: replicas, Reason: "scaled by its user"}))
	s.runPlans()
}

// rollOut changes the settings of a deployment.
func (s *harness) rollOut(id string) {
	s.t.Helper()
	row, _ := s.world.View().Deployments.Get(deploymentName(id))
	changed := row.State.DeploymentSpec
	changed.MaxContextLength = 512
	s.given(onDeployment(id, domain.UpdateDeployment{DeploymentSpec: changed}))
}

// runPlans executes the plans of the schedulers until they propose nothing, and fails if that takes
// more than ten rounds. Replicas become ready between rounds.
func (s *harness) runPlans() {
	s.t.Helper()
	for range 10 {
		before := s.world.Position()
		for _, scheduler := range []schedulers.Scheduler{schedulers.Jobs{}, schedulers.Replicas{},
			schedulers.Allocations{}} {
			s.execute(scheduler)
		}
		for row := range s.world.View().Deployments.All() {
			for _, r := range row.State.Ordered() {
				s.do(domain.Intend(domain.Deployments, row.Name, domain.AdvanceReplica{ID: r.ID, Node: r.Node,
					State: domain.ReplicaReady}))
			}
		}
		if s.world.Position() == before {
			return
		}
	}
	s.t.Fatalf("the schedulers still record events after ten rounds:\n%s", s.transcript.String())
}

// placed returns the IDs of a deployment's replicas.
func (s *harness) placed(id string) (ids []string) {
	row, _ := s.world.View().Deployments.Get(deploymentName(id))
	for _, r := range row.State.Ordered() {
		ids = append(ids, r.ID)
	}
	return ids
}

func (s *harness) jobLife(id string) domain.JobLife {
	s.t.Helper()
	j, ok := s.world.View().Job(jobName(id))
	require.True(s.t, ok)
	return *j.State.Life()
}
