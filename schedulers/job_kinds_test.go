package schedulers_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/projections"
	"anneal/schedulers"
)

// TestJobsWaitForANodeThatKnowsTheirMethod checks that a job whose method no node supports waits
// until a node with the method registers, and that the job's status says so.
func TestJobsWaitForANodeThatKnowsTheirMethod(t *testing.T) {
	s := newHarness(t)
	s.given(account(), baseModel("base"))
	s.given(dataset("pairs", domain.ShapePreference, 9)...)
	s.given(dataset("samples", domain.ShapeSamples, 9)...)
	s.given(node("n1", domain.PoolTraining, 4, nil))
	training := domain.TrainingConfig{BaseModel: string(modelName("base"))}
	dpo := func(id, rows string) domain.Intent {
		return domain.Intend(domain.DPOJobs, domain.NewName("acme", domain.DPOJobs.Collection, id),
			domain.CreateDPOJob{DPOSpec: domain.DPOSpec{Dataset: string(datasetName(rows)),
				TrainingConfig: training},
				ID: id})
	}
	step := domain.Intend(domain.TrainerJobs, domain.NewName("acme", domain.TrainerJobs.Collection, "step"),
		domain.CreateTrainerJob{TrainerSpec: domain.TrainerSpec{Dataset: string(datasetName("samples")),
			TrainingConfig: training}, ID: "step"})
	s.given(dpo("prefer", "pairs"), dpo("wrong-shape", "samples"), step)
	s.execute(schedulers.Jobs{}, schedulers.Jobs{}, schedulers.Jobs{})
	held := s.world.View()
	row, ok := projections.TableOf(held, domain.DPOJobs).Get(domain.NewName("acme", domain.DPOJobs.Collection,
		"prefer"))
	require.True(t, ok)
	require.Equal(t, domain.JobPendingState, row.State.State)
	require.True(t, row.State.Held())
	require.Empty(t, s.plan(schedulers.Jobs{}).Steps, "the status is recorded only once")

	s.comment("a node with the capability train:dpo registers")
	s.given(onNode("n2", domain.RegisterNode{NodeSpec: domain.NodeSpec{Pool: domain.PoolTraining,
		Engines:  []string{"train", "train:dpo"},
		Capacity: domain.Resources{CPUMilli: 4000, MemoryMiB: 4096}}}))
	s.execute(schedulers.Jobs{})
	row, _ = projections.TableOf(s.world.View(), domain.DPOJobs).Get(row.Name)
	require.Equal(t, domain.JobRunningState, row.State.State)
	require.Equal(t, domain.StatusOf(nil), row.State.Status)
	s.compare("jobs_method")
}

// TestJobsWaitForTheirEvaluator checks that a job waits for the first build of its evaluator, says
// so in its status, and fails when the build fails.
func TestJobsWaitForTheirEvaluator(t *testing.T) {
	s := newHarness(t)
	s.given(account(), baseModel("base"))
	s.given(dataset("prompts", domain.ShapePrompt, 9)...)
	evaluator := func(id string, command domain.Command[domain.Evaluator]) domain.Intent {
		return domain.Intend(domain.Evaluators, domain.NewName("acme", domain.Evaluators.Collection, id), command)
	}
	s.given(evaluator("new", domain.CreateEvaluator{}), evaluator("broken", domain.CreateEvaluator{}))
	s.given(evaluator("broken", domain.RejectBuild{Revision: 1,
		Status: domain.Status{Code: "INVALID_ARGUMENT", Message: "main.py: no function evaluate"}}))
	for _, id := range []string{"new", "broken", "missing"} {
		s.given(domain.Intend(domain.ReinforcementJobs, domain.NewName("acme", domain.ReinforcementJobs.Collection,
			"with-"+id), domain.CreateReinforcementJob{ID: "with-" + id,
			ReinforcementSpec: domain.ReinforcementSpec{Dataset: string(
				datasetName("prompts")),
				Evaluator:      "accounts/acme/evaluators/" + id,
				TrainingConfig: domain.TrainingConfig{BaseModel: string(modelName("base"))}}}))
	}
	s.execute(schedulers.Jobs{}, schedulers.Jobs{})
	require.Empty(t, s.plan(schedulers.Jobs{}).Steps)
	s.comment("the evaluator is built")
	s.given(evaluator("new", domain.AcceptBuild{Revision: 1}))
	s.execute(schedulers.Jobs{}, schedulers.Jobs{})
	s.compare("jobs_evaluator")
}

