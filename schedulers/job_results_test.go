package schedulers_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/schedulers"
)

// trained does the same as stored, and then executes plans until the job is complete.
func (s *harness) trained(id, kind string, load bool) {
	s.t.Helper()
	s.stored(id, kind, load)
	require.Empty(s.t, s.plan(schedulers.Jobs{}).Steps, "the coordinator that recorded the results completes the job")
	s.advance(time.Second)
	s.execute(schedulers.Jobs{}, schedulers.Jobs{})
	s.requireCompleted(id)
}

func (s *harness) requireCompleted(id string) {
	s.t.Helper()
	row, _ := s.world.View().Job(jobName(id))
	require.Equal(s.t, domain.JobCompletedState, row.State.Life().State)
}

// stored creates a job whose result, a model of a kind, is stored. load is its option LoadAddon.
func (s *harness) stored(id, kind string, load bool) {
	s.t.Helper()
	spec := domain.SupervisedSpec{Dataset: string(datasetName("rows")),
		TrainingConfig: domain.TrainingConfig{BaseModel: string(modelName("base"))}}
	files := domain.Files{Prefix: "results/" + id + "/"}
	model := domain.ModelSpec{Kind: kind, BaseModel: string(modelName("base"))}
	s.do(domain.Intend(domain.SupervisedJobs, jobName(id), domain.CreateSupervisedJob{SupervisedSpec: spec, ID: id,
		CreatedBy: "accounts/acme/apiKeys/k", Options: &domain.JobOptions{LoadAddon: load}}))
	for _, command := range []domain.Command[domain.JobLife]{domain.StartValidation{}, domain.QueueJob{},
		domain.StartJob{Attempt: 1, Nodes: []domain.Name{nodeName("n1")}}} {
		s.do(onJob(id, command))
	}
	s.do(onJob(id, domain.StoreResults{JobOutcome: domain.JobOutcome{Attempt: 1, Output: modelName(id), Results: files,
		Model: domain.ModelRegistered{ModelSpec: model, SourceJob: jobName(id), Files: files}}}))
}

// loadedInto returns the deployment into which the addon of a job was loaded, or "".
func (s *harness) loadedInto(id string) string {
	row, ok := s.world.View().DeployedModels.Get(domain.NewName("acme", "deployedModels", id))
	if !ok {
		return ""
	}
	require.Equal(s.t, string(modelName(id)), row.State.Model)
	require.Equal(s.t, "accounts/acme/apiKeys/k", row.State.CreatedBy)
	return domain.Name(row.State.Deployment).ID()
}

// TestResultIsLoaded checks into which deployment the addon of a completed job is loaded, and that
// an addon that a user has unloaded is not loaded again.
func TestResultIsLoaded(t *testing.T) {
	s := newHarnessWithInputs(t)
	s.do(baseModel("another"), node("n1", "", 8, nil))
	s.trained("no-deployment", domain.PEFTAddon, true)
	require.Empty(t, s.loadedInto("no-deployment"))

	for id, change := range map[string]func(*domain.DeploymentSpec){
		"no-addons":  func(d *domain.DeploymentSpec) { d.EnableAddons = false },
		"not-named":  func(d *domain.DeploymentSpec) { d.DisableAutoDeploy = true },
		"merges":     func(d *domain.DeploymentSpec) { d.EnableHotReloadLatestAddon = true },
		"other-base": func(d *domain.DeploymentSpec) { d.BaseModel = string(modelName("another")) },
	} {
		s.do(onDeployment(id, addonDeployment(change)))
	}
	s.trained("unfit", domain.PEFTAddon, true)
	require.Empty(t, s.loadedInto("unfit"))

	s.advance(1)
	s.do(onDeployment("first", addonDeployment(nil)))
	s.advance(1)
	s.do(onDeployment("second", addonDeployment(nil)))
	s.trained("fits", domain.PEFTAddon, true)
	require.Equal(t, "first", s.loadedInto("fits"))
	s.trained("not-asked", domain.PEFTAddon, false)
	require.Empty(t, s.loadedInto("not-asked"))
	s.trained("full", domain.BaseModel, true)
	require.Empty(t, s.loadedInto("full"))

	s.unload("fits")
	s.execute(schedulers.Jobs{})
	require.Empty(t, s.loadedInto("fits"))

	s.stored("unloaded-early", domain.PEFTAddon, true)
	s.advance(time.Second)
	s.execute(schedulers.Jobs{})
	s.do(s.plan(schedulers.Jobs{}).Steps[0].Intents()...)
	require.Equal(t, "first", s.loadedInto("unloaded-early"))
	s.unload("unloaded-early")
	s.execute(schedulers.Jobs{})
	s.requireCompleted("unloaded-early")
	require.Empty(t, s.loadedInto("unloaded-early"), "a user unloaded the addon before the job was complete")

	for i := range domain.MaxAddons {
		s.do(domain.Intend(domain.DeployedModels, domain.NewName("acme", "deployedModels", fmt.Sprint("a", i)),
			domain.Command[domain.DeployedModel](loaded("fits", "first"))))
	}
	s.trained("no-room", domain.PEFTAddon, true)
	require.Equal(t, "second", s.loadedInto("no-room"))

	s.advance(1)
	s.do(onDeployment("third", addonDeployment(nil)))
	s.do(onDeployment("third", domain.MarkDeploymentReady{Generation: 1}))
	s.trained("serving", domain.PEFTAddon, true)
	require.Equal(t, "third", s.loadedInto("serving"), "the second one is CREATING")
}

// unload unloads the addon of a job, as a user would.
func (s *harness) unload(id string) {
	s.t.Helper()
	for _, command := range []domain.Command[domain.DeployedModel]{domain.UndeployModel{Reason: "unloaded by its user"},
		domain.FinishUndeployment{}} {
		s.do(domain.Intend(domain.DeployedModels, domain.NewName("acme", "deployedModels", id), command))
	}
}
