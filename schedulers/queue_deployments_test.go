package schedulers_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/schedulers"
)

// placeOf returns the position of a job or deployment in the queue; 0 if it is in none.
func (s *harness) placeOf(name domain.Name) (position, length int) {
	position, length, _ = new(schedulers.Places).Places(s.world.View(), s.now)(name)
	return position, length
}

// TestDeploymentsHavePlacesInTheQueue checks that deployments that lack replicas have positions
// beside the jobs of their accelerator type, and that what has position 1 gets the capacity that
// becomes free: a replica within a minimum first, of two the one that is missing for longest,
// although its deployment is newer.
func TestDeploymentsHavePlacesInTheQueue(t *testing.T) {
	s := begin(t, node("n1", "", 40, map[string]int{l4: 1}))
	s.pending(1, "running")
	s.round()
	s.given(deployment("old", 0, 1, onL4))
	s.pending(1, "j1")
	s.advance(time.Minute)
	s.given(deployment("new", 1, 1, onL4))
	s.advance(time.Minute)
	s.given(onDeployment("old", domain.ScaleDeployment{Replicas: 1, Reason: "load"}))
	s.advance(time.Minute)
	s.given(deployment("newest", 1, 1, onL4))
	s.round()
	waiting := []domain.Name{deploymentName("new"), deploymentName("newest"), jobName("j1"), deploymentName("old")}
	for left := waiting; len(left) > 0; left = left[1:] {
		for i, name := range left {
			position, length := s.placeOf(name)
			require.Equal(t, i+1, position, "%s of %v", name, left)
			require.Equal(t, len(left), length, name)
		}
		s.free()
		for range 3 {
			s.round()
		}
		for i, name := range left {
			require.Equal(t, i == 0, s.runs(name), "%s of %v", name, left)
		}
	}
	position, _ := s.placeOf(deploymentName("old"))
	require.Zero(t, position, "it does not wait")
}

// free ends what runs.
func (s *harness) free() {
	s.t.Helper()
	for row := range s.world.View().Deployments.All() {
		if len(row.State.Replicas) > 0 {
			s.do(domain.Intend(domain.Deployments, row.Name, domain.DeleteDeployment{IgnoreChecks: true}))
		}
	}
	for _, id := range []string{"running", "j1"} {
		if s.lifeOf(id).Active() {
			s.do(onJob(id, domain.CompleteJob{Attempt: 1}))
		}
	}
}

func (s *harness) runs(name domain.Name) bool {
	s.t.Helper()
	if row, ok := s.world.View().Deployments.Get(name); ok {
		return len(row.State.Replicas) > 0
	}
	return s.lifeOf(name.ID()).Active()
}

// TestWaitsOfDeploymentsAreEstimated checks that the shortages of deployments that end by capacity
// are the history from which later ones are estimated, and that it leaves out those that did not
// wait for capacity.
func TestWaitsOfDeploymentsAreEstimated(t *testing.T) {
	s := begin(t, node("n1", "", 40, map[string]int{l4: 1}))
	longer := func() int {
		_, n := s.world.View().Waits.EstimateReplica(true, 1, 0)
		return n
	}
	s.given(deployment("d0", 1, 1, onL4))
	s.round()
	require.Zero(t, longer(), "there was capacity")
	for i := range 6 {
		next := fmt.Sprintf("d%d", i+1)
		s.given(deployment(next, 1, 1, onL4))
		s.round()
		s.advance(time.Duration(i+1) * time.Minute)
		s.do(onDeployment(fmt.Sprintf("d%d", i), domain.DeleteDeployment{IgnoreChecks: true}))
		for range 3 {
			s.round()
		}
		require.Equal(t, []string{"r1"}, s.placed(next))
		require.Equal(t, i+1, longer())
		estimate, _ := s.world.View().Waits.EstimateReplica(true, 1, 0)
		require.Equal(t, i+1 >= domain.MinWaits, estimate.High > 0)
		if estimate.High > 0 {
			require.InDelta(t, 60*(i+1), estimate.High, 10)
		}
	}
	s.do(onDeployment("d6", domain.RemoveReplica{ID: "r1", Failed: true, Reason: "it crashed"}))
	s.advance(10 * time.Minute)
	s.round()
	require.Equal(t, 6, longer(), "a replica that failed has waited for another attempt")
}
