package schedulers_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/schedulers"
)

func onAddon(id string, cmd domain.Command[domain.DeployedModel]) domain.Intent {
	return domain.Intend(domain.DeployedModels, domain.NewName("acme", domain.DeployedModels.Collection, id), cmd)
}

func addonModel(id string) domain.Intent {
	return onModel(id, domain.RegisterModel{ModelSpec: domain.ModelSpec{Kind: domain.PEFTAddon,
		BaseModel: string(modelName("base"))}, Files: domain.Files{Prefix: "models/" + id + "/"}})
}

func loaded(model, deployment string) domain.CreateDeployedModel {
	return domain.CreateDeployedModel{DeployedModelSpec: domain.DeployedModelSpec{Model: string(modelName(model)),
		Deployment: string(deploymentName(deployment))}}
}

func addonDeployment(change func(*domain.DeploymentSpec)) domain.CreateDeployment {
	spec := domain.DeploymentSpec{BaseModel: string(modelName("base")), EnableAddons: true}
	if change != nil {
		change(&spec)
	}
	return domain.CreateDeployment{DeploymentSpec: spec}
}

func TestAddonsFollowTheirDeployment(t *testing.T) {
	s := newHarness(t)
	s.given(account(), baseModel("base"), addonModel("polite"), addonModel("terse"), node("n1", "", 4, nil),
		onDeployment("d", addonDeployment(func(d *domain.DeploymentSpec) { d.MinReplicaCount = 1 })))
	s.execute(schedulers.Replicas{})
	s.advance(time.Second)
	s.given(onAddon("a", loaded("polite", "d")))
	s.advance(time.Second)
	s.given(onAddon("b", loaded("polite", "d")))
	s.comment("a replica is starting, so the first addon stays DEPLOYING; the second fails, because it has the same model")
	s.execute(schedulers.Addons{})
	s.plan(schedulers.Addons{})
	s.comment("enableAddons is turned off")
	s.given(onDeployment("d", domain.UpdateDeployment{DeploymentSpec: domain.DeploymentSpec{BaseModel: string(modelName(
		"base")), MinReplicaCount: 1, Placement: &domain.Placement{MultiRegion: "GLOBAL"}}}))
	s.execute(schedulers.Addons{})
	s.comment("the deployment is deleted: FAILED addons are removed too, once no replica is left")
	s.given(onDeployment("d", domain.DeleteDeployment{IgnoreChecks: true}))
	s.execute(schedulers.Addons{})
	s.plan(schedulers.Addons{})
	s.execute(schedulers.Replicas{}, schedulers.Addons{})
	s.plan(schedulers.Addons{})
	require.Zero(t, s.world.View().DeployedModels.Len())
	s.compare("addons_deployment")
}

// TestAddonsOfUndeletedDeployments checks that the addons of a deleted deployment wait for its
// undelete, and are removed when it is purged.
func TestAddonsOfUndeletedDeployments(t *testing.T) {
	s := newHarness(t)
	s.given(account(), baseModel("base"), addonModel("polite"), addonModel("terse"), node("n1", "", 4, nil),
		onDeployment("d", addonDeployment(func(d *domain.DeploymentSpec) { d.MinReplicaCount = 1 })))
	s.execute(schedulers.Replicas{})
	s.advance(time.Second)
	s.given(onAddon("a", loaded("polite", "d")), onAddon("a", domain.MarkModelDeployed{}),
		onAddon("b", loaded("terse", "d")))
	s.given(onDeployment("d", domain.DeleteDeployment{IgnoreChecks: true}))
	s.execute(schedulers.Addons{})
	s.comment("a replica may still have the addons")
	s.execute(schedulers.Addons{}, schedulers.Replicas{}, schedulers.Allocations{}, schedulers.Addons{},
		schedulers.Replicas{})
	s.comment("the addons are kept until the deployment is undeleted or purged")
	s.plan(schedulers.Addons{})
	s.given(onDeployment("d", domain.UndeleteDeployment{}))
	s.execute(schedulers.Addons{})
	s.plan(schedulers.Addons{})
	s.given(onDeployment("d", domain.DeleteDeployment{IgnoreChecks: true, Hard: true}))
	s.execute(schedulers.Addons{}, schedulers.Addons{})
	s.plan(schedulers.Addons{})
	require.Zero(t, s.world.View().DeployedModels.Len())
	s.compare("addons_undeleted")
}

func TestAddonsOfADeploymentThatSleeps(t *testing.T) {
	s := newHarness(t)
	s.given(account(), baseModel("base"), addonModel("polite"), onDeployment("d", addonDeployment(nil)))
	s.advance(time.Second)
	s.given(onAddon("a", loaded("polite", "d")))
	s.execute(schedulers.Addons{})
	s.plan(schedulers.Addons{})
	s.comment("a new deployment gets the name: the addon belonged to the deleted one")
	s.advance(time.Minute)
	s.do(onDeployment("d", domain.DeleteDeployment{IgnoreChecks: true, Hard: true}))
	s.do(onDeployment("d", domain.FinishDeletion{}))
	s.given(onDeployment("d", addonDeployment(nil)))
	s.execute(schedulers.Addons{}, schedulers.Addons{})
	s.compare("addons_asleep")
}

func TestTheLatestAddonTakesThePlaceOfOthers(t *testing.T) {
	s := newHarness(t)
	s.given(account(), baseModel("base"), addonModel("one"), addonModel("two"), addonModel("three"),
		node("n1", "", 4, nil),
		onDeployment("d", addonDeployment(func(d *domain.DeploymentSpec) {
			d.EnableHotReloadLatestAddon, d.MinReplicaCount = true, 1
		})))
	s.execute(schedulers.Replicas{})
	s.advance(time.Second)
	s.given(onAddon("one", loaded("one", "d")), onAddon("one", domain.MarkModelDeployed{}))
	s.advance(time.Second)
	s.given(onAddon("two", loaded("two", "d")))
	s.comment("the older addon serves until the newer one is DEPLOYED")
	s.plan(schedulers.Addons{})
	s.given(onAddon("two", domain.MarkModelDeployed{}))
	s.execute(schedulers.Addons{})
	s.comment("a newer addon that fails replaces no other")
	s.advance(time.Second)
	s.given(onAddon("three", loaded("three", "d")), onAddon("three",
		domain.FailDeployedModel{Status: domain.Status{Code: "FAILED_PRECONDITION", Message: "no"}}))
	s.plan(schedulers.Addons{})
	s.compare("addons_latest")
}

func TestADeploymentTakesSoManyAddons(t *testing.T) {
	s := newHarness(t)
	s.do(account())
	s.do(baseModel("base"))
	s.do(onDeployment("d", addonDeployment(nil)))
	for i := range domain.MaxAddons + 2 {
		s.do(addonModel(fmt.Sprint("m", i)))
		s.now = s.now.Add(time.Second)
		s.do(onAddon(fmt.Sprint("a", i), loaded(fmt.Sprint("m", i), "d")))
	}
	s.execute(schedulers.Addons{})
	failed := 0
	for row := range s.world.View().DeployedModels.All() {
		if row.State.State == domain.ModelFailedState {
			failed++
			require.True(t, strings.HasSuffix(string(row.Name), fmt.Sprint("/a", domain.MaxAddons)) ||
				strings.HasSuffix(string(row.Name), fmt.Sprint("/a", domain.MaxAddons+1)), "%s: the newest", row.Name)
			require.Equal(t, "RESOURCE_EXHAUSTED", row.State.Status.Code)
		}
	}
	require.Equal(t, 2, failed)
}
