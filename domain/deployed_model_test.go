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
		{name: "it is made", when: domain.CreateDeployedModel{DeployedModelSpec: someAddon, CreatedBy: "ada"}, then: made},
		{name: "it needs a model",
			when:  domain.CreateDeployedModel{DeployedModelSpec: changed(func(s *domain.DeployedModelSpec) { s.Model = "" })},
			fault: "INVALID_FIELDS", says: "model: is required"},
		{name: "it needs a deployment's name",
			when: domain.CreateDeployedModel{
				DeployedModelSpec: changed(func(s *domain.DeployedModelSpec) { s.Deployment = "d" })},
			fault: "INVALID_FIELDS", says: "accounts/ACCOUNT/deployments/ID"},
		{name: "a long name", when: domain.CreateDeployedModel{
			DeployedModelSpec: changed(func(s *domain.DeployedModelSpec) { s.DisplayName = strings.Repeat("x", 256) })},
			fault: "INVALID_FIELDS", says: "at most 255"},
		{name: "what the caller sets may change", given: f(made), when: domain.UpdateDeployedModel{DeployedModelSpec: named},
			then: domain.DeployedModelUpdated{DeployedModelSpec: named}},
		{name: "the model may not", given: f(made),
			when:  domain.UpdateDeployedModel{DeployedModelSpec: changed(func(s *domain.DeployedModelSpec) { s.Model += "2" })},
			fault: "INVALID_FIELDS", says: "model: cannot change"},
		{name: "nor the deployment", given: f(made),
			when: domain.UpdateDeployedModel{
				DeployedModelSpec: changed(func(s *domain.DeployedModelSpec) { s.Deployment += "2" })},
			fault: "INVALID_FIELDS", says: "deployment: cannot change"},
		{name: "it becomes the default with a rank", given: f(made),
			when: domain.UpdateDeployedModel{DeployedModelSpec: named, DefaultRank: 2},
			then: domain.DeployedModelUpdated{DeployedModelSpec: named, DefaultRank: 2}},
		{name: "a change keeps the rank",
			given: f(made, domain.DeployedModelUpdated{DeployedModelSpec: named, DefaultRank: 2}),
			when:  domain.UpdateDeployedModel{DeployedModelSpec: someAddon},
			then:  domain.DeployedModelUpdated{DeployedModelSpec: someAddon, DefaultRank: 2}},
		{name: "it cedes the default", given: f(made, domain.DeployedModelUpdated{DeployedModelSpec: named, DefaultRank: 2}),
			when: domain.CedeDefault{Rank: 2}, then: domain.DeployedModelUpdated{DefaultRank: 2,
				DeployedModelSpec: changed(func(s *domain.DeployedModelSpec) { s.DisplayName = "mine" })}},
		{name: "it has become the default again meanwhile",
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
