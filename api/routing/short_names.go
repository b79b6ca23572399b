package routing

import (
	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// byShortName returns the target of a request whose model has no slashes: an alias, or the ID of a
// model, a deployment or a deployed model (addon) of the caller's account. Of several with that ID,
// it chooses the first that can respond, in the order model, deployment, deployed model, alias. If
// none can respond, it returns the error of the first that exists.
func byShortName(c *request.Call, id string) (Target, error) {
	account := c.Principal.Account
	var why error
	if model := domain.NewName(account, domain.Models.Collection, id); exists(c.View().Models.Get(model)) {
		target, err := byModel(c, model)
		if err == nil {
			return target, nil
		}
		why = err
	}
	if name := domain.NewName(account, domain.Deployments.Collection, id); exists(c.View().Deployments.Get(name)) {
		row, err := Deployment(c, name)
		if err == nil {
			return withChosenAddon(c, row, addonOfDeployment), nil
		}
		why = first(why, err)
	}
	if row, ok := c.View().DeployedModels.Get(domain.NewName(account, domain.DeployedModels.Collection, id)); ok {
		target, err := ofDeployedModel(c, row)
		if err == nil {
			return target, nil
		}
		why = first(why, err)
	}
	target, err := byAlias(c, id)
	if err == nil {
		return target, nil
	}
	return Target{}, first(why, err)
}

func exists[S any](_ *projections.Row[S], ok bool) bool { return ok }

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// ofDeployedModel returns the target of a request whose model is the ID of a deployed model.
func ofDeployedModel(c *request.Call, row *projections.Row[domain.DeployedModel]) (Target, error) {
	deployment, err := Deployment(c, domain.Name(row.State.Deployment))
	if err != nil {
		return Target{}, err
	}
	if !row.State.Wanted() {
		return Target{}, request.NotFoundReason("MODEL_NOT_DEPLOYED", "%s is %s and serves no requests: "+
			"%s", row.Name, row.State.State,
			row.State.Status.Message)
	}
	return Target{Row: deployment, Addon: AddonID(row)}, nil
}

// IsTaken reports whether a live deployment or a deployed model of the caller's account serves
// requests whose model is the ID id.
func IsTaken(c *request.Call, id string) bool {
	account := c.Principal.Account
	row, ok := c.View().Deployments.Get(domain.NewName(account, domain.Deployments.Collection, id))
	if ok && row.State.Live() {
		return true
	}
	addon, ok := c.View().DeployedModels.Get(domain.NewName(account, domain.DeployedModels.Collection, id))
	if !ok {
		return false
	}
	_, err := ofDeployedModel(c, addon)
	return err == nil
}

// UsableModel returns the model with a name of the form accounts/a/models/m, a/m or m. It returns
// false if there is none that the caller may use.
func UsableModel(c *request.Call, name string) (*projections.Row[domain.Model], bool) {
	wanted, ok := longName(c.Principal.Account, name, domain.Models.Collection)
	if !ok || mayUse(c, wanted) != nil {
		return nil, false
	}
	return c.View().Models.Get(wanted)
}

// ModelName returns the name of the model with which the target responds: the model of its addon,
// or the deployment's own model.
func (t Target) ModelName(v *projections.View) domain.Name {
	for row := range v.Addons(t.Name) {
		if AddonID(row) == t.Addon {
			return domain.Name(row.State.Model)
		}
	}
	return domain.Name(t.State.BaseModel)
}
