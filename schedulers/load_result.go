package schedulers

import (
	"anneal/domain"
	"anneal/projections"
)

// loadResult returns the intent that loads model, the addon that a job has trained, into a
// deployment of the account that serves the addon's base model and may load more addons: the oldest
// one that is READY or UPDATING, or else the oldest one. ok is false when the job's options do not
// request the load, or when there is no such deployment. The intent must be recorded before the job
// completes. An addon that a user unloaded after the model was created stays unloaded.
func loadResult(v *projections.View, j job, model *projections.Row[domain.Model]) (intent domain.Intent, ok bool) {
	options, account := j.Life.Options, j.Name.Account()
	if options == nil || !options.LoadAddon || model.State.Kind != domain.PEFTAddon {
		return domain.Intent{}, false
	}
	name := domain.NewName(account, domain.DeployedModels.Collection, model.Name.ID())
	version := v.DeployedModels.Version(name)
	if _, taken := v.DeployedModels.Get(name); taken || version > model.CreateVersion {
		return domain.Intent{}, false
	}
	var deployment domain.Name
	for row := range v.Deployments.Oldest(account) {
		d := &row.State
		if !d.Live() || !d.EnableAddons || d.EnableHotReloadLatestAddon || d.DisableAutoDeploy ||
			d.BaseModel != model.State.BaseModel || !mayLoadMore(v, row.Name) {
			continue
		}
		serving := d.State != domain.DeploymentCreatingState
		if serving || deployment == "" {
			deployment = row.Name
		}
		if serving {
			break
		}
	}
	if deployment == "" {
		return domain.Intent{}, false
	}
	command := domain.CreateDeployedModel{CreatedBy: j.Life.CreatedBy, DeployedModelSpec: domain.DeployedModelSpec{
		Model: string(model.Name), Deployment: string(deployment)}}
	return domain.Intend(domain.DeployedModels, name, domain.Command[domain.DeployedModel](command)).At(version), true
}

// mayLoadMore reports whether a deployment has fewer than MaxAddons addons.
func mayLoadMore(v *projections.View, deployment domain.Name) bool {
	loaded := 0
	for row := range v.Addons(deployment) {
		if row.State.Wanted() {
			loaded++
		}
	}
	return loaded < domain.MaxAddons
}
