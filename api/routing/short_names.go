package routing

import (
	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// byShortName returns the target of a request with a model name without slashes: the ID of a model,
// of a deployment or of a deployed model (addon) of the key's account, or an alias. When
// several have the name, the target is the first one in this order that can respond. When none can
// respond, the error is that of the first one that exists.
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
			return unnamed(c, row, ofDeployment), nil
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

// ofDeployedModel returns the target of a request that names a deployed model by its ID.
func ofDeployedModel(c *request.Call, row *projections.Row[domain.DeployedModel]) (Target, error) {
	deployment, err := Deployment(c, domain.Name(row.State.Deployment))
	if err != nil {
		return Target{}, err
	}
	if !row.State.Wanted() {
		return Target{}, request.NotFoundReason("MODEL_NOT_DEPLOYED", "%s is %s: %s", row.Name, row.State.State,
			row.State.Status.Message)
	}
	return Target{deployment, AddonID(row), nil}, nil
}

// IsTaken reports whether a live deployment or a deployed model of the key's account responds to
// requests for the short name id.
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

// UsableModel returns the model with a name that has one of the forms accounts/a/models/m, a/m and
// m. It returns false when the caller may not use the model, and when there is none.
func UsableModel(c *request.Call, name string) (*projections.Row[domain.Model], bool) {
	wanted, ok := longName(c.Principal.Account, name, domain.Models.Collection)
	if !ok || mayUse(c, wanted) != nil {
		return nil, false
	}
	return c.View().Models.Get(wanted)
}

// ModelName returns the name of the model that responds: the model of the addon, or the
// deployment's own model.
func (t Target) ModelName(v *projections.View) domain.Name {
	for row := range v.Addons(t.Name) {
		if AddonID(row) == t.Addon {
			return domain.Name(row.State.Model)
		}
	}
	return domain.Name(t.State.BaseModel)
}
