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

// A job whose evaluator is still being built for the first time says so and
// waits; one whose evaluator cannot be built fails.
func TestJobsWaitForTheirEvaluator(t *testing.T) {
	s := newStage(t)
	s.given(account(), baseModel("base"))
	s.given(dataset("prompts", domain.ShapePrompt, 9)...)
	evaluator := func(id string, command domain.Command[domain.Evaluator]) domain.Intent {
		return domain.Intend(domain.Evaluators, domain.NewName("acme", domain.Evaluators.Collection, id), command)
	}
	s.given(evaluator("new", domain.CreateEvaluator{}), evaluator("broken", domain.CreateEvaluator{}))
	s.given(evaluator("broken", domain.RejectBuild{Revision: 1, Status: domain.Status{Code: "INVALID_ARGUMENT", Message: "main.py: no function evaluate"}}))
	for _, id := range []string{"new", "broken", "missing"} {
		s.given(domain.Intend(domain.ReinforcementJobs, domain.NewName("acme", domain.ReinforcementJobs.Collection, "with-"+id), domain.Command[domain.ReinforcementJob](
			domain.CreateReinforcementJob{ID: "with-" + id, ReinforcementSpec: domain.ReinforcementSpec{Dataset: string(datasetName("prompts")),
				Evaluator: "accounts/acme/evaluators/" + id, TrainingConfig: domain.TrainingConfig{BaseModel: string(modelName("base"))}}})))
	}
	s.act(schedulers.Jobs{})
	s.act(schedulers.Jobs{})
	require.Empty(t, s.plan(schedulers.Jobs{}).Steps)
	s.say("the evaluator is built")
	s.given(evaluator("new", domain.AcceptBuild{Revision: 1}))
	s.act(schedulers.Jobs{})
	s.act(schedulers.Jobs{})
	s.end("jobs_evaluator")
}
