package schedulers_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/schedulers"
)

// lifeOf returns the life of the job with the given ID.
func (s *harness) lifeOf(id string) *domain.JobLife {
	s.t.Helper()
	row, ok := s.world.View().Job(jobName(id))
	require.True(s.t, ok)
	return row.State.Life()
}

// planJobs executes the plans of Jobs and Allocations until they have no steps.
func (s *harness) planJobs() {
	s.t.Helper()
	for range 10 {
		steps := slices.Concat(s.plan(schedulers.Jobs{}).Steps, s.plan(schedulers.Allocations{}).Steps)
		if len(steps) == 0 {
			return
		}
		for _, step := range steps {
			s.do(step.Intents()...)
		}
	}
	s.t.Fatal("the plans still have steps after 10 rounds")
}

// TestAGangDoesNotEndLast runs 23 jobs on four nodes of one core. The seventh needs two nodes at
// once. The first four jobs end two minutes apart, and all others take eight minutes, so two nodes
// never become free at the same time unless one is held.
func TestAGangDoesNotEndLast(t *testing.T) {
	s := newHarnessWithInputs(t)
	for i := range 4 {
		s.given(node(fmt.Sprintf("n%d", i), domain.PoolTraining, 1, nil))
	}
	left := map[string]time.Duration{}
	for i := range 23 {
		id, nodes := fmt.Sprintf("j%02d", i), 1
		if i == 6 {
			nodes = 2
		}
		s.pending(nodes, id)
		left[id] = 8 * time.Minute
		if i < 4 {
			left[id] += time.Duration(2*i) * time.Minute
		}
	}
	var ended []string
	for len(ended) < 23 && s.now.Sub(noon) < 6*time.Hour {
		s.planJobs()
		s.advance(time.Minute)
		for i := range 23 {
			id := fmt.Sprintf("j%02d", i)
			life := s.lifeOf(id)
			if !life.Active() || life.Stopping() {
				continue
			}
			if left[id] -= time.Minute; left[id] == 0 {
				s.do(onJob(id, domain.CompleteJob{Attempt: life.Attempt}))
				ended = append(ended, id)
			}
		}
	}
	require.Len(t, ended, 23)
	require.Less(t, slices.Index(ended, "j06"), 15, "the gang ends too late: %v", ended)
}

// TestALongJobIsPreempted checks the steps of a preemption: a long job is told to stop for the
// first job of another account, although other jobs have waited longer. The first job gets the
// node, the long job waits again, and no further job is preempted.
func TestALongJobIsPreempted(t *testing.T) {
	s := newHarnessWithInputs(t)
	s.given(node("n1", domain.PoolTraining, 2, nil), node("n2", domain.PoolTraining, 1, nil))
	s.pending(1, "long", "long-too", "longer")
	s.planJobs()
	s.advance(time.Hour)
	s.do(onJob("long", domain.RecordCheckpoint{JobCheckpoint: domain.JobCheckpoint{Attempt: 1, Step: 1}}))
	require.EqualValues(t, 3600, s.lifeOf("long").Work)
	s.pending(1, "waits")
	s.planJobs()
	require.Equal(t, domain.JobPendingState, s.lifeOf("waits").State, "the job is not due")
	s.advance(11 * time.Minute)
	s.planJobs()
	require.True(t, s.lifeOf("waits").Promised)
	var stopping []string
	for _, id := range []string{"long", "long-too", "longer"} {
		if l := s.lifeOf(id); l.Stopping() {
			stopping = append(stopping, id)
			require.Equal(t, schedulers.Preempted, l.Status.Message)
		}
	}
	require.Equal(t, []string{"long"}, stopping, "the job with the newest checkpoint loses least")
	s.advance(time.Minute)
	s.planJobs()
	require.Len(t, stopping, 1, "one plan is enough")

	s.do(onJob("long", s.lifeOf("long").ConfirmStop(1)))
	s.planJobs()
	for _, id := range []string{"long-too", "longer"} {
		require.False(t, s.lifeOf(id).Stopping(), "%s: the capacity of the stopped job is about to be released", id)
	}
	require.Equal(t, domain.JobRunningState, s.lifeOf("waits").State)
	require.False(t, s.lifeOf("waits").Promised)
	long := s.lifeOf("long")
	require.Equal(t, domain.JobPendingState, long.State)
	require.Equal(t, 1, long.Preemptions)
	require.Zero(t, long.Failures, "a preempted attempt does not count")

	s.do(onJob("waits", domain.CompleteJob{Attempt: s.lifeOf("waits").Attempt}))
	s.planJobs()
	require.Equal(t, domain.JobRunningState, s.lifeOf("long").State)
	require.Equal(t, 2, s.lifeOf("long").Attempt)
}