// TestRowsAreHeldBack checks that a job with evalAutoCarveout gets two datasets before it is
// queued. The job fails when the rows of the datasets cannot be derived, and gets two other
// datasets when it is resumed.
func TestRowsAreHeldBack(t *testing.T) {
	s := newHarness(t)
	s.given(account(), baseModel("base"), node("n1", domain.PoolTraining, 4, nil))
	s.given(dataset("rows", domain.ShapeChat, 60)...)
	s.given(dataset("few", domain.ShapeChat, 3)...)
	s.given(dataset("samples", domain.ShapeSamples, 2)...)
	s.given(onDataset("tuned-eval", domain.CreateDataset{}))
	carvedDataset := func(id, rows string) domain.Intent {
		return job(id, func(spec *domain.SupervisedSpec) {
			spec.EvalAutoCarveout, spec.Dataset = true, string(datasetName(rows))
		})
	}
	s.given(carvedDataset("tuned", "rows"), carvedDataset("too-few", "few"))
	s.given(domain.Intend(domain.TrainerJobs, domain.NewName("acme", domain.TrainerJobs.Collection, "step"),
		domain.CreateTrainerJob{TrainerSpec: domain.TrainerSpec{Dataset: string(datasetName("samples")),
			EvalAutoCarveout: true,
			TrainingConfig:   domain.TrainingConfig{BaseModel: string(modelName("base"))}}, ID: "step"}))
	s.execute(schedulers.Jobs{})
	s.comment("one of the names is used by another dataset")
	s.execute(schedulers.Jobs{})
	s.comment("the job names its datasets first, and then they are created")
	s.execute(schedulers.Jobs{})
	require.Empty(t, s.plan(schedulers.Jobs{}).Steps, "the job waits for the rows")

	made := func(id string, rows domain.Count) domain.Intent {
		return onDataset(id, domain.FillDataset{Files: domain.Files{Prefix: id + "/",
			Sizes: map[string]int64{"rows.jsonl": 9}},
			DatasetStats: domain.DatasetStats{Shape: domain.ShapeChat, ExampleCount: rows}})
	}
	s.given(made("tuned-train-2", 54))
	require.Empty(t, s.plan(schedulers.Jobs{}).Steps, "the job waits for both datasets")
	s.given(onDataset("tuned-eval-2", domain.FailFill{Status: domain.Status{Code: "RESOURCE_EXHAUSTED",
		Message: "the store is full"}}))
	s.execute(schedulers.Jobs{})
	s.comment("the store has free space again")
	s.given(onJob("tuned", domain.ResumeJob{}))
	s.execute(schedulers.Jobs{}, schedulers.Jobs{})
	s.given(made("tuned-train-3", 54), made("tuned-eval-3", 6))
	s.comment("the source dataset can be deleted now")
	s.given(onDataset("rows", domain.RequestDeletion(domain.Datasets)), onDataset("rows", domain.DeleteDataset{}))
	s.execute(schedulers.Jobs{}, schedulers.Jobs{})
	row, ok := projections.TableOf(s.world.View(), domain.SupervisedJobs).Get(jobName("tuned"))
	require.True(t, ok)
	require.Equal(t, domain.JobRunningState, row.State.State)
	s.compare("jobs_carved")
}

