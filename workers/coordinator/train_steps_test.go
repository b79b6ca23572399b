package coordinator_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines/simulated"
	"anneal/projections"
)

// TestTrainerRunsSteps checks that a trainer job with keepAlive runs one train step after another,
// each from the output model of the previous step, and has no allocation between the steps.
func TestTrainerRunsSteps(t *testing.T) {
	c := startWithInputs(t)
	name := domain.NewName("acme", domain.TrainerJobs.Collection, "steps")
	rows := func(id string) string {
		return c.rows(id, domain.ShapeSamples, `{"samples":[{"messages":[],"accuracy":1}]}`)
	}
	on := func(command domain.Command[domain.TrainerJob]) {
		c.do(domain.Intend(domain.TrainerJobs, name, command))
	}
	idle := func(finished int) domain.TrainerJob {
		view := c.until("the trainer is idle", func(v *projections.View) bool {
			row, ok := projections.TableOf(v, domain.TrainerJobs).Get(name)
			return ok && row.State.State == domain.JobIdleState && row.State.Finished == finished
		})
		row, _ := projections.TableOf(view, domain.TrainerJobs).Get(name)
		return row.State
	}
	c.agent("n1", simulated.New(simulated.Options{}))
	c.ready("n1")
	on(domain.CreateTrainerJob{ID: "steps", TrainerSpec: domain.TrainerSpec{KeepAlive: true, Dataset: rows("one"),
		RewardWeights:  []string{"accuracy=0.5"},
		TrainingConfig: domain.TrainingConfig{BaseModel: string(modelName), OutputModel: "first"}}})
	c.do(domain.IntendJob(name, domain.StartValidation{}))
	c.do(domain.IntendJob(name, domain.QueueJob{}))
	c.startAttempt(name, domain.StartJob{Attempt: 1})
	require.Empty(t, idle(1).Nodes)
	on(domain.ExecuteTrainStep{Dataset: rows("two"), OutputModel: "second"})
	c.startAttempt(name, domain.StartJob{Attempt: 2})
	job := idle(2)
	require.Equal(t, domain.Name("accounts/acme/models/second"), job.Output)
	require.Empty(t, job.Checkpoints)
	for _, id := range []string{"first", "second"} {
		model, ok := c.world.View().Models.Get(domain.NewName("acme", domain.Models.Collection, id))
		require.True(t, ok, id)
		require.Equal(t, domain.ModelReady, model.State.State)
		require.Equal(t, string(modelName), model.State.BaseModel)
	}
	latest, ok := c.world.View().Live.Latest(name)
	require.True(t, ok)
	require.InDelta(t, 0.5, latest.Values["reward/mean"], 1e-9)
}
