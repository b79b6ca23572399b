package projections

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
)

// A queueHarness records jobs that wait and start.
type queueHarness struct {
	t     *testing.T
	log   *eventlog.Memory
	world *World
	now   time.Time
}

func (s *queueHarness) do(intent domain.Intent) {
	s.t.Helper()
	_, err := eventlog.Do(s.t.Context(), s.log, s.world, eventlog.Request{Time: s.now, Actor: "test"}, intent)
	require.NoError(s.t, err)
	replay(s.t, s.world, s.log)
}

var situation = domain.QueueSituation{Size: 1, Load: 3}

// wait makes a new job wait for capacity for some time and then start. hold records the wait.
func (s *queueHarness) wait(id string, seconds int, hold bool) {
	s.t.Helper()
	name := domain.NewName("acme", domain.SupervisedJobs.Collection, id)
	s.do(domain.Intend(domain.SupervisedJobs, name, domain.CreateSupervisedJob{ID: id,
		SupervisedSpec: domain.SupervisedSpec{Dataset: "accounts/acme/datasets/rows"}}))
	s.do(domain.IntendJob(name, domain.StartValidation{}))
	s.do(domain.IntendJob(name, domain.QueueJob{}))
	if hold {
		wait := &domain.JobWait{Situation: situation}
		if estimate, ok := s.world.View().Waits.Estimate(situation); ok {
			wait.Estimate = &estimate
		}
		s.do(domain.IntendJob(name, domain.HoldJob{For: domain.HeldForCapacity, Wait: wait}))
	}
	s.now = s.now.Add(time.Duration(seconds) * time.Second)
	s.do(domain.IntendJob(name, domain.StartJob{Attempt: 1, Nodes: []domain.Name{"accounts/system/nodes/n1"},
		Resources: domain.Resources{CPUMilli: 2000}}))
	s.do(domain.IntendJob(name, domain.CompleteJob{Attempt: 1}))
}

// TestHistoryFollowsTheLog checks that the history of waits depends on the log alone: the world that
// wrote it, one that folds it again, and one that continues from a snapshot in the middle have the same
// estimates and digest, also with jobs that have not waited and with deleted jobs.
func TestHistoryFollowsTheLog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "snapshots")
	s := &queueHarness{t, eventlog.NewMemory(), NewWorld(), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	view := s.world.View()
	for i := range 80 {
		s.wait(fmt.Sprintf("j%d", i), 10*(i%20), i%4 != 3)
		if i == 50 {
			require.NoError(t, s.world.Save(dir))
		}
	}
	first := domain.NewName("acme", domain.SupervisedJobs.Collection, "j0")
	s.do(domain.IntendJob(first, domain.DeleteJob{}))
	s.do(domain.IntendJob(first, domain.CleanJob{}))
	s.do(domain.IntendJob(first, domain.PurgeJob{}))

	want, ok := s.world.View().Waits.Estimate(situation)
	require.True(t, ok)
	require.Equal(t, domain.WaitEstimate{Low: 10, Median: 90, High: 170}, want)
	units := s.world.View().Waits.Started("", s.now.Unix())
	require.NotZero(t, units)
	_, ok = view.Waits.Estimate(situation)
	require.False(t, ok, "an earlier view does not change")

	opened, err := Open(t.Context(), s.log, dir)
	require.NoError(t, err)
	require.NotZero(t, opened.saved, "it continues from the snapshot")
	for name, w := range map[string]*World{"folded again": replay(t, NewWorld(), s.log), "from a snapshot": opened} {
		got, ok := w.View().Waits.Estimate(situation)
		require.True(t, ok, name)
		require.Equal(t, want, got, name)
		require.Equal(t, units, w.View().Waits.Started("", s.now.Unix()), name)
		require.Equal(t, digestOf(t, s.world), digestOf(t, w), name)
	}
	require.Equal(t, 1, digestOf(t, s.world).Tables[historyTable].Rows-6, "the levels, and six buckets")
}