// TestTrainersArePlacedForEachStep checks that a trainer job with keepAlive has no node between its
// train steps, and is placed again for each step.
func TestTrainersArePlacedForEachStep(t *testing.T) {
	s := newHarness(t)
	s.given(account(), baseModel("base"))
	s.given(dataset("samples", domain.ShapeSamples, 2)...)
	s.given(onNode("n1", domain.RegisterNode{NodeSpec: domain.NodeSpec{Pool: domain.PoolTraining,
		Engines:  []string{"train", "train:rlor"},
		Capacity: domain.Resources{CPUMilli: 4000, MemoryMiB: 4096}}}))
	name := domain.NewName("acme", domain.TrainerJobs.Collection, "kept")
	on := func(command domain.Command[domain.TrainerJob]) domain.Intent {
		return domain.Intend(domain.TrainerJobs, name, command)
	}
	s.given(on(domain.CreateTrainerJob{ID: "kept", TrainerSpec: domain.TrainerSpec{KeepAlive: true,
		TrainingConfig: domain.TrainingConfig{BaseModel: string(modelName("base"))}}}))
	s.execute(schedulers.Jobs{}, schedulers.Jobs{})
	state := func() domain.TrainerJob {
		row, ok := projections.TableOf(s.world.View(), domain.TrainerJobs).Get(name)
		require.True(t, ok)
		return row.State
	}
	require.Equal(t, domain.JobIdleState, state().State)
	require.Empty(t, s.plan(schedulers.Jobs{}).Steps)
	s.comment("a train step is queued")
	s.given(on(domain.ExecuteTrainStep{Dataset: string(datasetName("samples")), OutputModel: "m1"}))
	s.execute(schedulers.Jobs{})
	require.Equal(t, domain.JobRunningState, state().State)
	s.given(baseModel("m1"), on(domain.FinishTrainStep{Attempt: 1, Output: "accounts/acme/models/m1"}))
	s.execute(schedulers.Allocations{})
	require.Empty(t, s.plan(schedulers.Nodes{}).Steps)
	s.comment("the job is cancelled between two steps, and resumed")
	s.given(domain.IntendJob(name, domain.CancelJob{}))
	s.execute(schedulers.Jobs{})
	s.given(domain.IntendJob(name, domain.ResumeJob{}))
	s.execute(schedulers.Jobs{})
	s.compare("jobs_steps")
	require.Equal(t, domain.JobIdleState, state().State)
}

// TestPilotsStartLast checks that a reinforcement job with PURPOSE_PILOT gets capacity after a job
// that was created later.
func TestPilotsStartLast(t *testing.T) {
	s := newHarness(t)
	s.given(account(), baseModel("base"))
	s.given(dataset("prompts", domain.ShapePrompt, 9)...)
	evaluator := domain.NewName("acme", domain.Evaluators.Collection, "e")
	s.given(domain.Intend(domain.Evaluators, evaluator, domain.CreateEvaluator{}), domain.Intend(domain.Evaluators,
		evaluator, domain.AcceptBuild{Revision: 1}))
	name := func(id string) domain.Name { return domain.NewName("acme", domain.ReinforcementJobs.Collection, id) }
	for _, one := range [][2]string{{"pilot", domain.PurposePilot}, {"work", ""}} {
		id, purpose := one[0], one[1]
		s.advance(time.Minute)
		s.given(domain.Intend(domain.ReinforcementJobs, name(id), domain.CreateReinforcementJob{ID: id,
			ReinforcementSpec: domain.ReinforcementSpec{Purpose: purpose,
				Dataset: string(datasetName("prompts")), Evaluator: string(evaluator),
				TrainingConfig: domain.TrainingConfig{BaseModel: string(modelName("base"))}}}))
	}
	s.execute(schedulers.Jobs{}, schedulers.Jobs{})
	s.given(onNode("n1", domain.RegisterNode{NodeSpec: domain.NodeSpec{Pool: domain.PoolTraining,
		Engines:  []string{"train", "train:reinforcement"},
		Capacity: domain.Resources{CPUMilli: 1000, MemoryMiB: 4096}}}))
	s.execute(schedulers.Jobs{})
	for id, state := range map[string]string{"pilot": domain.JobPendingState, "work": domain.JobRunningState} {
		row, ok := projections.TableOf(s.world.View(), domain.ReinforcementJobs).Get(name(id))
		require.True(t, ok)
		require.Equal(t, state, row.State.State, id)
	}
}