// TestAPreemptedJobThatDoesNotStop checks that a preempted job loses its node after CancelWithin,
// and that the suspension of its account turns the preemption into a pause.
func TestAPreemptedJobThatDoesNotStop(t *testing.T) {
	s := newHarnessWithInputs(t)
	s.given(node("n1", domain.PoolTraining, 1, nil), node("n2", domain.PoolTraining, 1, nil))
	s.pending(1, "silent", "paused")
	s.planJobs()
	for _, id := range []string{"silent", "paused"} {
		s.do(onJob(id, domain.PreemptJob{Attempt: 1, Reason: schedulers.Preempted}))
	}
	s.planJobs()
	require.True(t, s.lifeOf("silent").Active(), "the attempt may save a checkpoint")
	s.do(onJob("paused", domain.PauseJob{Reason: schedulers.SuspendedPrefix}))
	s.advance(schedulers.CancelWithin)
	s.step(schedulers.Jobs{})
	require.Equal(t, domain.JobReQueueingState, s.lifeOf("silent").State)
	require.Equal(t, domain.JobPausedState, s.lifeOf("paused").State)
}

// step executes one plan without recording it in the transcript.
func (s *harness) step(scheduler schedulers.Scheduler) {
	s.t.Helper()
	for _, step := range s.plan(scheduler).Steps {
		s.do(step.Intents()...)
	}
}

// TestWeightsOfAccounts checks that the weight of an account decides whose job comes first.
func TestWeightsOfAccounts(t *testing.T) {
	for weight, first := range map[int]string{1: "j2", 10: "j1"} {
		s := newHarnessWithInputs(t)
		s.do(onAccount(domain.SetQueueWeight{QueueWeight: weight}))
		s.do(domain.Intend(domain.Accounts, domain.NewName("", "accounts", "other"),
			domain.CreateAccount{AccountSpec: domain.AccountSpec{DisplayName: "Other"}}))
		s.given(node("n1", domain.PoolTraining, 3, nil))
		s.pending(1, "running-1", "running-2", "running-3")
		s.planJobs()
		s.pending(1, "j1")
		other := domain.NewName("other", domain.SupervisedJobs.Collection, "j2")
		spec := domain.SupervisedSpec{}
		if row, ok := s.world.View().Job(jobName("j1")); ok {
			spec = row.State.(*domain.SupervisedJob).SupervisedSpec
		}
		spec.BaseModel, spec.Dataset = "accounts/other/models/base", "accounts/other/datasets/rows"
		s.do(domain.Intend(domain.Models, domain.NewName("other", "models", "base"),
			domain.RegisterModel{ModelSpec: domain.ModelSpec{Kind: domain.BaseModel}}))
		for _, intent := range dataset("rows", domain.ShapeChat, 3) {
			intent.Name = domain.NewName("other", "datasets", "rows")
			s.do(intent)
		}
		s.advance(time.Second)
		s.do(domain.Intend(domain.SupervisedJobs, other, domain.CreateSupervisedJob{SupervisedSpec: spec, ID: "j2"}))
		s.do(domain.IntendJob(other, domain.StartValidation{}))
		s.do(domain.IntendJob(other, domain.QueueJob{}))
		s.do(onJob("running-1", domain.CompleteJob{Attempt: 1}))
		s.planJobs()
		row, _ := s.world.View().Job(other)
		running := map[string]bool{"j1": s.lifeOf("j1").Active(), "j2": row.State.Life().Active()}
		require.Equal(t, map[string]bool{"j1": first == "j1", "j2": first == "j2"}, running, "with weight %d", weight)
	}
}
