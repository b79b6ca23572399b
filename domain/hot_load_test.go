package domain_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// hotWeights returns the weights of a step of a trainer job.
func hotWeights(step int) domain.HotWeights {
	return domain.HotWeights{Job: "accounts/a/rlorTrainerJobs/j", TrainStep: 1, Step: step, Adapter: true,
		Position: uint64(step),
		Files:    domain.Files{Prefix: fmt.Sprintf("j/%d/", step), Sizes: map[string]int64{"adapter_config.json": 2}},
		Made:     *later(time.Duration(step) * time.Minute)}
}

func TestHotLoadTransitions(t *testing.T) {
	f := events[domain.Deployment]
	spec := domain.DeploymentSpec{BaseModel: "accounts/a/models/m", MinReplicaCount: 1, MaxReplicaCount: ptr(2),
		EnableHotLoad: true, Placement: &domain.Placement{MultiRegion: "GLOBAL"}}
	off := spec
	off.EnableHotLoad = false
	ready := f(domain.DeploymentCreated{DeploymentSpec: spec, Time: noon},
		domain.ReplicaPlaced{ID: "r1", Node: "n1", Generation: 1},
		domain.ReplicaAdvanced{ID: "r1", State: domain.ReplicaReady})
	offered := also(ready, domain.WeightsOffered{HotWeights: hotWeights(1)})
	served := also(offered, domain.WeightsSwapped{HotWeights: hotWeights(1), Time: noon})
	situations := []situation[domain.Deployment]{
		{name: "(none)"},
		{name: "enableHotLoad is off", facts: also(ready, domain.DeploymentUpdated{DeploymentSpec: off, Time: noon})},
		{name: "one replica, its model's own weights", facts: ready},
		{name: "step 1 is offered", facts: offered},
		{name: "step 1 is offered, and two replicas are ready",
			facts: also(offered, domain.ReplicaPlaced{ID: "r2", Node: "n2", Generation: 1},
				domain.ReplicaAdvanced{ID: "r2", State: domain.ReplicaReady})},
		{name: "step 1 is served", facts: served},
		{name: "step 1 is served, step 2 offered", facts: also(served, domain.WeightsOffered{HotWeights: hotWeights(2)})},
		{name: "step 1 is served, step 2 was refused",
			facts: also(served, domain.WeightsRefused{HotWeights: hotWeights(2), Status: someStatus})},
		{name: "step 2 is served", facts: also(served, domain.WeightsSwapped{HotWeights: hotWeights(2), Time: noon})},
		{name: "step 1 was withdrawn",
			facts: also(served, domain.WeightsWithdrawn{ID: hotWeights(1).ID(), Status: someStatus})},
		{name: "step 1 was served until enableHotLoad was turned off",
			facts: also(served, domain.DeploymentUpdated{DeploymentSpec: off, Time: noon})},
		{name: "DELETING", facts: also(served, domain.DeploymentDeleting{Time: noon})},
	}
	one, two := hotWeights(1), hotWeights(2)
	commands := []domain.Command[domain.Deployment]{domain.OfferWeights{HotWeights: one},
		domain.OfferWeights{HotWeights: two},
		domain.SwapWeights{ID: one.ID(), Replicas: []string{"r1"}},
		domain.SwapWeights{ID: two.ID(), Replicas: []string{"r1", "r2"}},
		domain.RefuseWeights{HotWeights: one, Status: someStatus}, domain.RefuseWeights{HotWeights: two, Status: someStatus},
		domain.WithdrawWeights{ID: one.ID(), Reason: "its job was deleted"}}
	step := func(w *domain.HotWeights) string {
		if w == nil {
			return "-"
		}
		return fmt.Sprint(w.Step)
	}
	golden(t, "hot_load_transitions.txt",
		transitions(t, domain.Deployments, situations, commands, func(d domain.Deployment) string {
			return fmt.Sprintf("serves %s, loads %s, refused %s %s", step(d.Hot.Served), step(d.Hot.Offered),
				step(d.Hot.Refused), d.Hot.Status.Message)
		}))
}

func TestServableFilesOfACheckpoint(t *testing.T) {
	for name, test := range map[string]struct {
		files   []string
		want    []string
		prefix  string
		adapter bool
		ok      bool
	}{
		"an adapter beside its optimiser": {[]string{"model/adapter_config.json", "model/adapter_model.safetensors",
			"optimizer.safetensors"},
			[]string{"adapter_config.json", "adapter_model.safetensors"}, "c/model/", true, true},
		"all parameters": {[]string{"model/config.json", "model/model.safetensors", "state.json"},
			[]string{"config.json", "model.safetensors"}, "c/model/", false, true},
		"a model's own prefix": {[]string{"config.json", "model.safetensors"}, []string{"config.json", "model.safetensors"},
			"c/", false, true},
		"nothing to serve": {[]string{"state.json"}, []string{"state.json"}, "c/", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			files := domain.Files{Prefix: "c/", Sizes: map[string]int64{}, Sums: map[string]string{}}
			for i, file := range test.files {
				files.Sizes[file], files.Sums[file] = int64(i+1), file
			}
			got, adapter, ok := files.Servable()
			require.Equal(t, test.ok, ok)
			require.Equal(t, test.adapter, adapter)
			require.Equal(t, test.prefix, got.Prefix)
			for _, file := range test.want {
				require.Positive(t, got.Sizes[file], file)
				require.NotEmpty(t, got.Sums[file])
			}
			require.Len(t, got.Sizes, len(test.want))
		})
	}
}

func TestHotLoadTargets(t *testing.T) {
	for _, test := range []struct {
		rollout, hot string
		want         []domain.Name
	}{
		{"", "", nil},
		{"accounts/a/deployments/d", "", []domain.Name{"accounts/a/deployments/d"}},
		{"", "d", []domain.Name{"accounts/a/deployments/d"}},
		{"accounts/a/deployments/d", "d", []domain.Name{"accounts/a/deployments/d"}},
		{"accounts/a/deployments/d", "e", []domain.Name{"accounts/a/deployments/d", "accounts/a/deployments/e"}},
	} {
		spec := domain.TrainerSpec{RolloutDeploymentName: test.rollout, HotLoadDeploymentID: test.hot}
		require.Equal(t, test.want, spec.HotLoadTargets("a"))
	}
}
