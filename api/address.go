package api

import (
	"strings"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// address finds the deployment that a model name of an inference request
// means (spec/gaps.md section 7):
//
//	accounts/a/models/m                               a live deployment of it in the caller's account, unless it was made with
//	                                                  disableAutoDeploy; or one into which it is loaded; or one that answers
//	                                                  every account
//	accounts/a/models/m#accounts/a/deployments/d      that deployment
//	a/m, a/m#a/d                                      the same, short
//	accounts/a/deployments/d                          the deployment itself
//	speech-v3                                         the deployment that the operator bound to that name
func (c *call) address(model string) (target, error) {
	if c.Direct != "" {
		return c.addressDirect(model)
	}
	left, right, pinned := strings.Cut(model, "#")
	if name, ok := domain.ParseName(left, domain.Deployments.Collection); ok && !pinned {
		row, err := c.deployment(name)
		if err != nil {
			return target{}, err
		}
		return c.unnamed(row, ofDeployment), nil
	}
	if domain.ValidID(model) {
		return c.byAlias(model)
	}
	wanted, ok := longName(left, domain.Models.Collection)
	if !ok {
		return target{}, noSuchModel(model)
	}
	if err := c.mayAsk(wanted); err != nil {
		return target{}, err
	}
	if !pinned {
		return c.deploymentOf(wanted)
	}
	name, ok := longName(right, domain.Deployments.Collection)
	if !ok {
		return target{}, noSuchModel(model)
	}
	row, err := c.deployment(name)
	switch {
	case err != nil:
		return target{}, err
	case row.State.BaseModel != string(wanted):
		return c.asAddon(row, wanted)
	}
	return c.unnamed(row, ofBase), nil
}

// longName reads accounts/a/models/m, or a/m for short.
func longName(text, collection string) (domain.Name, bool) {
	if account, id, short := strings.Cut(text, "/"); short && !strings.Contains(id, "/") {
		text = string(domain.NewName(account, collection, id))
	}
	return domain.ParseName(text, collection)
}

func noSuchModel(model string) error {
	return request.NotFoundReason("MODEL_NOT_FOUND", "%s names no model: write accounts/ACCOUNT/models/ID or accounts/ACCOUNT/deployments/ID; GET /inference/v1/models lists what there is", wire.Quote(model))
}

// mayAsk decides whether the caller may use a model. Of another account's, its
// answer is the same whether it exists or not, unless it is public.
func (c *call) mayAsk(model domain.Name) error {
	row, exists := c.View().Models.Get(model)
	own := model.Account() == c.Principal.Account || c.Principal.IsOperator()
	switch {
	case exists && (own || row.State.Public):
		return nil
	case own:
		return request.NotFoundReason("MODEL_NOT_FOUND", "there is no model %s: GET /inference/v1/models lists what there is", model)
	}
	return request.Forbidden("OTHER_ACCOUNT", "the API key belongs to accounts/%s and may not use %s", c.Principal.Account, model)
}

func (c *call) deployment(name domain.Name) (*projections.Row[domain.Deployment], error) {
	if name.Account() != c.Principal.Account && !c.Principal.IsOperator() {
		return nil, request.Forbidden("OTHER_ACCOUNT", "the API key belongs to accounts/%s and may not use %s", c.Principal.Account, name)
	}
	row, ok := c.View().Deployments.Get(name)
	if !ok {
		return nil, request.NotFoundReason("DEPLOYMENT_NOT_FOUND", "there is no deployment %s", name)
	}
	return row, serving(row)
}

// serving is nil when the deployment answers, or will.
func serving(row *projections.Row[domain.Deployment]) error {
	switch {
	case row.State.Live():
		return nil
	case row.State.State == domain.DeploymentFailedState:
		f := domain.Errorf(domain.Unavailable, "%s is FAILED and does not answer: %s", row.Name, row.State.Status.Message)
		f.Reason = "DEPLOYMENT_FAILED"
		return f
	}
	return request.NotFoundReason("DEPLOYMENT_DELETED", "%s is %s and does not answer any more: ask another", row.Name, row.State.State)
}

// deploymentOf picks, of the live deployments of a model in the caller's
// account, the one with the most ready replicas; the first by name of several.
// Where none is of the model alone, it is one into which it is loaded, and at
// last one that answers every account.
func (c *call) deploymentOf(model domain.Name) (target, error) {
	account := c.asksIn(model)
	var best, apart *projections.Row[domain.Deployment]
	for row := range c.View().Deployments.In(account) {
		if row.State.BaseModel != string(model) || !row.State.Live() {
			continue
		}
		if row.State.DisableAutoDeploy {
			apart = row
			continue
		}
		if best == nil || row.State.ReadyReplicas() > best.State.ReadyReplicas() {
			best = row
		}
	}
	if best != nil {
		return c.unnamed(best, ofBase), nil
	}
	if loaded, found := c.loadedSomewhere(account, model); found {
		return loaded, nil
	}
	if row := sharedOf(c.View(), model); row != nil {
		return c.unnamed(row, ofBase), nil
	}
	if apart != nil {
		return target{}, request.NotFoundReason("MODEL_NOT_DEPLOYED", "%s has no live deployment in accounts/%s but those made with disableAutoDeploy: ask %s#%s", model, account, model, apart.Name)
	}
	return target{}, request.NotFoundReason("MODEL_NOT_DEPLOYED", "%s has no live deployment in accounts/%s: create one with POST /v1/accounts/%s/deployments", model, account, account)
}

// asksIn is the account whose deployments the name of a model means: the
// caller's, and for the operator the model's.
func (c *call) asksIn(model domain.Name) string {
	if c.Principal.IsOperator() {
		return model.Account()
	}
	return c.Principal.Account
}
