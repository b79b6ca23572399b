package routing

import (
	"fmt"
	"strings"

	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// A Target is the deployment that serves a request, and the addon with which it serves the request,
// if any.
type Target struct {
	*projections.Row[domain.Deployment]
	Addon string // ID of the addon (domain.AddonID); "" if the deployment serves its own model without an addon
	// selects another addon if Addon is unloaded during the request; nil if the request names the
	// addon
	Choose ChooseAddon
	// Via has the deployments whose promoted releases redirect the request to this deployment,
	// beginning with the one that the client named.
	Via []domain.Name
}

// A ChooseAddon returns the addon that serves a request that names no addon; "" for the
// deployment's own model.
type ChooseAddon func(v *projections.View, deployment *projections.Row[domain.Deployment]) (addon string)

// AddonID returns the addon ID of a deployed model, which consists of its name and creation time:
// see domain.AddonID.
func AddonID(row *projections.Row[domain.DeployedModel]) string {
	return domain.AddonID(row.Name, row.CreateTime)
}

// withChosenAddon returns the target of a request that names no addon. choose selects the addon
// now, and again if the addon is unloaded before it has responded.
func withChosenAddon(c *request.Call, deployment *projections.Row[domain.Deployment], choose ChooseAddon) Target {
	return Target{Row: deployment, Addon: choose(c.View(), deployment), Choose: choose}
}

// addonOfDeployment returns the addon that serves requests that name only the deployment: the addon
// of addonOfBaseModel or, if there is none, the default addon. It returns "" if the deployment's
// own model serves them.
func addonOfDeployment(v *projections.View, deployment *projections.Row[domain.Deployment]) string {
	chosen := addonOfBaseModel(v, deployment)
	for row := range v.Addons(deployment.Name) {
		if chosen == "" && row.State.Wanted() && v.IsDefault(row) {
			chosen = AddonID(row)
		}
	}
	return chosen
}

// addonOfBaseModel returns the addon that serves requests for the deployment's base model. That is
// the hot-loaded weights that replicas serve in place of the base model or, with
// enableHotReloadLatestAddon, the newest addon that is DEPLOYED. It returns "" if there is neither.
func addonOfBaseModel(v *projections.View, deployment *projections.Row[domain.Deployment]) (latest string) {
	if served := deployment.State.Hot.Served; served != nil {
		return served.ID()
	}
	if !deployment.State.EnableHotReloadLatestAddon {
		return ""
	}
	for row := range v.Addons(deployment.Name) {
		if row.State.State == domain.ModelDeployedState {
			latest = AddonID(row)
		}
	}
	return latest
}

// successor returns the addon that replaces q.Addon, which was unloaded while the request was in
// progress. ok is false if the client named the addon, or if no other addon replaces it.
func successor(c *request.Call, q Request) (addon string, ok bool) {
	v := c.World.View()
	row, exists := v.Deployments.Get(q.Deployment)
	if !exists || q.Choose == nil || q.Addon == "" {
		return "", false
	}
	addon = q.Choose(v, row)
	return addon, addon != q.Addon
}

// addonTarget returns the target of a request that names a deployment and a model other than its
// base model. It returns an error unless the deployment has the model as an addon that is loaded or
// being loaded.
func addonTarget(c *request.Call, deployment *projections.Row[domain.Deployment], model domain.Name) (Target, error) {
	why := fmt.Sprintf("%s does not serve the model %s: name its model %s, or another deployment", deployment.Name,
		model, deployment.State.BaseModel)
	for row := range c.View().Addons(deployment.Name) {
		switch {
		case row.State.Model != string(model):
		case row.State.Wanted():
			return Target{Row: deployment, Addon: AddonID(row)}, nil
		default:
			why = fmt.Sprintf("the addon %s is %s in %s: %s", model, row.State.State, deployment.Name,
				row.State.Status.Message)
		}
	}
	return Target{}, request.NotFoundReason("MODEL_NOT_DEPLOYED", "%s", why)
}

// findAddon returns the target of a request for a model that live deployments of the account load
// as an addon. It prefers deployments in which the addon is DEPLOYED, then those in which it is the
// default, then those with the most ready replicas. found is false if no deployment of the account
// loads the model.
func findAddon(c *request.Call, account string, model domain.Name) (best Target, found bool) {
	bestScore := -1
	for row := range c.View().DeployedModels.In(account) {
		deployment, ok := c.View().Deployments.Get(domain.Name(row.State.Deployment))
		if row.State.Model != string(model) || !row.State.Wanted() || !ok || !deployment.State.Live() {
			continue
		}
		score := deployment.State.ReadyReplicas()
		if c.View().IsDefault(row) {
			score += 1 << 20
		}
		if row.State.State == domain.ModelDeployedState {
			score += 1 << 21
		}
		if score > bestScore {
			best, bestScore = Target{Row: deployment, Addon: AddonID(row)}, score
		}
	}
	return best, bestScore >= 0
}

// addonState reports whether an addon is still being loaded, and returns an error if the addon is
// unloaded or has failed. For hot-loaded weights it returns no error, because replicas keep serving
// older weights for some time.
func addonState(v *projections.View, addon string) (loading bool, err error) {
	name, _, _ := strings.Cut(addon, "@")
	row, ok := v.DeployedModels.Get(domain.Name(name))
	switch {
	case addon == "" || domain.IsHot(addon):
		return false, nil
	case !ok || AddonID(row) != addon || row.State.State == domain.ModelUndeployingState ||
		row.State.State == domain.ModelUndeployedState:
		return false, request.NotFoundReason("MODEL_NOT_DEPLOYED",
			"the addon %s is no longer loaded: GET /inference/v1/models lists the available models", name)
	case row.State.State == domain.ModelFailedState:
		f := domain.Errorf(domain.Unavailable, "the addon %s could not be loaded and serves no requests: %s", row.State.Model,
			row.State.Status.Message)
		f.Reason = "ADDON_FAILED"
		return false, f
	}
	return row.State.State == domain.ModelDeployingState, nil
}
