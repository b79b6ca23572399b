package schedulers_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/schedulers"
	"anneal/schedulers/queue"
)

// round executes one plan of each scheduler, Jobs first, and reports all replicas as ready.
func (s *harness) round() {
	s.t.Helper()
	for _, scheduler := range []schedulers.Scheduler{schedulers.Jobs{}, schedulers.Replicas{PlaceWithin: 24 * time.Hour},
		schedulers.Allocations{}} {
		s.step(scheduler)
	}
	for row := range s.world.View().Deployments.All() {
		for _, r := range row.State.Ordered() {
			s.do(domain.Intend(domain.Deployments, row.Name, domain.AdvanceReplica{ID: r.ID, Node: r.Node,
				State: domain.ReplicaReady}))
		}
	}
}

// removals returns the reasons for which replicas of a deployment were removed.
func (s *harness) removals(id string) (reasons []string) {
	s.t.Helper()
	for e, err := range s.log.Read(s.t.Context(), "events.>", 0) {
		require.NoError(s.t, err)
		if e.Name == deploymentName(id) && e.Type == "replica.removed.v1" {
			_, reason, _ := strings.Cut(string(e.Data), `"reason":"`)
			reason, _, _ = strings.Cut(reason, `"`)
			reasons = append(reasons, reason)
		}
	}
	return reasons
}

// TestADeploymentDoesNotStarveBehindJobs checks that a deployment without its minimum gets a node
// although jobs wait for every node, and although the plan of the jobs always comes first.
func TestADeploymentDoesNotStarveBehindJobs(t *testing.T) {
	for name, before := range map[string]func(s *harness){
		"the node is uncordoned": func(s *harness) {
			s.given(onNode("n1", domain.CordonNode{Reason: "new driver"}), deployment("d1", 1, 1, nil))
			s.round()
			s.pending(1, "j0", "j1", "j2", "j3", "j4", "j5", "j6", "j7", "j8", "j9")
			s.round()
			s.given(onNode("n1", domain.UncordonNode{}))
		},
		"a job runs on the node": func(s *harness) {
			s.pending(1, "j0", "j1", "j2", "j3", "j4", "j5", "j6", "j7", "j8", "j9")
			s.round()
			s.given(deployment("d1", 1, 1, nil))
		},
		"its replica was lost": func(s *harness) {
			s.given(deployment("d1", 1, 1, nil))
			s.round()
			s.given(onNode("n1", domain.LoseNode{Reason: "silent"}))
			s.round()
			s.pending(1, "j0", "j1", "j2", "j3", "j4", "j5", "j6", "j7", "j8", "j9")
			s.round()
			s.given(node("n1", "", 1, nil))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t, node("n1", "", 1, nil))
			before(s)
			for i := range 10 {
				s.round()
				if len(s.placed("d1")) == 1 {
					return
				}
				s.advance(time.Minute)
				if id := fmt.Sprintf("j%d", i); s.lifeOf(id).Active() {
					s.do(onJob(id, domain.CompleteJob{Attempt: 1}))
				}
			}
			t.Fatal("the deployment has no replica after ten jobs")
		})
	}
}

// TestADeploymentBelowItsMinimumPreempts checks that a deployment without its minimum makes a job
// that has run for long give way once it is due, only once, and that the job continues when there
// is capacity.
func TestADeploymentBelowItsMinimumPreempts(t *testing.T) {
	s := begin(t, node("n1", "", 1, nil))
	s.pending(1, "long")
	s.round()
	s.advance(time.Hour)
	s.given(deployment("d1", 1, 1, nil))
	s.round()
	require.False(t, s.lifeOf("long").Stopping(), "the deployment is not due")
	s.advance(time.Duration(queue.Default().ReplicaTarget) * time.Second)
	s.round()
	long := s.lifeOf("long")
	require.True(t, long.Stopping())
	require.Equal(t, schedulers.PreemptedForReplica, long.Status.Message)
	s.do(onJob("long", long.ConfirmStop(long.Attempt)))
	for range 4 {
		s.round()
	}
	require.Equal(t, []string{"r1"}, s.placed("d1"))
	require.Equal(t, 1, s.lifeOf("long").Preemptions)
	s.given(onDeployment("d1", domain.ScaleDeployment{Replicas: 1}), onDeployment("d1", domain.DeleteDeployment{
		IgnoreChecks: true}))
	for range 4 {
		s.round()
	}
	require.True(t, s.lifeOf("long").Active(), "the job continues")
}

