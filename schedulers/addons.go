package schedulers

import (
	"fmt"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// Addons reconciles deployed models with their deployments:
//
//  1. an addon is undeployed when its deployment was deleted or is not live any more. While the
//     deployment can be undeleted, its addons stay as UNDEPLOYED, and they are loaded again when
//     the deployment is undeleted
//  2. an addon fails when its deployment does not accept it: enableAddons is off, the addon was
//     deleted or is already loaded, or the deployment has MaxAddons older addons
//  3. in a deployment with enableHotReloadLatestAddon, an addon is undeployed once a newer one is
//     DEPLOYED, so that one addon is loaded at all times
//  4. in a deployment that is scaled to zero, DEPLOYING addons become DEPLOYED and UNDEPLOYING ones
//     are removed, because a replica that starts later loads all wanted addons
//  5. an addon is no longer recorded as the default once another addon has become the default
//
// The coordinator records the changes that depend on what replicas have loaded.
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
	view *projections.View
	plan Plan
	rows []*projections.Row[domain.DeployedModel] // all deployed models; in each account, oldest first
	// set of the addons that should be loaded, with keys "DEPLOYMENT MODEL"
	models map[string]bool
	counts map[string]int         // by deployment: number of addons that should be loaded
	latest map[string]domain.Name // newest deployed model in state DEPLOYED, by deployment
}

func (p *addonPlan) reconcile(row *projections.Row[domain.DeployedModel]) {
	m := &row.State
	deployment, ok := p.view.Deployments.Get(domain.Name(m.Deployment))
	exists := ok && !deployment.CreateTime.After(row.CreateTime)
	replicas := 0
	if exists {
		replicas = len(deployment.State.Replicas)
	}
	if exists && p.view.LostDefault(row) {
		p.intend(row, domain.CedeDefault{Rank: m.DefaultRank})
	}
	switch {
	case m.State == domain.ModelUndeployingState && replicas == 0:
		p.intend(row, domain.FinishUndeployment{})
	case m.State == domain.ModelUndeployingState:
	case !exists:
		p.intend(row, domain.UndeployModel{Reason: "the deployment " + m.Deployment + " was deleted"})
	case m.State == domain.ModelUndeployedState && deployment.State.Live():
		p.intend(row, domain.RestoreDeployedModel{})
	case m.State == domain.ModelUndeployedState:
	case !deployment.State.Live():
		p.intend(row, domain.UndeployModel{Reason: "the deployment " + m.Deployment + " is " + deployment.State.State,
			Restorable: m.Wanted() && !deployment.State.Hard})
	case m.Wanted():
		p.reconcileWanted(row, &deployment.State)
	}
}

// reconcileWanted performs steps 2 to 4 of Addons for a wanted addon of a live deployment.
func (p *addonPlan) reconcileWanted(row *projections.Row[domain.DeployedModel], d *domain.Deployment) {
	m := &row.State
	if err := p.notAccepted(row, d); err != nil {
		p.intend(row, domain.FailDeployedModel{Status: domain.StatusOf(err)})
		return
	}
	p.models[m.Deployment+" "+m.Model] = true
	p.counts[m.Deployment]++
	latest := p.latest[m.Deployment]
	switch {
	case d.EnableHotReloadLatestAddon && p.older(row, latest):
		p.intend(row, domain.UndeployModel{Reason: fmt.Sprintf("replaced by the newer addon %s", latest)})
	case m.State == domain.ModelDeployingState && d.DesiredReplicas == 0 && len(d.Replicas) == 0:
		p.intend(row, domain.MarkModelDeployed{})
	}
}

// older reports whether the deployed model in row was created before the deployed model name.
func (p *addonPlan) older(row *projections.Row[domain.DeployedModel], name domain.Name) bool {
	newer, ok := p.view.DeployedModels.Get(name)
	return ok && name != row.Name && (newer.CreateTime.After(row.CreateTime) ||
		newer.CreateTime.Equal(row.CreateTime) && name > row.Name)
}

// notAccepted returns why the deployment d does not accept the addon of the deployed model; nil
// when it does.
func (p *addonPlan) notAccepted(row *projections.Row[domain.DeployedModel], d *domain.Deployment) *domain.Error {
	m := &row.State
	model, ok := p.view.Models.Get(domain.Name(m.Model))
	switch {
	case !d.EnableAddons:
		return domain.Errorf(domain.FailedPrecondition,
			"%s has enableAddons turned off: set it to true and load the addon again", m.Deployment)
	case !ok || model.CreateTime.After(row.CreateTime):
		return domain.Errorf(domain.NotFound, "the model %s was deleted: load another addon", m.Model)
	case p.models[m.Deployment+" "+m.Model]:
		return domain.Errorf(domain.AlreadyExists, "%s has already loaded %s as another deployed model: use that deployed "+
			"model", m.Deployment, m.Model)
	case p.counts[m.Deployment] >= domain.MaxAddons:
		return domain.Errorf(domain.ResourceExhausted, "%s has %d addons, which is the maximum: unload an addon first",
			m.Deployment, domain.MaxAddons)
	}
	return nil
}

func (p *addonPlan) intend(row *projections.Row[domain.DeployedModel], cmd domain.Command[domain.DeployedModel]) {
	p.plan.add(domain.Intend(domain.DeployedModels, row.Name, cmd))
}
