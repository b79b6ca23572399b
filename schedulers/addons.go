package schedulers

import (
	"fmt"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// Addons keeps the deployed models to what their deployments are:
//
//  1. those of a deployment that is gone or ends are undeployed
//  2. those that it does not take fail: addons are turned off, the model is
//     gone, the same one is there already, or there are too many; of several
//     the newest fail
//  3. where the latest addon alone is to be loaded, the others are undeployed
//     once it is DEPLOYED, so that there is one at all times
//  4. where no replica is wanted, what is DEPLOYING is DEPLOYED, and what is
//     UNDEPLOYING is undeployed: a replica that comes loads what is wanted then
//
// The rest depends on what replicas have loaded, and is settled where they
// report.
type Addons struct{}

// Name implements Scheduler.
func (Addons) Name() string { return "addons" }

// Plan implements Scheduler.
func (Addons) Plan(v *projections.View, _ time.Time) Plan {
	p := addonPlan{view: v, models: map[string]bool{}, counts: map[string]int{}, latest: map[string]domain.Name{}}
	for account := range v.Accounts.All() {
		for row := range v.DeployedModels.Oldest(account.Name.Account()) {
			p.rows = append(p.rows, row)
			if row.State.State == domain.ModelDeployedState {
				p.latest[row.State.Deployment] = row.Name
			}
		}
	}
	for _, row := range p.rows {
		p.keep(row)
	}
	return p.plan
}

type addonPlan struct {
	view   *projections.View
	plan   Plan
	rows   []*projections.Row[domain.DeployedModel] // the oldest of an account first
	models map[string]bool                          // deployment and model → one is wanted
	counts map[string]int                           // deployment → how many are wanted
	latest map[string]domain.Name                   // deployment → the newest that is DEPLOYED
}

func (p *addonPlan) keep(row *projections.Row[domain.DeployedModel]) {
	m := &row.State
	deployment, ok := p.view.Deployments.Get(domain.Name(m.Deployment))
	there := ok && !deployment.CreateTime.After(row.CreateTime)
	replicas := 0
	if there {
		replicas = len(deployment.State.Replicas)
	}
	switch {
	case m.State == domain.ModelUndeployingState && replicas == 0:
		p.intend(row, domain.FinishUndeployment{})
	case m.State == domain.ModelUndeployingState:
	case !there:
		p.intend(row, domain.UndeployModel{Reason: "its deployment is gone"})
	case !deployment.State.Live():
		p.intend(row, domain.UndeployModel{Reason: "its deployment is " + deployment.State.State})
	case m.Wanted():
		p.judge(row, &deployment.State)
	}
}

// judge is steps 2 to 4 for an addon that is wanted in a deployment that lives.
func (p *addonPlan) judge(row *projections.Row[domain.DeployedModel], d *domain.Deployment) {
	m := &row.State
	if fault := p.refusal(row, d); fault != nil {
		p.intend(row, domain.FailDeployedModel{Status: domain.StatusOf(fault)})
		return
	}
	p.models[m.Deployment+" "+m.Model] = true
	p.counts[m.Deployment]++
	latest := p.latest[m.Deployment]
	switch {
	case d.EnableHotReloadLatestAddon && p.older(row, latest):
		p.intend(row, domain.UndeployModel{Reason: fmt.Sprintf("%s, which is newer, took its place", latest)})
	case m.State == domain.ModelDeployingState && d.DesiredReplicas == 0 && len(d.Replicas) == 0:
		p.intend(row, domain.SettleDeployedModel{})
	}
}

// older tells whether row was created before another.
func (p *addonPlan) older(row *projections.Row[domain.DeployedModel], other domain.Name) bool {
	newer, ok := p.view.DeployedModels.Get(other)
	return ok && other != row.Name && (newer.CreateTime.After(row.CreateTime) || newer.CreateTime.Equal(row.CreateTime) && other > row.Name)
}

// refusal is why the deployment does not take the addon, or nil.
func (p *addonPlan) refusal(row *projections.Row[domain.DeployedModel], d *domain.Deployment) *domain.Error {
	m := &row.State
	model, ok := p.view.Models.Get(domain.Name(m.Model))
	switch {
	case !d.EnableAddons:
		return domain.Errorf(domain.FailedPrecondition, "%s has enableAddons turned off: turn it on and load the addon again", m.Deployment)
	case !ok || model.CreateTime.After(row.CreateTime):
		return domain.Errorf(domain.NotFound, "the model %s is gone", m.Model)
	case p.models[m.Deployment+" "+m.Model]:
		return domain.Errorf(domain.AlreadyExists, "%s has %s loaded already", m.Deployment, m.Model)
	case p.counts[m.Deployment] >= domain.MaxAddons:
		return domain.Errorf(domain.ResourceExhausted, "%s has %d addons, and takes no more: unload one first", m.Deployment, domain.MaxAddons)
	}
	return nil
}

func (p *addonPlan) intend(row *projections.Row[domain.DeployedModel], cmd domain.Command[domain.DeployedModel]) {
	p.plan.add(domain.Intend(domain.DeployedModels, row.Name, cmd))
}
