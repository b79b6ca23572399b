package coordinator_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

// TestRestartRequestsRows checks that a control plane that has lost its live status requests the
// metric rows since the last checkpoint, or all rows if there is none, and records no rows with a
// gap in the meantime.
func TestRestartRequestsRows(t *testing.T) {
	c := startWithInputs(t)
	node := c.registerNode("n1", "a")
	c.startJob("n1")
	number := uint64(1)
	// report sends the rows from acked to last, and returns the step up to which they are acknowledged.
	report := func(acked, last int) int {
		number++
		heartbeat := heartbeatOf("a", number)
		attempt := protocol.Attempt{Job: jobName, Attempt: c.life().Attempt, CreateTime: c.created(),
			Phase: protocol.Training, Step: last, Steps: 40, Acked: acked}
		for step := max(1, acked); step <= last; step++ {
			attempt.Rows = append(attempt.Rows, engines.Metrics{Step: step, Steps: 40,
				Values: map[string]float64{"train/loss": 2}})
		}
		heartbeat.Attempts = []protocol.Attempt{attempt}
		var reply protocol.Assignments
		require.NoError(t, c.send(node, protocol.HeartbeatSubject("n1"), heartbeat, &reply))
		require.Contains(t, reply.Keep, attempt.ID())
		return reply.Acked[attempt.ID()]
	}
	live := func() (steps []int) {
		for row := range c.world.View().Live.Metrics(jobName, 0) {
			steps = append(steps, row.Step)
		}
		return steps
	}
	fromTo := func(first, last int) (steps []int) {
		for step := first; step <= last; step++ {
			steps = append(steps, step)
		}
		return steps
	}
	require.Equal(t, 5, report(0, 5))
	require.Equal(t, 9, report(5, 9))

	c.world.Live().Forget(jobName)
	require.Zero(t, report(9, 12), "no checkpoint has rows")
	require.Empty(t, live())
	progress, _ := c.world.View().Live.Progress(jobName)
	require.Equal(t, 12, progress.Step, "the progress is known at once")
	require.Equal(t, 12, report(0, 12))
	require.Equal(t, fromTo(1, 12), live())

	c.do(domain.IntendJob(jobName, domain.RecordCheckpoint{JobCheckpoint: domain.JobCheckpoint{Attempt: 1, Step: 10},
		Progress: &domain.JobProgress{Step: 10, Steps: 40}}))
	require.Equal(t, 14, report(12, 14))
	c.world.Live().Forget(jobName)
	require.Equal(t, 10, report(14, 16), "the rows of 11 to 13 are in no checkpoint")
	require.Empty(t, live())
	require.Equal(t, 17, report(10, 17))
	require.Equal(t, fromTo(10, 17), live())

	c.do(domain.IntendJob(jobName, domain.RequeueJob{Attempt: 1, Reason: "lost"}), domain.IntendJob(jobName,
		domain.QueueJob{}))
	c.do(domain.Intend(domain.Nodes, nodeName("n1"), domain.ReleaseAllocation{ID: domain.AllocationID(jobName, 1)}))
	c.place("n1")
	require.Equal(t, 10, report(12, 13), "an attempt that resumed from step 10, whose first rows were lost")
	require.Equal(t, fromTo(10, 10), live())
	require.Equal(t, 13, report(10, 13))
	require.Equal(t, fromTo(10, 13), live())
}