// TestRolloutReplicasGetFreeCores checks that an attempt gets a core for each replica that
// generates rollouts, as far as cores are free, that its nodes are those with the most of them, and
// that it gets no further cores while another job waits for cores.
func TestRolloutReplicasGetFreeCores(t *testing.T) {
	const cores = 1000 // millicores
	for _, c := range []struct {
		name              string
		replicas, rollout int
		nodes             []int64
		others            int
		want              int64
		node              string
	}{
		{"one", 0, 0, []int64{8 * cores}, 0, cores, "n0"},
		{"as many as requested", 4, 0, []int64{8 * cores}, 0, 4 * cores, "n0"},
		{"at most one for each concurrent rollout", 4, 3, []int64{8 * cores}, 0, 3 * cores, "n0"},
		{"as many as are free", 1000, 0, []int64{2500}, 0, 2 * cores, "n0"},
		{"none is free", 4, 0, []int64{cores}, 0, cores, "n0"},
		{"the larger node", 4, 0, []int64{2 * cores, 3 * cores}, 0, 3 * cores, "n1"},
		{"another job starts too", 4, 0, []int64{4 * cores}, 1, 3 * cores, "n0"},
		{"another job waits", 4, 0, []int64{1500, 1500}, 2, cores, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newHarness(t)
			s.given(account(), baseModel("base"))
			s.given(dataset("prompts", domain.ShapePrompt, 9)...)
			s.given(dataset("rows", domain.ShapeChat, 9)...)
			evaluator := domain.NewName("acme", domain.Evaluators.Collection, "e")
			s.given(domain.Intend(domain.Evaluators, evaluator, domain.CreateEvaluator{}), domain.Intend(domain.Evaluators,
				evaluator, domain.AcceptBuild{Revision: 1}))
			config := domain.TrainingConfig{BaseModel: string(modelName("base"))}
			name := domain.NewName("acme", domain.ReinforcementJobs.Collection, "rollouts")
			s.given(domain.Intend(domain.ReinforcementJobs, name, domain.CreateReinforcementJob{ID: "rollouts",
				ReinforcementSpec: domain.ReinforcementSpec{
					Dataset: string(datasetName("prompts")), Evaluator: string(evaluator), TrainingConfig: config,
					MaxInferenceReplicaCount: c.replicas, MaxConcurrentRollouts: c.rollout}}))
			for i := range c.others {
				s.advance(time.Second)
				id := fmt.Sprint("other", i)
				other := domain.NewName("acme", domain.SupervisedJobs.Collection, id)
				s.given(domain.Intend(domain.SupervisedJobs, other, domain.CreateSupervisedJob{ID: id,
					SupervisedSpec: domain.SupervisedSpec{Dataset: string(datasetName("rows")), TrainingConfig: config}}))
			}
			s.execute(schedulers.Jobs{}, schedulers.Jobs{})
			for i, milli := range c.nodes {
				s.given(onNode(fmt.Sprint("n", i), domain.RegisterNode{NodeSpec: domain.NodeSpec{
					Pool: domain.PoolTraining, Engines: []string{"train", "train:reinforcement"},
					Capacity: domain.Resources{CPUMilli: milli, MemoryMiB: 4096}}}))
			}
			s.execute(schedulers.Jobs{})
			row, ok := projections.TableOf(s.world.View(), domain.ReinforcementJobs).Get(name)
			require.True(t, ok)
			require.Equal(t, domain.JobRunningState, row.State.State)
			require.Equal(t, c.want, row.State.Resources.CPUMilli)
			require.EqualValues(t, 512, row.State.Resources.MemoryMiB)
			if c.node != "" {
				require.Equal(t, []domain.Name{nodeName(c.node)}, row.State.JobLife.Nodes)
			}
			for node := range s.world.View().Nodes.All() {
				require.True(t, node.State.Used().Fits(node.State.Capacity), node.Name)
			}
		})
	}
}
