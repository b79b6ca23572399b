package schedulers_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/schedulers"
)

func TestReplicasAreKept(t *testing.T) {
	s := begin(t, node("n1", domain.PoolInference, 1, nil), node("n2", domain.PoolInference, 2, nil),
		node("n3", domain.PoolTraining, 1, nil))
	s.given(deployment("d1", 2, 4, nil))
	s.execute(schedulers.Replicas{})
	s.report("d1", "r1", "n2", domain.ReplicaInitializing)
	s.report("d1", "r2", "n1", domain.ReplicaReady)
	s.execute(schedulers.Replicas{})
	s.report("d1", "r1", "n2", domain.ReplicaReady)
	s.execute(schedulers.Replicas{})
	s.comment("the deployment is scaled up")
	s.given(onDeployment("d1", domain.ScaleDeployment{Replicas: 4}))
	s.execute(schedulers.Replicas{})
	s.report("d1", "r3", "n2", domain.ReplicaReady)
	s.comment("the deployment is scaled down: the replica that is not ready is removed first, then the newest")
	s.given(onDeployment("d1", domain.ScaleDeployment{Replicas: 2}))
	s.execute(schedulers.Replicas{}, schedulers.Allocations{})
	s.comment("a node is lost")
	s.given(onNode("n1", domain.LoseNode{Reason: "silent"}))
	s.execute(schedulers.Replicas{}, schedulers.Replicas{})
	s.compare("replicas_kept")
}

// TestReplicasTakeTheMemoryOfTheirModel checks that a node holds as many replicas as fit into its
// memory with their KV caches. A replica without capacity waits with a status that lists what the
// nodes lack, and is placed when a node has capacity.
func TestReplicasTakeTheMemoryOfTheirModel(t *testing.T) {
	s := newHarnessWithInputs(t)
	half := domain.ModelMetadata{ParameterCount: 494_032_768, ContextLength: 2048,
		Attention: domain.Attention{Layers: 24, KVHeads: 2, HeadSize: 64}}
	large := onModel("large", domain.RegisterModel{ModelSpec: domain.ModelSpec{Kind: domain.BaseModel},
		ModelMetadata: half,
		Files:         domain.Files{Prefix: "models/large/", Sizes: map[string]int64{"model.safetensors": 988_097_824}}})
	tuned := onModel("tuned", domain.RegisterModel{ModelSpec: domain.ModelSpec{Kind: domain.PEFTAddon,
		BaseModel: string(modelName("large"))},
		Files: domain.Files{Prefix: "models/tuned/", Sizes: map[string]int64{"adapter_model.safetensors": 1 << 20}}})
	of := func(model string, precision string) func(*domain.DeploymentSpec) {
		return func(spec *domain.DeploymentSpec) {
			spec.BaseModel, spec.Precision = string(modelName(model)), precision
		}
	}
	s.given(node("n1", domain.PoolInference, 4, nil), large, tuned)
	s.comment("two replicas of a large model leave memory for a small model, and for a copy in 8 bits once it is prepared")
	s.given(deployment("d1", 3, 3, of("large", "FP8")))
	s.execute(schedulers.Replicas{})
	s.given(deployment("d2", 1, 1, nil))
	s.execute(schedulers.Replicas{})
	s.given(onModel("large", domain.PrepareModel{Precision: "FP8"}),
		onModel("large", domain.FinishCopy{Precision: "FP8", Attempt: 1,
			Files: domain.Files{Prefix: "models/large-8/", Sizes: map[string]int64{"model.safetensors": 300_000_000}}}))
	s.execute(schedulers.Replicas{})
	s.comment("merged with an addon, the model takes 32 bits per weight")
	s.given(deployment("d3", 1, 1, of("tuned", "FP8")))
	s.execute(schedulers.Replicas{})
	view := s.world.View()
	row, _ := view.Deployments.Get(deploymentName("d3"))
	require.Empty(t, row.State.Replicas)
	s.comment("it waits: %s", view.Feasibility(view.NeedOf(&row.State)))
	s.compare("replicas_by_memory")
}