// TestReplicasAboveTheMinimumGiveWay checks which replicas give way to a job that is due, and that
// they do not take back what they gave.
func TestReplicasAboveTheMinimumGiveWay(t *testing.T) {
	s := begin(t, node("n1", "", 40, map[string]int{l4: 4}))
	s.given(deployment("d1", 1, 4, onL4))
	s.runPlans()
	s.given(onDeployment("d1", domain.ScaleDeployment{Replicas: 4, Reason: "load"}))
	s.runPlans()
	require.Equal(t, []string{"r1", "r2", "r3", "r4"}, s.placed("d1"))

	s.comment("a replica that has just started stays")
	s.pending(1, "j1")
	s.runPlans()
	require.Equal(t, []string{"r1", "r2", "r3", "r4"}, s.placed("d1"))

	s.comment("after half an hour, the newest replica gives way to the job")
	s.advance(31 * time.Minute)
	s.runPlans()
	require.Equal(t, []string{"r1", "r2", "r3"}, s.placed("d1"))
	require.True(t, s.lifeOf("j1").Active())
	s.advance(time.Hour)
	s.runPlans()
	require.Equal(t, []string{"r1", "r2", "r3"}, s.placed("d1"), "the deployment waits for free capacity")
	row, _ := s.world.View().Deployments.Get(deploymentName("d1"))
	require.Equal(t, 4, row.State.DesiredReplicas, "the desired number does not change, so nothing scales it back")

	s.comment("a deployment below its minimum does not wait")
	s.given(deployment("d2", 1, 1, onL4))
	s.runPlans()
	require.Equal(t, []string{"r1", "r2"}, s.placed("d1"))
	require.Equal(t, []string{"r1"}, s.placed("d2"))

	s.comment("no replica within the minimum gives way")
	s.pending(1, "j2", "j3", "j4")
	s.advance(time.Hour)
	s.runPlans()
	require.Equal(t, []string{"r1"}, s.placed("d1"))
	require.Equal(t, []string{"r1"}, s.placed("d2"))

	s.comment("the capacity is free again")
	for _, id := range []string{"j1", "j2", "j3", "j4"} {
		s.given(onJob(id, domain.CancelJob{}))
		if life := s.lifeOf(id); life.State == domain.JobCancellingState {
			s.given(onJob(id, life.ConfirmStop(life.Attempt)))
		}
	}
	s.runPlans()
	require.Equal(t, []string{"r1", "r5", "r6"}, s.placed("d1"))
	for _, reason := range s.removals("d1") {
		require.True(t, strings.HasPrefix(reason, "preempted: the capacity is needed for "), reason)
		require.NotContains(t, reason, "j1")
	}
	s.compare("replicas_give_way")
}

// TestReplicasAndJobsDoNotTakeTurns checks, over twelve hours of jobs that are always due, that a
// replica above the minimum runs for half an hour before it gives way, and that every job starts
// within an hour.
func TestReplicasAndJobsDoNotTakeTurns(t *testing.T) {
	s := begin(t, node("n1", "", 40, map[string]int{l4: 2}))
	s.given(deployment("d1", 1, 2, onL4))
	s.round()
	s.given(onDeployment("d1", domain.ScaleDeployment{Replicas: 2, Reason: "load"}))
	created, started := map[string]time.Time{}, map[string]time.Time{}
	for minute := range 12 * 60 {
		if minute%20 == 0 && minute < 11*60 {
			id := fmt.Sprintf("j%d", minute)
			s.pending(1, id)
			created[id] = s.now
		}
		s.round()
		for id := range created {
			switch life := s.lifeOf(id); {
			case !life.Active():
			case started[id].IsZero():
				started[id] = s.now
			case s.now.Sub(started[id]) >= 5*time.Minute:
				s.do(onJob(id, domain.CompleteJob{Attempt: life.Attempt}))
			}
		}
		s.now = s.now.Add(time.Minute)
	}
	for id, at := range created {
		require.False(t, started[id].IsZero(), "%s did not start", id)
		require.Less(t, started[id].Sub(at), time.Hour, id)
	}
	require.NotEmpty(t, s.removals("d1"))
	require.LessOrEqual(t, len(s.removals("d1")), 12*2, "a replica gave way before it had run for half an hour")
}
