package schedulers_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/schedulers"
	"anneal/schedulers/queue"
)

// neighbor creates the account "other" with a model and a dataset, as prerequisites does for
// "acme".
func (s *harness) neighbor() {
	s.t.Helper()
	s.do(domain.Intend(domain.Accounts, domain.NewName("", "accounts", "other"),
		domain.CreateAccount{AccountSpec: domain.AccountSpec{DisplayName: "Other"}}),
		domain.Intend(domain.Models, domain.NewName("other", "models", "base"),
			domain.RegisterModel{ModelSpec: domain.ModelSpec{Kind: domain.BaseModel}}))
	for _, intent := range dataset("rows", domain.ShapeChat, 3) {
		intent.Name = domain.NewName("other", "datasets", "rows")
		s.do(intent)
	}
}

// pendingOther creates a pending job of the account "other", and returns its name.
func (s *harness) pendingOther(id string) domain.Name {
	s.t.Helper()
	s.now = s.now.Add(time.Second)
	name := domain.NewName("other", domain.SupervisedJobs.Collection, id)
	s.given(domain.Intend(domain.SupervisedJobs, name, domain.CreateSupervisedJob{ID: id,
		SupervisedSpec: domain.SupervisedSpec{Dataset: "accounts/other/datasets/rows",
			TrainingConfig: domain.TrainingConfig{BaseModel: "accounts/other/models/base"}}}))
	s.do(domain.IntendJob(name, domain.StartValidation{}))
	s.do(domain.IntendJob(name, domain.QueueJob{}))
	return name
}

func (s *harness) quota(account, id string, value domain.Count) {
	s.t.Helper()
	s.given(domain.Intend(domain.Quotas, domain.NewName(account, domain.Quotas.Collection, id), domain.SetQuota{
		MaxValue: value}))
}

// TestBorrowedAcceleratorsAreGivenBack checks that an account uses accelerators that are guaranteed
// to another one until that one needs them, that a job and then a replica give way with the reason,
// and that they are not borrowed back.
func TestBorrowedAcceleratorsAreGivenBack(t *testing.T) {
	s := begin(t, node("n1", "", 40, map[string]int{l4: 4}))
	s.neighbor()
	s.quota("acme", domain.QuotaGuaranteed, 2)
	s.quota("other", domain.QuotaGuaranteed, 2)
	s.given(deployment("d1", 1, 2, onL4))
	s.runPlans()
	s.given(onDeployment("d1", domain.ScaleDeployment{Replicas: 2, Reason: "load"}))
	s.runPlans()
	s.pending(1, "j1", "j2")
	s.runPlans()
	require.True(t, s.lifeOf("j1").Active() && s.lifeOf("j2").Active(), "acme borrows two accelerators")

	s.advance(time.Duration(queue.Default().ReclaimAfter)*time.Second - 10*time.Second)
	first := s.pendingOther("o1")
	s.runPlans()
	for _, id := range []string{"j1", "j2"} {
		require.False(t, s.lifeOf(id).Stopping(), "%s has not run for long enough", id)
	}
	s.advance(20 * time.Second)
	s.runPlans()
	for _, id := range []string{"j1", "j2"} {
		if life := s.lifeOf(id); life.Stopping() {
			require.Equal(t, schedulers.Reclaimed, life.Status.Message)
			s.given(onJob(id, life.ConfirmStop(life.Attempt)))
		}
	}
	s.runPlans()
	started := func(name domain.Name) bool {
		row, ok := s.world.View().Job(name)
		require.True(t, ok)
		return row.State.Life().Active()
	}
	require.True(t, started(first))
	require.Zero(t, s.lifeOf("j1").Preemptions+s.lifeOf("j2").Preemptions, "what is given back does not count")

	second := s.pendingOther("o2")
	s.advance(time.Hour)
	for range 3 {
		s.runPlans()
		for _, id := range []string{"j1", "j2"} {
			if life := s.lifeOf(id); life.Stopping() {
				s.given(onJob(id, life.ConfirmStop(life.Attempt)))
			}
		}
	}
	require.True(t, started(second))
	require.Equal(t, int64(2), s.world.View().Usage("other").Accelerators)

	s.comment("nothing is borrowed back, and nothing that is not guaranteed is given")
	third := s.pendingOther("o3")
	s.advance(6 * time.Hour)
	s.runPlans()
	require.False(t, started(third))
	require.True(t, started(first) && started(second))
	require.Contains(t, s.placed("d1"), "r1")
}