// TestReplicasAreSpread checks that the replicas of a deployment are spread over nodes. Replicas
// without accelerators are placed only on nodes without accelerators: first on different nodes, and
// then on a node that already has a replica. Replicas with accelerators fill a small node before
// they use a device of a large one.
func TestReplicasAreSpread(t *testing.T) {
	s := begin(t, node("n1", domain.PoolInference, 1, nil), node("n2", domain.PoolInference, 2, nil),
		node("n3", domain.PoolInference, 4, nil),
		node("g1", domain.PoolInference, 1, map[string]int{"VENDOR_A_H100_80GB": 8}), node("g2", domain.PoolInference,
			1, map[string]int{"VENDOR_A_H100_80GB": 2}))
	s.given(deployment("d1", 4, 4, nil), deployment("d2", 3, 3, func(spec *domain.DeploymentSpec) {
		spec.AcceleratorType, spec.AcceleratorCount = "VENDOR_A_H100_80GB", 1
	}))
	s.execute(schedulers.Replicas{})
	homes := map[string]string{}
	for _, id := range []string{"d1", "d2"} {
		row, _ := s.world.View().Deployments.Get(deploymentName(id))
		for _, r := range row.State.Ordered() {
			homes[id] += r.Node.ID() + " "
		}
	}
	require.Equal(t, map[string]string{"d1": "n2 n3 n1 n2 ", "d2": "g2 g2 g1 "}, homes)
}

func TestReplicasOfZero(t *testing.T) {
	s := begin(t, node("n1", domain.PoolInference, 1, nil))
	s.given(deployment("d1", 0, 1, nil))
	s.execute(schedulers.Replicas{}, schedulers.Replicas{})
	s.given(onDeployment("d1", domain.WakeDeployment{}))
	s.execute(schedulers.Replicas{})
	s.compare("replicas_zero")
}

func TestReplicasRollOutWithASurge(t *testing.T) {
	s := begin(t, node("n1", domain.PoolInference, 1, nil))
	s.given(deployment("d1", 2, 2, nil))
	s.execute(schedulers.Replicas{})
	s.report("d1", "r1", "n1", domain.ReplicaReady)
	s.report("d1", "r2", "n1", domain.ReplicaReady)
	s.execute(schedulers.Replicas{})
	s.update("d1")
	s.comment("at most one replica above the desired count; an old one is removed when a new one is ready")
	s.execute(schedulers.Replicas{}, schedulers.Replicas{})
	s.report("d1", "r3", "n1", domain.ReplicaReady)
	s.execute(schedulers.Replicas{}, schedulers.Replicas{})
	s.report("d1", "r4", "n1", domain.ReplicaReady)
	s.execute(schedulers.Replicas{}, schedulers.Replicas{})
	s.compare("replicas_rollout_surge")
}

// update changes the settings of a deployment.
func (s *harness) update(id string) {
	s.t.Helper()
	row, ok := s.world.View().Deployments.Get(deploymentName(id))
	if !ok {
		s.t.Fatal("no such deployment")
	}
	spec := row.State.DeploymentSpec
	spec.MaxContextLength += 1024
	s.given(onDeployment(id, domain.UpdateDeployment{DeploymentSpec: spec}))
}

func TestReplicasRollOutOneByOneWithoutCapacity(t *testing.T) {
	s := newHarnessWithInputs(t)
	two := map[string]int{"VENDOR_A_L4_24GB": 1}
	s.given(node("n1", domain.PoolInference, 8, two), node("n2", domain.PoolInference, 8, two))
	s.given(deployment("d1", 2, 2, func(d *domain.DeploymentSpec) { d.AcceleratorType = "VENDOR_A_L4_24GB" }))
	s.execute(schedulers.Replicas{})
	s.report("d1", "r1", "n2", domain.ReplicaReady)
	s.report("d1", "r2", "n1", domain.ReplicaReady)
	s.execute(schedulers.Replicas{})
	s.update("d1")
	s.comment("there is no capacity for a third replica: an old one is removed first")
	s.execute(schedulers.Replicas{}, schedulers.Replicas{}, schedulers.Allocations{}, schedulers.Replicas{},
		schedulers.Replicas{})
	s.report("d1", "r3", "n1", domain.ReplicaReady)
	s.execute(schedulers.Replicas{}, schedulers.Allocations{}, schedulers.Replicas{})
	s.report("d1", "r4", "n2", domain.ReplicaReady)
	s.execute(schedulers.Replicas{})
	s.compare("replicas_rollout_in_place")
}

func TestReplicasAreNotRemovedForWhatFitsNowhere(t *testing.T) {
	s := begin(t, node("n1", domain.PoolInference, 1, nil))
	s.given(deployment("d1", 1, 1, nil))
	s.execute(schedulers.Replicas{})
	s.report("d1", "r1", "n1", domain.ReplicaReady)
	s.execute(schedulers.Replicas{})
	row, _ := s.world.View().Deployments.Get(deploymentName("d1"))
	spec := row.State.DeploymentSpec
	spec.AcceleratorType, spec.AcceleratorCount = "VENDOR_A_H100_80GB", 8
	s.given(onDeployment("d1", domain.UpdateDeployment{DeploymentSpec: spec}))
	s.execute(schedulers.Replicas{})
	s.compare("replicas_rollout_impossible")
}

