package api

import (
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// DeployedModel is an addon that is loaded into a deployment of its base
// model, and answers there beside others.
type DeployedModel struct {
	Name string `json:"name" api:"output"`
	domain.DeployedModelSpec
	CreateTime *time.Time    `json:"createTime,omitempty" api:"output"`
	UpdateTime *time.Time    `json:"updateTime,omitempty" api:"output"`
	State      string        `json:"state" api:"output"`
	Status     domain.Status `json:"status" api:"output"`
	CreatedBy  string        `json:"createdBy,omitempty" api:"output"`
}

var deployedModels = &resource[domain.DeployedModel, DeployedModel]{
	kind: domain.DeployedModels, noun: "deployed model", idParam: "deployedModelId", order: "createTime", reads: request.Read, writes: request.Write,
	fields: storedFieldsOf[domain.DeployedModel, DeployedModel]("name", "displayName", "description", "model", "deployment", "default",
		"createTime", "updateTime", "state", "status", "createdBy"),
	render:  renderDeployedModel,
	prepare: prepareDeployedModel,
	create: func(c *call, _ domain.Name, given *DeployedModel) domain.Command[domain.DeployedModel] {
		return domain.CreateDeployedModel{DeployedModelSpec: given.DeployedModelSpec, CreatedBy: string(c.Principal.Key)}
	},
	update: func(_ domain.DeployedModel, merged, _ *DeployedModel, _ wire.Mask) (domain.Command[domain.DeployedModel], error) {
		return domain.UpdateDeployedModel{DeployedModelSpec: merged.DeployedModelSpec}, nil
	},
	remove: func(*call, *projections.Row[domain.DeployedModel], *request.Params) (domain.Command[domain.DeployedModel], error) {
		return domain.UndeployModel{Reason: "unloaded by its user"}, nil
	},
}

func renderDeployedModel(_ *projections.View, row *projections.Row[domain.DeployedModel], out *DeployedModel) {
	m := &row.State
	*out = DeployedModel{Name: string(row.Name), DeployedModelSpec: m.DeployedModelSpec, CreateTime: wire.TimestampOf(&row.CreateTime), UpdateTime: wire.TimestampOf(&row.UpdateTime),
		State: m.State, Status: m.Status, CreatedBy: m.CreatedBy}
}

// prepareDeployedModel checks that a new addon fits its deployment, and that
// no other is the default there.
func prepareDeployedModel(c *call, name domain.Name, given *DeployedModel, _ map[string]string, v *domain.Violations) error {
	if err := c.RequireActive(c.Account); err != nil {
		return err
	}
	deployment := domain.Name(given.Deployment)
	row, exists := c.View().DeployedModels.Get(name)
	if exists {
		deployment = domain.Name(row.State.Deployment)
	}
	for other := range c.addonsOf(deployment) {
		if deployment.Account() == c.Account && given.Default && other.State.Default && other.State.Wanted() && other.Name != name {
			v.Add("default", "%s is the default of its deployment already: set its default to false first", other.Name)
		}
	}
	if exists {
		return nil
	}
	return c.wantFittingAddon(v, given)
}

// wantFittingAddon requires an addon that may be loaded into its deployment,
// of whose base it is, and which does not have it yet.
func (c *call) wantFittingAddon(v *domain.Violations, given *DeployedModel) error {
	deployment := c.deploymentForAddons(v, given.Deployment)
	if _, ok := domain.ParseName(given.Model, domain.Models.Collection); !ok {
		return nil // the decision says so
	}
	model, usable := c.UsableModel(c.Account, given.Model)
	switch {
	case !usable:
		v.Add("model", "names no model that accounts/%s may use: its own are listed in accounts/%s/models", c.Account, c.Account)
	case model.State.State != domain.ModelReady:
		v.Add("model", "names a model that is %s: wait until it is READY", model.State.State)
	case model.State.Kind != domain.PEFTAddon:
		v.Add("model", "names a whole model, and only addons are loaded: give it to a deployment of its own as baseModel")
	case deployment == nil:
	case model.State.BaseModel != deployment.State.BaseModel:
		v.Add("model", "is an addon of %s, and the deployment serves %s: name a deployment of the addon's base model", model.State.BaseModel, deployment.State.BaseModel)
	default:
		return c.wantRoom(v, deployment.Name, given.Model, deployment.State.EnableHotReloadLatestAddon)
	}
	return nil
}

// deploymentForAddons is a deployment of the account that takes addons; nil
// when it is none.
func (c *call) deploymentForAddons(v *domain.Violations, ref string) *projections.Row[domain.Deployment] {
	name, ok := domain.ParseName(ref, domain.Deployments.Collection)
	if !ok {
		return nil // the decision says so
	}
	row, ok := c.View().Deployments.Get(name)
	switch {
	case !ok || name.Account() != c.Account:
		v.Add("deployment", "names no deployment of accounts/%s: list them with GET /v1/accounts/%s/deployments", c.Account, c.Account)
		return nil
	case !row.State.Live():
		v.Add("deployment", "names a deployment that is %s: name one that answers", row.State.State)
		return nil
	case !row.State.EnableAddons:
		v.Add("deployment", "names a deployment without enableAddons: set that with PATCH /v1/%s, or name another", name)
		return nil
	}
	return row
}

// wantRoom requires that the deployment does not have the addon yet and can
// take one more; where a newer one takes the older one's place there is room.
func (c *call) wantRoom(v *domain.Violations, deployment domain.Name, model string, replaces bool) error {
	wanted := 0
	for row := range c.addonsOf(deployment) {
		if !row.State.Wanted() {
			continue
		}
		if wanted++; row.State.Model == model {
			f := domain.Errorf(domain.AlreadyExists, "model: %s is loaded into %s already, as %s", model, deployment, row.Name)
			f.Reason = "ALREADY_LOADED"
			return f
		}
	}
	v.Require(replaces || wanted < domain.MaxAddons, "deployment", "has %d addons, and takes no more: unload one first, or load it into another deployment", wanted)
	return nil
}
