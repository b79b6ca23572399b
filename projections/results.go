package projections

import "anneal/domain"

// LoadResult returns the intent that loads the addon that a job has trained into the oldest
// deployment of the account that serves the addon's base model and has the capacity for it. ok is false when
// the job's options do not ask for that, or when there is no such deployment. The intent must be
// recorded before the job completes, so that an addon that its user unloads stays unloaded.
func LoadResult(v *View, job domain.Name, life *domain.JobLife, output domain.Name, model domain.ModelSpec,
) (intent domain.Intent, ok bool) {
	if life.Options == nil || !life.Options.LoadAddon || model.Kind != domain.PEFTAddon {
		return domain.Intent{}, false
	}
	account := job.Account()
	name := domain.NewName(account, domain.DeployedModels.Collection, output.ID())
	if _, taken := v.DeployedModels.Get(name); taken {
		return domain.Intent{}, false
	}
	for row := range v.Deployments.Oldest(account) {
		d := &row.State
		if d.Live() && d.EnableAddons && !d.EnableHotReloadLatestAddon && !d.DisableAutoDeploy &&
			d.BaseModel == model.BaseModel && mayLoadMore(v, row.Name) {
			return domain.Intend(domain.DeployedModels, name, domain.Command[domain.DeployedModel](
				domain.CreateDeployedModel{CreatedBy: life.CreatedBy, DeployedModelSpec: domain.DeployedModelSpec{
					Model: string(output), Deployment: string(row.Name)}})), true
		}
	}
	return domain.Intent{}, false
}

// mayLoadMore reports whether a deployment may load one more addon.
func mayLoadMore(v *View, deployment domain.Name) bool {
	loaded := 0
	for row := range v.Addons(deployment) {
		if row.State.Wanted() {
			loaded++
		}
	}
	return loaded < domain.MaxAddons
}
