package schedulers_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/schedulers"
)

// A job of a method that no node knows is never handed out: it waits, says so,
// and goes on when a node comes that can.
func TestJobsWaitForANodeThatKnowsTheirMethod(t *testing.T) {
	s := newStage(t)
	s.given(account(), baseModel("base"))
	s.given(dataset("pairs", domain.ShapePreference, 9)...)
	s.given(dataset("samples", domain.ShapeSamples, 9)...)
	s.given(node("n1", domain.PoolTraining, 4, nil))
	training := domain.TrainingConfig{BaseModel: string(modelName("base"))}
	dpo := func(id, rows string) domain.Intent {
		return domain.Intend(domain.DPOJobs, domain.NewName("acme", domain.DPOJobs.Collection, id), domain.Command[domain.DPOJob](
			domain.CreateDPOJob{DPOSpec: domain.DPOSpec{Dataset: string(datasetName(rows)), TrainingConfig: training}, ID: id}))
	}
	step := domain.Intend(domain.TrainerJobs, domain.NewName("acme", domain.TrainerJobs.Collection, "step"), domain.Command[domain.TrainerJob](
		domain.CreateTrainerJob{TrainerSpec: domain.TrainerSpec{Dataset: string(datasetName("samples")), TrainingConfig: training}, ID: "step"}))
	s.given(dpo("prefer", "pairs"), dpo("wrong-shape", "samples"), step)
	s.act(schedulers.Jobs{})
	s.act(schedulers.Jobs{})
	s.act(schedulers.Jobs{})
	held := s.world.View()
	row, ok := held.DPOJobs.Get(domain.NewName("acme", domain.DPOJobs.Collection, "prefer"))
	require.True(t, ok)
	require.Equal(t, domain.JobPendingState, row.State.State)
	require.True(t, row.State.Held())
	require.Empty(t, s.plan(schedulers.Jobs{}).Steps, "what is held is not held again")

	s.say("a node comes that can train by DPO")
	s.given(onNode("n2", domain.RegisterNode{NodeSpec: domain.NodeSpec{Pool: domain.PoolTraining, Engines: []string{"train", "train:dpo"},
		Capacity: domain.Resources{CPUMilli: 4000, MemoryMiB: 4096}}}))
	s.act(schedulers.Jobs{})
	row, _ = s.world.View().DPOJobs.Get(row.Name)
	require.Equal(t, domain.JobRunningState, row.State.State)
	require.Equal(t, domain.StatusOf(nil), row.State.Status)
	s.end("jobs_method")
}
