package schedulers_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/schedulers"
	"anneal/schedulers/queue"
)

// TestWaitsAreEstimated checks that a job that begins to wait for capacity records its situation
// once, with an estimate if enough jobs have waited before. It checks the same after an attempt was
// lost.
func TestWaitsAreEstimated(t *testing.T) {
	s := newHarnessWithInputs(t)
	s.given(node("n1", domain.PoolTraining, 1, nil))
	s.pending(1, "j00")
	s.planJobs()
	for i := range 25 {
		running, next := fmt.Sprintf("j%02d", i), fmt.Sprintf("j%02d", i+1)
		s.pending(1, next)
		s.planJobs()
		wait := s.lifeOf(next).Wait
		require.NotNil(t, wait)
		require.Equal(t, s.now, wait.Time)
		require.Equal(t, i >= 4, wait.Estimate != nil, "with %d waits", i)
		s.advance(time.Duration(i%5+1) * time.Minute)
		s.planJobs()
		require.Equal(t, wait, s.lifeOf(next).Wait, "the wait is recorded once")
		s.do(onJob(running, domain.CompleteJob{Attempt: 1}))
		s.planJobs()
		require.True(t, s.lifeOf(next).Active())
		require.Nil(t, s.lifeOf(next).Wait)
	}
	s.pending(1, "new")
	s.planJobs()
	require.Equal(t, &domain.WaitEstimate{Low: 60, Median: 180, High: 300}, s.lifeOf("new").Wait.Estimate)

	s.advance(time.Minute)
	s.do(onJob("j25", domain.RequeueJob{Attempt: 1, Reason: "node lost"}))
	s.step(schedulers.Jobs{})
	s.planJobs()
	again := "j25"
	if s.lifeOf(again).Active() {
		again = "new"
	}
	require.Equal(t, again == "j25", s.lifeOf(again).Wait.Situation.Again)
}

// TestPlacesAreTheOrderOfStarts checks that jobs with different needs start in the order of the
// positions that the API shows, although no plan computes these positions.
func TestPlacesAreTheOrderOfStarts(t *testing.T) {
	s := newHarnessWithInputs(t)
	s.given(node("n1", domain.PoolTraining, 1, nil))
	s.pending(1, "running")
	s.planJobs()
	s.pending(1, "a", "b", "c", "d", "e")
	s.do(onJob("c", domain.CancelJob{}))
	s.do(onJob("d", domain.HoldJob{For: "another thing"}))
	running := "running"
	for left := 4; left > 0; left-- {
		place := new(schedulers.Places).Places(s.world.View(), s.now)
		first := ""
		for _, id := range []string{"a", "b", "c", "d", "e"} {
			position, length, ok := place(jobName(id))
			waits := s.lifeOf(id).State == domain.JobPendingState && s.lifeOf(id).WaitsFor() != "another thing"
			require.Equal(t, waits, ok, id)
			if position == 1 {
				require.Empty(t, first)
				first = id
			}
			if ok && left < 4 {
				require.Equal(t, left, length)
			}
		}
		s.do(onJob(running, domain.CompleteJob{Attempt: 1}))
		s.planJobs()
		require.True(t, s.lifeOf(first).Active(), "%s is first", first)
		running = first
	}
}

// TestPreemptionsOfAJobAreLimited checks that a job that has been preempted MaxPreemptions times
// keeps its node, so that it ends although other jobs are always due.
func TestPreemptionsOfAJobAreLimited(t *testing.T) {
	s := newHarnessWithInputs(t)
	s.given(node("n1", domain.PoolTraining, 1, nil))
	s.pending(1, "long")
	s.planJobs()
	limit := queue.Default().MaxPreemptions
	for i := range limit + 2 {
		id := fmt.Sprintf("short-%d", i)
		s.pending(1, id)
		s.advance(31 * time.Minute)
		s.planJobs()
		long := s.lifeOf("long")
		require.Equal(t, i < limit, long.Stopping(), "preemption %d", i+1)
		if !long.Stopping() {
			require.Equal(t, limit, long.Preemptions)
			require.False(t, s.lifeOf(id).Promised)
			continue
		}
		s.do(onJob("long", long.ConfirmStop(long.Attempt)))
		s.planJobs()
		require.True(t, s.lifeOf(id).Active())
		s.do(onJob(id, domain.CompleteJob{Attempt: 1}))
		s.planJobs()
		require.True(t, s.lifeOf("long").Active(), "the preempted job runs again before jobs that arrived later")
	}
	s.do(onJob("long", domain.CompleteJob{Attempt: s.lifeOf("long").Attempt}))
	require.Zero(t, s.lifeOf("long").Failures, "preemptions do not count")
}
