package schedulers

import (
	"fmt"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// Addons reconciles deployed models with their deployments:
//
//  1. an addon whose deployment was deleted or is ending is undeployed
//  2. an addon that its deployment does not accept fails: addons are turned off, the model was
//     deleted or is loaded already, or exists are too many; of several addons the newest fail
//  3. where only the latest addon is to be loaded, the others are undeployed once it is DEPLOYED,
//     so that one is loaded at all times
//  4. where no replica is wanted, DEPLOYING becomes DEPLOYED, and UNDEPLOYING addons are removed:
//     a later replica loads what is wanted then
//
// All else depends on what replicas have loaded; the coordinator records it.
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
		p.reconcile(row)
	}
	return p.plan
}

type addonPlan struct {
	view   *projections.View
	plan   Plan
	rows   []*projections.Row[domain.DeployedModel] // of an account, the oldest first
	models map[string]bool                          // deployment and model → wanted
	counts map[string]int                           // deployment → how many are wanted
	latest map[string]domain.Name                   // deployment → the newest that is DEPLOYED
}

func (p *addonPlan) reconcile(row *projections.Row[domain.DeployedModel]) {
	m := &row.State
	deployment, ok := p.view.Deployments.Get(domain.Name(m.Deployment))
	exists := ok && !deployment.CreateTime.After(row.CreateTime)
	replicas := 0
	if exists {
		replicas = len(deployment.State.Replicas)
	}
	switch {
	case m.State == domain.ModelUndeployingState && replicas == 0:
		p.intend(row, domain.FinishUndeployment{})
	case m.State == domain.ModelUndeployingState:
	case !exists:
		p.intend(row, domain.UndeployModel{Reason: "its deployment was deleted"})
	case !deployment.State.Live():
		p.intend(row, domain.UndeployModel{Reason: "its deployment is " + deployment.State.State})
	case m.Wanted():
		p.reconcileWanted(row, &deployment.State)
	}
}

// reconcileWanted is steps 2 to 4 for a wanted addon of a live deployment.
func (p *addonPlan) reconcileWanted(row *projections.Row[domain.DeployedModel], d *domain.Deployment) {
	m := &row.State
	if refusal := p.refusal(row, d); refusal != nil {
		p.intend(row, domain.FailDeployedModel{Status: domain.StatusOf(refusal)})
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

// older reports whether row was created before another.
func (p *addonPlan) older(row *projections.Row[domain.DeployedModel], other domain.Name) bool {
	newer, ok := p.view.DeployedModels.Get(other)
	return ok && other != row.Name && (newer.CreateTime.After(row.CreateTime) ||
		newer.CreateTime.Equal(row.CreateTime) && other > row.Name)
}

// refusal returns why the deployment does not accept the addon, or nil.
func (p *addonPlan) refusal(row *projections.Row[domain.DeployedModel], d *domain.Deployment) *domain.Error {
	m := &row.State
	model, ok := p.view.Models.Get(domain.Name(m.Model))
	switch {
	case !d.EnableAddons:
		return domain.Errorf(domain.FailedPrecondition,
			"%s has enableAddons turned off: turn it on and load the addon again", m.Deployment)
	case !ok || model.CreateTime.After(row.CreateTime):
		return domain.Errorf(domain.NotFound, "the model %s is gone", m.Model)
	case p.models[m.Deployment+" "+m.Model]:
		return domain.Errorf(domain.AlreadyExists, "%s has %s loaded already", m.Deployment, m.Model)
	case p.counts[m.Deployment] >= domain.MaxAddons:
		return domain.Errorf(domain.ResourceExhausted, "%s has %d addons, and takes no more: unload one first",
			m.Deployment, domain.MaxAddons)
	}
	return nil
}

func (p *addonPlan) intend(row *projections.Row[domain.DeployedModel], cmd domain.Command[domain.DeployedModel]) {
	p.plan.add(domain.Intend(domain.DeployedModels, row.Name, cmd))
}
