package routing

import (
	"slices"
	"strings"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// Resolve returns the target to which the field model of an inference request refers:
//
//	accounts/a/models/m                             a live deployment of the model in the caller's account
//	                                                (without disableAutoDeploy), one that has it loaded as
//	                                                an addon, or one that serves every account
//	accounts/a/models/m#accounts/a/deployments/d    that deployment
//	a/m, a/m#a/d                                    short forms of the two above
//	accounts/a/deployments/d                        the deployment itself
//	m                                               the model, the deployment or the deployed model with this
//	                                                ID in the caller's account, or the deployment that the
//	                                                operator bound to this alias: see byShortName
//	m#d                                             the model m and the deployment d of the caller's account
//
// If a release of that deployment is promoted, its candidate is the target.
func Resolve(c *request.Call, model string) (Target, error) {
	target, err := resolve(c, model)
	if err != nil {
		return target, err
	}
	return promoted(c.View(), target), nil
}

func resolve(c *request.Call, model string) (Target, error) {
	if c.Direct != "" {
		return resolveDirect(c, model)
	}
	left, right, pinned := strings.Cut(model, "#")
	if name, ok := domain.ParseName(left, domain.Deployments.Collection); ok && !pinned {
		row, err := Deployment(c, name)
		if err != nil {
			return Target{}, err
		}
		return withChosenAddon(c, row, addonOfDeployment), nil
	}
	if domain.ValidID(model) {
		return byShortName(c, model)
	}
	wanted, ok := longName(c.Principal.Account, left, domain.Models.Collection)
	if !ok {
		return Target{}, noSuchModel(model)
	}
	if err := mayUse(c, wanted); err != nil {
		return Target{}, err
	}
	if !pinned {
		return byModel(c, wanted)
	}
	name, ok := longName(c.Principal.Account, right, domain.Deployments.Collection)
	if !ok {
		return Target{}, noSuchModel(model)
	}
	row, err := Deployment(c, name)
	switch {
	case err != nil:
		return Target{}, err
	case row.State.BaseModel != string(wanted):
		return addonTarget(c, row, wanted)
	}
	return withChosenAddon(c, row, addonOfBaseModel), nil
}

// resolveDirect returns the target of a request on a direct route, which always is the deployment
// of the route. model may name that deployment, its base model or one of its addons.
func resolveDirect(c *request.Call, model string) (Target, error) {
	row, err := Deployment(c, c.Direct)
	switch {
	case err != nil:
		return Target{}, err
	case model == string(c.Direct) || slices.Contains(row.State.Aliases, model):
		return withChosenAddon(c, row, addonOfDeployment), nil
	}
	left, right, pinned := strings.Cut(model, "#")
	wanted, ok := longName(c.Direct.Account(), left, domain.Models.Collection)
	if domain.ValidID(model) && row.State.BaseModel != string(wanted) {
		return directShortName(c, row, wanted)
	}
	at, named := longName(c.Direct.Account(), right, domain.Deployments.Collection)
	if !ok || pinned && (!named || at != c.Direct) {
		return Target{}, request.NotFoundReason("MODEL_NOT_DEPLOYED",
			"this host name serves only %s, not the given model: leave the field model out, or name the deployment or its "+
				"model", c.Direct)
	}
	if row.State.BaseModel != string(wanted) {
		return addonTarget(c, row, wanted)
	}
	return withChosenAddon(c, row, addonOfBaseModel), nil
}

// directShortName returns the target of a request on a direct route whose model is an ID. wanted is
// the resource name of the model with that ID. The target is that model as an addon of the
// deployment or, if it has no such addon, the deployment or the deployed model with the ID.
func directShortName(c *request.Call, row *projections.Row[domain.Deployment], wanted domain.Name) (Target, error) {
	target, err := addonTarget(c, row, wanted)
	switch {
	case err == nil:
		return target, nil
	case wanted.ID() == c.Direct.ID():
		return withChosenAddon(c, row, addonOfDeployment), nil
	}
	for addon := range c.View().Addons(c.Direct) {
		if addon.Name.ID() == wanted.ID() {
			return ofDeployedModel(c, addon)
		}
	}
	return Target{}, err
}

// longName parses the name of a resource: accounts/a/models/m, or its short forms a/m and, for a
// resource of the account, m. It returns false if text has none of these forms.
func longName(account, text, collection string) (domain.Name, bool) {
	if domain.ValidID(text) {
		return domain.NewName(account, collection, text), true
	}
	if account, id, short := strings.Cut(text, "/"); short && !strings.Contains(id, "/") {
		text = string(domain.NewName(account, collection, id))
	}
	return domain.ParseName(text, collection)
}

func noSuchModel(model string) error {
	return request.NotFoundReason("MODEL_NOT_FOUND",
		"%s is not a model name: use accounts/ACCOUNT/models/ID, accounts/ACCOUNT/deployments/ID, or the ID of a model or "+
			"deployment of your account; GET /inference/v1/models lists the available models", wire.Quote(model))
}

// mayUse returns an error unless the caller may use the model. For a model of another account, the
// error does not disclose whether the model exists.
func mayUse(c *request.Call, model domain.Name) error {
	row, exists := c.View().Models.Get(model)
	own := model.Account() == c.Principal.Account || c.Principal.IsOperator()
	switch {
	case exists && (own || row.State.Public):
		return nil
	case own:
		return request.NotFoundReason("MODEL_NOT_FOUND",
			"there is no model %s: GET /inference/v1/models lists the available models", model)
	}
	return request.Forbidden("OTHER_ACCOUNT", "the API key belongs to accounts/%s and may not use %s: use an API key of "+
		"that account", c.Principal.Account, model)
}

// Deployment returns the row of a deployment. It returns an error if the deployment does not exist,
// is not live, or belongs to another account than the caller.
func Deployment(c *request.Call, name domain.Name) (*projections.Row[domain.Deployment], error) {
	if name.Account() != c.Principal.Account && !c.Principal.IsOperator() {
		return nil, request.Forbidden("OTHER_ACCOUNT", "the API key belongs to accounts/%s and may not use %s: use an API "+
			"key of that account", c.Principal.Account, name)
	}
	row, ok := c.View().Deployments.Get(name)
	if !ok {
		return nil, request.NotFoundReason("DEPLOYMENT_NOT_FOUND",
			"there is no deployment %s: list deployments with GET /v1/accounts/%s/deployments",
			name, name.Account())
	}
	return row, requireLive(row)
}

// requireLive returns an error unless the deployment is live: it serves requests now, or after a
// replica has started.
func requireLive(row *projections.Row[domain.Deployment]) error {
	switch {
	case row.State.Live():
		return nil
	case row.State.State == domain.DeploymentFailedState:
		f := domain.Errorf(domain.Unavailable, "%s is FAILED and serves no requests: %s", row.Name, row.State.Status.Message)
		f.Reason = "DEPLOYMENT_FAILED"
		return f
	}
	return request.NotFoundReason("DEPLOYMENT_DELETED", "%s is %s and serves no requests: use another deployment",
		row.Name,
		row.State.State)
}

// byModel returns the target of a request for a model. It chooses, of the live deployments of the
// model in the account without disableAutoDeploy, the one with the most ready replicas, and the
// first by name among equals. If there is none, it chooses a deployment that loads the model as an
// addon, and otherwise a deployment that serves all accounts.
func byModel(c *request.Call, model domain.Name) (Target, error) {
	account := AccountFor(c, model)
	var best, manual *projections.Row[domain.Deployment]
	for row := range c.View().Deployments.In(account) {
		if row.State.BaseModel != string(model) || !row.State.Live() {
			continue
		}
		if row.State.DisableAutoDeploy {
			manual = row
			continue
		}
		if best == nil || row.State.ReadyReplicas() > best.State.ReadyReplicas() {
			best = row
		}
	}
	if best != nil {
		return withChosenAddon(c, best, addonOfBaseModel), nil
	}
	if loaded, found := findAddon(c, account, model); found {
		return loaded, nil
	}
	if row := sharedOf(c.View(), model); row != nil {
		return withChosenAddon(c, row, addonOfBaseModel), nil
	}
	if manual != nil {
		return Target{}, request.NotFoundReason("MODEL_NOT_DEPLOYED",
			"%s has no live deployment in accounts/%s except deployments with disableAutoDeploy: use the model name "+
				"%s#%s", model, account,
			model,
			manual.Name)
	}
	return Target{}, request.NotFoundReason("MODEL_NOT_DEPLOYED",
		"%s has no live deployment in accounts/%s: create one with POST /v1/accounts/%s/deployments", model, account, account)
}

// AccountFor returns the account whose deployments serve a request for the model: the caller's
// account or, if the caller is the operator, the model's account.
func AccountFor(c *request.Call, model domain.Name) string {
	if c.Principal.IsOperator() {
		return model.Account()
	}
	return c.Principal.Account
}
