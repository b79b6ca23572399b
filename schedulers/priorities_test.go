package schedulers_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/schedulers"
)

// TestPrioritiesOrderTheJobsOfAnAccount checks that a job of high priority starts before older jobs
// of its account, that its place says so, and that it does not start before the job of another
// account.
func TestPrioritiesOrderTheJobsOfAnAccount(t *testing.T) {
	s := begin(t, node("n1", domain.PoolTraining, 1, nil))
	s.neighbor()
	s.pending(1, "running")
	s.planJobs()
	other := s.pendingOther("other")
	s.pending(1, "low", "normal", "high")
	s.given(onJob("low", domain.SetJobPriority{Priority: domain.PriorityLow}),
		onJob("high", domain.SetJobPriority{Priority: domain.PriorityHigh}))
	s.planJobs()
	place := new(schedulers.Places).Places(s.world.View(), s.now)
	for i, name := range []domain.Name{other, jobName("high"), jobName("normal"), jobName("low")} {
		position, length, ok := place(name)
		require.True(t, ok, name)
		require.Equal(t, []int{i + 1, 4}, []int{position, length}, name)
	}
	s.do(onJob("running", domain.CompleteJob{Attempt: 1}))
	s.planJobs()
	row, _ := s.world.View().Job(other)
	require.True(t, row.State.Life().Active())
	s.do(domain.IntendJob(other, domain.CompleteJob{Attempt: 1}))
	for _, id := range []string{"high", "normal", "low"} {
		s.planJobs()
		require.True(t, s.lifeOf(id).Active(), "%s is next", id)
		s.do(onJob(id, domain.CompleteJob{Attempt: 1}))
	}
}

// TestAHighJobDoesNotGiveWayToItsAccount checks that a job that is due preempts a long one of its
// account, unless that has a higher priority.
func TestAHighJobDoesNotGiveWayToItsAccount(t *testing.T) {
	for priority, gives := range map[domain.JobPriority]bool{domain.PriorityLow: true, domain.PriorityNormal: true,
		domain.PriorityHigh: false} {
		s := begin(t, node("n1", domain.PoolTraining, 1, nil))
		s.pending(1, "running")
		s.given(onJob("running", domain.SetJobPriority{Priority: priority}))
		s.planJobs()
		s.advance(20 * time.Minute)
		s.pending(1, "due")
		s.advance(11 * time.Minute)
		s.planJobs()
		require.Equal(t, gives, s.lifeOf("running").Stopping(), priority)
	}
}