func TestReplicasFindNoPlace(t *testing.T) {
	s := begin(t, node("n1", domain.PoolInference, 8, map[string]int{"VENDOR_A_L4_24GB": 2}),
		node("n2", domain.PoolTraining, 8, map[string]int{"VENDOR_A_L4_24GB": 8}))
	s.given(deployment("d1", 1, 1, func(d *domain.DeploymentSpec) {
		d.AcceleratorType,
			d.AcceleratorCount = "VENDOR_A_L4_24GB", 4
	}))
	s.execute(schedulers.Replicas{})
	s.advance(schedulers.PlaceWithin)
	s.execute(schedulers.Replicas{})
	s.compare("replicas_no_place")
}

func TestReplicasOfAModelThatIsNotThere(t *testing.T) {
	s := newHarness(t)
	s.given(account(), node("n1", domain.PoolInference, 8, nil),
		onModel("unfinished", domain.CreateModel{ModelSpec: domain.ModelSpec{Kind: domain.BaseModel}}))
	s.given(deployment("d1", 1, 1, nil))
	s.given(deployment("d2", 1, 1, func(d *domain.DeploymentSpec) { d.BaseModel = string(modelName("unfinished")) }))
	s.execute(schedulers.Replicas{})
	s.advance(schedulers.PlaceWithin)
	s.execute(schedulers.Replicas{})
	s.compare("replicas_no_model")
}

func TestReplicasThatFail(t *testing.T) {
	s := begin(t, node("n1", domain.PoolInference, 8, nil))
	s.given(deployment("new", 1, 1, nil))
	s.given(deployment("old", 1, 1, nil))
	s.execute(schedulers.Replicas{})
	s.report("old", "r1", "n1", domain.ReplicaReady)
	s.execute(schedulers.Replicas{})
	broken := func(id, replica string) {
		s.given(onDeployment(id, domain.RemoveReplica{ID: replica, Reason: "out of memory", Failed: true}))
	}
	s.comment("a failed replica is replaced after a pause that doubles")
	broken("old", "r1")
	s.execute(schedulers.Replicas{})
	s.advance(time.Second)
	s.execute(schedulers.Replicas{})
	broken("old", "r2")
	s.execute(schedulers.Replicas{})
	s.advance(2 * time.Second)
	s.execute(schedulers.Replicas{})
	broken("old", "r3")
	s.execute(schedulers.Replicas{})
	s.comment("a deployment that has never been READY fails")
	broken("new", "r1")
	s.advance(time.Hour)
	s.execute(schedulers.Replicas{})
	broken("new", "r2")
	s.advance(time.Hour)
	s.execute(schedulers.Replicas{})
	broken("new", "r3")
	s.execute(schedulers.Replicas{}, schedulers.Allocations{})
	s.compare("replicas_failing")
}

func TestReplicasLeave(t *testing.T) {
	s := begin(t, node("n1", domain.PoolInference, 8, nil))
	s.given(deployment("soft", 2, 2, nil), deployment("hard", 1, 1, nil))
	s.execute(schedulers.Replicas{})
	s.given(onDeployment("soft", domain.DeleteDeployment{IgnoreChecks: true}),
		onDeployment("hard", domain.DeleteDeployment{IgnoreChecks: true, Hard: true}))
	s.execute(schedulers.Replicas{})
	s.comment("the node still has their allocations")
	s.execute(schedulers.Replicas{}, schedulers.Allocations{}, schedulers.Replicas{}, schedulers.Expiry{})
	s.compare("replicas_deleted")
}

func TestExpiry(t *testing.T) {
	s := newHarnessWithInputs(t)
	at := func(d time.Duration) *time.Time { due := noon.Add(d); return &due }
	s.given(deployment("soon", 0, 1, func(d *domain.DeploymentSpec) { d.ExpireTime = at(time.Hour) }),
		deployment("never", 0, 1, nil))
	s.given(domain.Intend(domain.SupervisedJobs, jobName("j1"),
		domain.CreateSupervisedJob{ID: "j1", Deadline: at(2 * time.Hour),
			SupervisedSpec: domain.SupervisedSpec{Dataset: string(datasetName("rows")),
				TrainingConfig: domain.TrainingConfig{BaseModel: string(modelName("base"))}}}))
	s.execute(schedulers.Expiry{})
	s.advance(time.Hour)
	s.execute(schedulers.Expiry{}, schedulers.Replicas{KeepDeleted: 3 * time.Hour}, schedulers.Expiry{})
	s.advance(time.Hour)
	s.execute(schedulers.Expiry{}, schedulers.Expiry{})
	s.advance(2 * time.Hour)
	s.execute(schedulers.Expiry{}, schedulers.Expiry{})
	s.compare("expiry")
}
