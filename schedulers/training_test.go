package schedulers_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/projections"
	"anneal/schedulers"
)

// TestTrainingServices checks that a job whose training service is used is placed on a node with
// the kernel of its runs, that it does not wait for a node without use, and that the runs and
// sessions of a job are removed after the job.
func TestTrainingServices(t *testing.T) {
	s := newHarness(t)
	s.given(account(), baseModel("base"))
	register := func(node string, engines ...string) {
		s.given(onNode(node, domain.RegisterNode{NodeSpec: domain.NodeSpec{Pool: domain.PoolTraining,
			Engines: append(engines, "train", "train:rlor"), Capacity: domain.Resources{CPUMilli: 4000, MemoryMiB: 4096}}}))
	}
	register("n1")
	name := domain.NewName("acme", domain.TrainerJobs.Collection, "loop")
	on := func(command domain.Command[domain.TrainerJob]) domain.Intent {
		return domain.Intend(domain.TrainerJobs, name, command)
	}
	state := func() domain.TrainerJob {
		row, ok := projections.TableOf(s.world.View(), domain.TrainerJobs).Get(name)
		require.True(t, ok)
		return row.State
	}
	s.given(on(domain.CreateTrainerJob{ID: "loop", TrainerSpec: domain.TrainerSpec{ServiceMode: true,
		TrainingConfig: domain.TrainingConfig{BaseModel: string(modelName("base"))}}}))
	s.execute(schedulers.Jobs{}, schedulers.Jobs{})
	require.Equal(t, domain.JobIdleState, state().State)

	s.comment("a client uses the service, but no node can serve it")
	s.given(on(domain.StartService{}))
	s.execute(schedulers.Jobs{})
	require.Equal(t, domain.JobPendingState, state().State)
	require.Contains(t, state().WaitsFor(), "train:service")
	s.comment("the client leaves")
	s.advance(2 * schedulers.ServiceIdle)
	s.execute(schedulers.Jobs{})
	require.Equal(t, domain.JobIdleState, state().State)

	s.comment("two nodes can serve it, and another client uses it")
	register("n2", "train:service", "train:service:avx2")
	register("n3", "train:service", "train:service:avx512")
	s.given(on(domain.StartService{}))
	row, _ := s.world.View().Job(name)
	run := domain.NewName("acme", domain.TrainingRuns.Collection, "r1")
	session := domain.NewName("acme", domain.TrainingSessions.Collection, "s1")
	onRun := func(command domain.Command[domain.TrainingRun]) domain.Intent {
		return domain.Intend(domain.TrainingRuns, run, command)
	}
	s.do(domain.Intend(domain.TrainingSessions, session, domain.Command[domain.TrainingSession](
		domain.CreateTrainingSession{TrainingSessionSpec: domain.TrainingSessionSpec{Job: name, JobEvent: row.CreateEvent}})),
		onRun(domain.CreateTrainingRun{TrainingRunSpec: domain.TrainingRunSpec{Job: name, JobEvent: row.CreateEvent,
			Session: session, BaseModel: modelName("base"), Config: domain.TrainingRunConfig{Rank: 4, Alpha: 8,
				TrainAttn: true}}}))
	s.execute(schedulers.Jobs{})
	require.Equal(t, domain.JobRunningState, state().State)

	s.comment("the run is computed with avx512, and the attempt is lost")
	s.given(onRun(domain.OpenTrainingRun{Attempt: state().Attempt, BaseHash: "hash", Kernel: "avx512"}),
		domain.IntendJob(name, domain.RequeueJob{Attempt: state().Attempt, Reason: "lost", Preempted: true}))
	s.execute(schedulers.Allocations{}, schedulers.Jobs{}, schedulers.Jobs{})
	require.Equal(t, []domain.Name{nodeName("n3")}, state().Nodes)
	require.Empty(t, s.plan(schedulers.Training{}).Steps)

	s.comment("a checkpoint expires")
	expires := s.now.Add(time.Hour)
	s.given(onRun(domain.OpenTrainingRun{Attempt: state().Attempt, BaseHash: "hash", Kernel: "avx512"}),
		onRun(domain.SaveTrainingCheckpoint{TrainingCheckpoint: domain.TrainingCheckpoint{
			Kind: domain.TrainingCheckpointTraining, Name: "brief", ExpireTime: &expires, Attempt: state().Attempt}}))
	require.Equal(t, expires, s.plan(schedulers.Training{}).Again)
	s.advance(time.Hour)
	s.execute(schedulers.Training{})
	saved, _ := s.world.View().Runs.Get(run)
	require.Empty(t, saved.State.Checkpoints)

	s.comment("the service stops, and the job is deleted")
	s.given(on(domain.StopService{Attempt: state().Attempt}))
	s.given(domain.IntendJob(name, domain.DeleteJob{}))
	s.execute(schedulers.Allocations{}, schedulers.Jobs{})
	s.given(domain.IntendJob(name, domain.PurgeJob{}))
	s.execute(schedulers.Training{})
	_, found := s.world.View().Runs.Get(run)
	require.False(t, found)
	_, found = s.world.View().Sessions.Get(session)
	require.False(t, found)
	s.compare("training_services")
}
