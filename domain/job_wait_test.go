package domain_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// change decides a command at a time and applies its event.
func change(t *testing.T, life *domain.JobLife, at time.Time, cmd domain.Command[domain.JobLife]) {
	t.Helper()
	event, err := cmd.Decide(*life, at)
	require.NoError(t, err)
	require.NotNil(t, event)
	event.Evolve(life)
}

// TestWaitsAreRecorded checks when the wait of a job for capacity begins, and that its JobWait is
// recorded once and kept until the wait ends.
func TestWaitsAreRecorded(t *testing.T) {
	life := domain.JobLife{State: domain.JobValidatingState, Status: domain.StatusOf(nil)}
	estimate := &domain.WaitEstimate{Low: 1, Median: 2, High: 3}
	hold := domain.HoldJob{For: domain.HeldForCapacity + ": much", Wait: &domain.JobWait{
		Situation: domain.QueueSituation{Size: 4}, Estimate: estimate}}
	later := func(minutes time.Duration) time.Time { return noon.Add(minutes * time.Minute) }

	change(t, &life, noon, hold)
	require.Nil(t, life.Wait, "a job that is not validated is not in the queue")
	require.False(t, life.Queued())
	change(t, &life, later(1), domain.QueueJob{})
	require.Equal(t, later(1), *life.QueueTime)
	change(t, &life, later(2), hold)
	require.Equal(t, &domain.JobWait{Time: later(2), Situation: domain.QueueSituation{Size: 4}, Estimate: estimate},
		life.Wait)
	require.True(t, life.Queued())
	again, err := hold.Decide(life, later(3))
	require.NoError(t, err)
	require.Nil(t, again, "the wait is recorded once")

	change(t, &life, later(4), domain.HoldJob{For: "another thing"})
	require.Nil(t, life.Wait)
	require.False(t, life.Queued())
	change(t, &life, later(5), domain.HoldJob{For: domain.HeldForQuota})
	require.True(t, life.Queued())
	change(t, &life, later(6), hold)
	require.Equal(t, later(6), life.Wait.Time)
	change(t, &life, later(7), domain.StartJob{Attempt: 1, Nodes: []domain.Name{"accounts/system/nodes/n1"}})
	require.Nil(t, life.Wait)
	require.Nil(t, life.QueueTime)

	change(t, &life, later(8), domain.RequeueJob{Attempt: 1, Reason: "node lost"})
	change(t, &life, later(9), domain.QueueJob{})
	require.Equal(t, later(1), *life.Arrival, "a requeued job keeps its arrival")
	require.Equal(t, later(9), *life.QueueTime)
	change(t, &life, later(10), hold)
	require.Equal(t, later(10), life.Wait.Time)
	change(t, &life, later(11), domain.PauseJob{Reason: "account suspended"})
	require.Nil(t, life.Wait)
	require.Nil(t, life.QueueTime)
}

func TestUnits(t *testing.T) {
	for _, c := range []struct {
		resources   domain.Resources
		accelerator string
		units       int64
	}{
		{domain.Resources{CPUMilli: 2001}, "", 3},
		{domain.Resources{CPUMilli: 1000, Accelerators: map[string]int{"B": 2, "A": 2, "C": 1}}, "A", 2},
		{domain.Resources{CPUMilli: 1000, Accelerators: map[string]int{"A": 0}}, "", 1},
	} {
		accelerator, units := c.resources.Units()
		require.Equal(t, c.accelerator, accelerator)
		require.Equal(t, c.units, units)
	}
}
