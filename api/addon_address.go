package api

import (
	"fmt"
	"iter"
	"strings"

	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// A target is what a model name means: a deployment, and the addon of it that
// is to answer; "" when its own model is.
type target struct {
	*projections.Row[domain.Deployment]
	addon  string      // domain.AddonID
	choose chooseAddon // of a request that names no addon
}

// addonsOf yields the deployed models of a deployment, the oldest first.
func (c *call) addonsOf(deployment domain.Name) iter.Seq[*projections.Row[domain.DeployedModel]] {
	return addonsOf(c.View(), deployment)
}

func addonsOf(v *projections.View, deployment domain.Name) iter.Seq[*projections.Row[domain.DeployedModel]] {
	return func(yield func(*projections.Row[domain.DeployedModel]) bool) {
		for row := range v.DeployedModels.Oldest(deployment.Account()) {
			if row.State.Deployment == string(deployment) && !yield(row) {
				return
			}
		}
	}
}

func addonID(row *projections.Row[domain.DeployedModel]) string {
	return domain.AddonID(row.Name, row.CreateTime)
}

// unnamed is the target of a request that names no addon: choose says which
// one answers, if any. Should that be unloaded before it has answered, choose
// is asked again.
func (c *call) unnamed(deployment *projections.Row[domain.Deployment], choose chooseAddon) target {
	return target{deployment, choose(c.View(), deployment), choose}
}

type chooseAddon func(v *projections.View, deployment *projections.Row[domain.Deployment]) (addon string)

// ofDeployment answers for a deployment itself: where the latest addon is
// loaded that one, as if it were merged into the base; elsewhere the default.
func ofDeployment(v *projections.View, deployment *projections.Row[domain.Deployment]) string {
	chosen := ofBase(v, deployment)
	for row := range addonsOf(v, deployment.Name) {
		if chosen == "" && row.State.Default && row.State.Wanted() {
			chosen = addonID(row)
		}
	}
	return chosen
}

// ofBase answers for the deployment's own model: the weights that a trainer job
// has put into its place, if one has.
func ofBase(v *projections.View, deployment *projections.Row[domain.Deployment]) (latest string) {
	if served := deployment.State.Hot.Served; served != nil {
		return served.ID()
	}
	if !deployment.State.EnableHotReloadLatestAddon {
		return ""
	}
	for row := range addonsOf(v, deployment.Name) {
		if row.State.State == domain.ModelDeployedState {
			latest = addonID(row)
		}
	}
	return latest
}

// successor is the addon that answers in the place of one that was unloaded
// while a request that had not named it was on its way.
func (c *call) successor(deployment domain.Name, unloaded string, choose chooseAddon) (addon string, ok bool) {
	v := c.World.View()
	row, there := v.Deployments.Get(deployment)
	if !there || choose == nil || unloaded == "" {
		return "", false
	}
	addon = choose(v, row)
	return addon, addon != unloaded
}

// asAddon is the target of a request for a model that the deployment does not
// serve by itself.
func (c *call) asAddon(deployment *projections.Row[domain.Deployment], model domain.Name) (target, error) {
	why := fmt.Sprintf("%s does not serve %s: it serves %s", deployment.Name, model, deployment.State.BaseModel)
	for row := range c.addonsOf(deployment.Name) {
		switch {
		case row.State.Model != string(model):
		case row.State.Wanted():
			return target{deployment, addonID(row), nil}, nil
		default:
			why = fmt.Sprintf("%s is %s in %s: %s", model, row.State.State, deployment.Name, row.State.Status.Message)
		}
	}
	return target{}, request.NotFoundReason("MODEL_NOT_DEPLOYED", "%s", why)
}

// loadedSomewhere picks, of the live deployments of an account into which the
// model is loaded, one that has it DEPLOYED before others, and of those the one
// with the most ready replicas.
func (c *call) loadedSomewhere(account string, model domain.Name) (best target, found bool) {
	most := -1
	for row := range c.View().DeployedModels.In(account) {
		deployment, ok := c.View().Deployments.Get(domain.Name(row.State.Deployment))
		if row.State.Model != string(model) || !row.State.Wanted() || !ok || !deployment.State.Live() {
			continue
		}
		score := deployment.State.ReadyReplicas()
		if row.State.State == domain.ModelDeployedState {
			score += 1 << 20
		}
		if score > most {
			best, most = target{deployment, addonID(row), nil}, score
		}
	}
	return best, most >= 0
}

// answering is nil when the addon answers on every ready replica of its
// deployment; waits tells that it will, once it is loaded. Of weights that are
// loaded hot the replicas themselves know best: they keep those that others took
// the place of a while longer.
func answering(v *projections.View, addon string) (waits bool, err error) {
	name, _, _ := strings.Cut(addon, "@")
	row, ok := v.DeployedModels.Get(domain.Name(name))
	switch {
	case addon == "" || domain.IsHot(addon):
		return false, nil
	case !ok || addonID(row) != addon || row.State.State == domain.ModelUndeployingState:
		return false, request.NotFoundReason("MODEL_NOT_DEPLOYED", "%s is not loaded any more: GET /inference/v1/models lists what there is", name)
	case row.State.State == domain.ModelFailedState:
		f := domain.Errorf(domain.Unavailable, "%s could not be loaded and does not answer: %s", row.State.Model, row.State.Status.Message)
		f.Reason = "ADDON_FAILED"
		return false, f
	}
	return row.State.State == domain.ModelDeployingState, nil
}
