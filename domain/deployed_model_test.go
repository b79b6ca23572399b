package domain_test

import (
	"strings"
	"testing"

	"anneal/domain"
)

var someAddon = domain.DeployedModelSpec{Model: "accounts/a/models/m", Deployment: "accounts/a/deployments/d"}

func TestDeployedModelDecisions(t *testing.T) {
	f := events[domain.DeployedModel]
	made := domain.DeployedModelCreated{DeployedModelSpec: someAddon, CreatedBy: "ada"}
	changed := func(change func(*domain.DeployedModelSpec)) domain.DeployedModelSpec {
		spec := someAddon
		change(&spec)
		return spec
	}
	named := changed(func(s *domain.DeployedModelSpec) { s.DisplayName, s.Default = "mine", true })
	decide(t, domain.DeployedModels, []decision[domain.DeployedModel]{
		{name: "create", when: domain.CreateDeployedModel{DeployedModelSpec: someAddon, CreatedBy: "ada"}, then: made},
		{name: "create without a model",
			when:  domain.CreateDeployedModel{DeployedModelSpec: changed(func(s *domain.DeployedModelSpec) { s.Model = "" })},
			fault: "INVALID_FIELDS", says: "model: is required"},
		{name: "create without the name of a deployment",
			when: domain.CreateDeployedModel{
				DeployedModelSpec: changed(func(s *domain.DeployedModelSpec) { s.Deployment = "d" })},
			fault: "INVALID_FIELDS", says: "accounts/ACCOUNT/deployments/ID"},
		{name: "create with a long name", when: domain.CreateDeployedModel{
			DeployedModelSpec: changed(func(s *domain.DeployedModelSpec) { s.DisplayName = strings.Repeat("x", 256) })},
			fault: "INVALID_FIELDS", says: "at most 255"},
		{name: "update", given: f(made), when: domain.UpdateDeployedModel{DeployedModelSpec: named},
			then: domain.DeployedModelUpdated{DeployedModelSpec: named}},
		{name: "update the model", given: f(made),
			when:  domain.UpdateDeployedModel{DeployedModelSpec: changed(func(s *domain.DeployedModelSpec) { s.Model += "2" })},
			fault: "INVALID_FIELDS", says: "model: cannot change"},
		{name: "update the deployment", given: f(made),
			when: domain.UpdateDeployedModel{
				DeployedModelSpec: changed(func(s *domain.DeployedModelSpec) { s.Deployment += "2" })},
			fault: "INVALID_FIELDS", says: "deployment: cannot change"},
		{name: "make it the default", given: f(made),
			when: domain.UpdateDeployedModel{DeployedModelSpec: named, DefaultRank: 2},
			then: domain.DeployedModelUpdated{DeployedModelSpec: named, DefaultRank: 2}},
		{name: "update keeps the rank",
			given: f(made, domain.DeployedModelUpdated{DeployedModelSpec: named, DefaultRank: 2}),
			when:  domain.UpdateDeployedModel{DeployedModelSpec: someAddon},
			then:  domain.DeployedModelUpdated{DeployedModelSpec: someAddon, DefaultRank: 2}},
		{name: "cede the default", given: f(made, domain.DeployedModelUpdated{DeployedModelSpec: named, DefaultRank: 2}),
			when: domain.CedeDefault{Rank: 2}, then: domain.DeployedModelUpdated{DefaultRank: 2,
				DeployedModelSpec: changed(func(s *domain.DeployedModelSpec) { s.DisplayName = "mine" })}},
		{name: "cede after it became the default again",
			given: f(made, domain.DeployedModelUpdated{DeployedModelSpec: named, DefaultRank: 3}),
			when:  domain.CedeDefault{Rank: 2}},
	})
}

func TestDeployedModelTransitions(t *testing.T) {
	f := events[domain.DeployedModel]
	made := domain.DeployedModelCreated{DeployedModelSpec: someAddon}
	named := someAddon
	named.DisplayName = "mine"
	situations := []situation[domain.DeployedModel]{
		{name: "(none)"},
		{name: "DEPLOYING", facts: f(made)},
		{name: "DEPLOYED", facts: f(made, domain.ModelDeployed{})},
		{name: "FAILED", facts: f(made, domain.DeployedModelFailed{Status: someStatus})},
		{name: "UNDEPLOYING", facts: f(made, domain.ModelUndeploying{Reason: "by its user"})},
		{name: "UNDEPLOYING, restorable", facts: f(made, domain.ModelUndeploying{Restorable: true})},
		{name: "UNDEPLOYED", facts: f(made, domain.ModelUndeploying{Restorable: true},
			domain.ModelUndeployed{Restorable: true})},
	}
	commands := []domain.Command[domain.DeployedModel]{domain.CreateDeployedModel{DeployedModelSpec: someAddon},
		domain.MarkModelDeployed{},
		domain.FailDeployedModel{Status: someStatus}, domain.UpdateDeployedModel{DeployedModelSpec: named},
		domain.UndeployModel{Reason: "by its user"}, restorable{domain.UndeployModel{Restorable: true}},
		domain.FinishUndeployment{}, domain.RestoreDeployedModel{}}
	golden(t, "deployed_model_transitions.txt",
		transitions(t, domain.DeployedModels, situations, commands,
			func(m domain.DeployedModel) string {
				if m.Restorable {
					return m.State + ", restorable"
				}
				return orNone(m.State)
			}))
}

// restorable is a restorable UndeployModel that the golden file shows with a separate name.
type restorable struct {
	domain.Command[domain.DeployedModel]
}

func (restorable) word() string { return "UndeployModel, restorable" }
