package schedulers_test

import (
	"fmt"
	"testing"
	"time"

	"anneal/domain"
	"anneal/schedulers"
)

func trainerName(id string) domain.Name {
	return domain.NewName("acme", domain.TrainerJobs.Collection, id)
}

func onTrainer(id string, cmd domain.Command[domain.TrainerJob]) domain.Intent {
	return domain.Intend(domain.TrainerJobs, trainerName(id), cmd)
}

// teaches creates a running trainer job that offers its weights to a deployment.
func (s *harness) teaches(id, base, deployment string) {
	s.given(onTrainer(id, domain.CreateTrainerJob{ID: id, TrainerSpec: domain.TrainerSpec{KeepAlive: true,
		Dataset:               string(datasetName("rows")),
		RolloutDeploymentName: string(deploymentName(deployment)),
		TrainingConfig:        domain.TrainingConfig{BaseModel: string(modelName(base)), OutputModel: id + "-1"}}}))
	s.do(domain.IntendJob(trainerName(id), domain.StartValidation{}))
	s.do(domain.IntendJob(trainerName(id), domain.QueueJob{}))
	s.starts(id, 1)
}

func (s *harness) starts(id string, attempt int) {
	s.do(domain.IntendJob(trainerName(id), domain.StartJob{Attempt: attempt, Nodes: []domain.Name{nodeName("n1")}}))
}

// saves records a checkpoint of an adapter or of full weights.
func (s *harness) saves(id string, attempt, step int, config string) {
	s.given(domain.IntendJob(trainerName(id), domain.RecordCheckpoint{JobCheckpoint: domain.JobCheckpoint{
		Attempt: attempt, Step: step,
		Files: domain.Files{Prefix: fmt.Sprintf("%s/%d-%d/", id, attempt, step),
			Sizes: map[string]int64{"model/" + config: 2, "state.json": 2}}}}))
}

// ends finishes a train step with output as the ID of the new model.
func (s *harness) ends(id string, attempt int, output string) {
	files := domain.Files{Prefix: "models/" + output + "/", Sizes: map[string]int64{"adapter_config.json": 2}}
	s.do(onModel(output, domain.RegisterModel{ModelSpec: domain.ModelSpec{Kind: domain.PEFTAddon,
		BaseModel: string(modelName("base"))}, SourceJob: trainerName(id), Files: files}),
		onTrainer(id, domain.FinishTrainStep{Attempt: attempt, Output: modelName(output), Results: files}))
	s.comment("train step ends with %s", output)
}

func hotDeployment(base string, change func(*domain.DeploymentSpec)) domain.CreateDeployment {
	spec := domain.DeploymentSpec{BaseModel: string(modelName(base)), EnableHotLoad: true}
	if change != nil {
		change(&spec)
	}
	return domain.CreateDeployment{DeploymentSpec: spec}
}

func TestWeightsGoToTheirDeployment(t *testing.T) {
	s := newHarness(t)
	s.given(account(), baseModel("base"), baseModel("other"), node("n1", "", 4, nil),
		onDeployment("d", hotDeployment("base", func(d *domain.DeploymentSpec) { d.MinReplicaCount = 1 })))
	s.execute(schedulers.Replicas{})
	s.do(onDeployment("d", domain.AdvanceReplica{ID: "r1", State: domain.ReplicaReady, Node: nodeName("n1")}))
	s.advance(time.Second)
	s.teaches("j", "base", "d")
	s.comment("a job without a checkpoint has no weights to offer")
	s.plan(schedulers.HotLoads{})
	s.advance(time.Second)
	s.saves("j", 1, 10, "adapter_config.json")
	s.execute(schedulers.HotLoads{})
	s.advance(time.Second)
	s.saves("j", 1, 20, "adapter_config.json")
	s.comment("the first weights are still being loaded")
	s.plan(schedulers.HotLoads{})
	s.do(onDeployment("d", domain.SwapWeights{ID: "hot:j/1-10/model/", Replicas: []string{"r1"}}))
	s.execute(schedulers.HotLoads{})
	s.do(onDeployment("d", domain.SwapWeights{ID: "hot:j/1-20/model/", Replicas: []string{"r1"}}))
	s.advance(time.Second)
	s.ends("j", 1, "j-1")
	s.execute(schedulers.HotLoads{})
	s.do(onDeployment("d", domain.SwapWeights{ID: "hot:models/j-1/", Replicas: []string{"r1"}}))
	s.comment("the newest weights are served")
	s.plan(schedulers.HotLoads{})

	s.advance(time.Second)
	s.teaches("stranger", "other", "d")
	s.saves("stranger", 1, 5, "adapter_config.json")
	s.execute(schedulers.HotLoads{})
	s.comment("refused weights are not offered again")
	s.plan(schedulers.HotLoads{})
	s.advance(time.Second)
	s.comment("the model is deleted, so the deployment serves its own model")
	s.given(onModel("j-1", domain.RequestDeletion(domain.Models)), onModel("j-1", domain.DeleteModel{}))
	s.execute(schedulers.HotLoads{})
	s.plan(schedulers.HotLoads{})
	s.compare("hot_loads")
}

func TestWeightsOfAllParameters(t *testing.T) {
	s := newHarness(t)
	s.given(account(), baseModel("base"), node("n1", "", 4, nil), onDeployment("asleep", hotDeployment("base", nil)),
		onDeployment("shared", hotDeployment("base", func(d *domain.DeploymentSpec) { d.EnableAddons = true })),
		onDeployment("off", hotDeployment("base", func(d *domain.DeploymentSpec) { d.EnableHotLoad = false })))
	for _, id := range []string{"asleep", "shared", "off"} {
		s.advance(time.Second)
		s.teaches("j-"+id, "base", id)
		s.saves("j-"+id, 1, 10, "config.json")
	}
	s.execute(schedulers.HotLoads{})
	s.comment("without replicas the weights are swapped at once; a deployment with addons refuses them")
	s.execute(schedulers.HotLoads{})
	s.plan(schedulers.HotLoads{})
	s.comment("the job is deleted")
	s.given(domain.IntendJob(trainerName("j-asleep"), domain.DeleteJob{}))
	s.execute(schedulers.HotLoads{})
	s.plan(schedulers.HotLoads{})
	s.compare("hot_loads_all_parameters")
}
