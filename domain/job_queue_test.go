package domain_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// TestResumedJobsWaitFromTheirResumption checks that the work before a job was resumed does not
// postpone its deadline in the queue, which is its arrival plus its work plus a constant.
func TestResumedJobsWaitFromTheirResumption(t *testing.T) {
	life := domain.JobLife{Work: 5 * 24 * 3600, Preemptions: 6, Promised: true}
	domain.JobResumed{Time: noon}.Evolve(&life)
	require.Equal(t, noon, life.Arrival.Add(time.Duration(life.Work)*time.Second))
	require.Equal(t, noon, *life.QueueTime, "what its owner sees")
	require.Zero(t, life.Preemptions)
	require.False(t, life.Promised)
	require.EqualValues(t, 5*24*3600, life.Work)
	domain.JobResumed{}.Evolve(&life)
	require.Nil(t, life.Arrival, "an event of an earlier version has no time")
}

// TestPreemptionsOfTheQueueAreCounted checks that Preemptions counts preemptions for other jobs in the
// queue, and not those of drains.
func TestPreemptionsOfTheQueueAreCounted(t *testing.T) {
	var life domain.JobLife
	domain.JobPreempting{Attempt: 1, Reason: "a drain", Time: noon}.Evolve(&life)
	require.Zero(t, life.Preemptions)
	domain.JobPreempting{Attempt: 1, Reason: "another job", Time: noon, Queue: true}.Evolve(&life)
	require.Equal(t, 1, life.Preemptions)
}
