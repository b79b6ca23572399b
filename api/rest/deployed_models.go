package rest

import (
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// DeployedModel is the wire type of a deployed model: an addon that is loaded into a deployment of
// its base model.
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
	kind: domain.DeployedModels, noun: "deployed model", idParam: "deployedModelId", order: "createTime",
	reads: request.Read, writes: request.Write,
	fields: storedFieldsOf[domain.DeployedModel, DeployedModel]("name", "displayName", "description", "model",
		"deployment", "createTime", "updateTime", "state", "status"),
	deletes:   true,
	hidden:    func(m *domain.DeployedModel) bool { return m.State == domain.ModelUndeployedState },
	render:    renderDeployedModel,
	creator:   func(m *domain.DeployedModel) string { return m.CreatedBy },
	dependent: map[string]func(*projections.Row[domain.DeployedModel]) bool{"default": nil},
	create: func(c *call, q *creation[DeployedModel]) (plan[domain.DeployedModel, DeployedModel], error) {
		err := c.RequireActive(c.Account)
		if err == nil {
			err = requireFittingAddon(c, &q.p.Violations, q.name, q.given)
		}
		command := domain.CreateDeployedModel{DeployedModelSpec: q.given.DeployedModelSpec,
			CreatedBy: string(c.Principal.Key)}
		if q.given.Default {
			command.DefaultRank = c.View().NextDefaultRank(domain.Name(q.given.Deployment))
		}
		return plan[domain.DeployedModel, DeployedModel]{command: command}, err
	},
	update: func(c *call, q *update[domain.DeployedModel, DeployedModel]) (plan[domain.DeployedModel, DeployedModel],
		error) {
		command := domain.UpdateDeployedModel{DeployedModelSpec: q.merged.DeployedModelSpec}
		row, exists := c.View().DeployedModels.Get(q.name)
		if q.given.Default && exists && !c.View().IsDefault(row) {
			command.DefaultRank = c.View().NextDefaultRank(domain.Name(q.old.Deployment))
		}
		return plan[domain.DeployedModel, DeployedModel]{command: command}, c.RequireActive(c.Account)
	},
	remove: func(*call, *projections.Row[domain.DeployedModel], *request.Params) (domain.Command[domain.DeployedModel],
		error) {
		return domain.UndeployModel{Reason: "unloaded by its user"}, nil
	},
}

var _ = register(deployedModels.operations)

// renderDeployedModel renders a deployed model. If v is nil, out.Default is the stored value, which
// is outdated if another deployed model became the default later.
func renderDeployedModel(v *projections.View, row *projections.Row[domain.DeployedModel], out *DeployedModel) {
	m := &row.State
	*out = DeployedModel{Name: string(row.Name), DeployedModelSpec: m.DeployedModelSpec,
		CreateTime: wire.TimestampOf(&row.CreateTime), UpdateTime: wire.TimestampOf(&row.UpdateTime),
		State: m.State, Status: m.Status.HideNodes(), CreatedBy: creatorOf(v, m.CreatedBy)}
	if v != nil {
		out.Default = v.IsDefault(row)
	}
}

// requireFittingAddon adds a violation unless the model is a READY addon of the deployment's base
// model, and the deployment can load one more addon. It returns an error if the deployment has
// loaded the model already.
func requireFittingAddon(c *call, v *domain.Violations, name domain.Name, given *DeployedModel) error {
	if _, exists := c.View().DeployedModels.Get(name); exists {
		return nil // the command's Decide rejects a create of an existing name
	}
	deployment := deploymentForAddons(c, v, given.Deployment)
	if _, ok := domain.ParseName(given.Model, domain.Models.Collection); !ok {
		return nil // the command's Decide rejects a malformed name
	}
	model, usable := c.UsableModel(c.Account, given.Model)
	switch {
	case !usable:
		v.Add("model", "%s is not a model that accounts/%s may use: list the models with GET /v1/accounts/%s/models",
			given.Model, c.Account, c.Account)
	case model.State.State != domain.ModelReady:
		v.Add("model", "%s is %s, not READY: upload its files, or wait until it is READY", given.Model, model.State.State)
	case model.State.Kind != domain.PEFTAddon:
		v.Add("model", "%s is a base model, but only addons can be loaded into a deployment: create a deployment for the "+
			"base model",
			given.Model)
	case deployment == nil:
	case model.State.BaseModel != deployment.State.BaseModel:
		v.Add("model", "is an addon of %s, but the deployment serves %s: use a deployment of the addon's base model",
			model.State.BaseModel, deployment.State.BaseModel)
	default:
		return requireCapacity(c, v, deployment.Name, given.Model, deployment.State.EnableHotReloadLatestAddon)
	}
	return nil
}

// deploymentForAddons returns the live deployment with enableAddons that ref names. If the account
// has no such deployment, it adds a violation and returns nil.
func deploymentForAddons(c *call, v *domain.Violations, ref string) *projections.Row[domain.Deployment] {
	name, ok := domain.ParseName(ref, domain.Deployments.Collection)
	if !ok {
		return nil // the command's Decide rejects a malformed name
	}
	row, ok := c.View().Deployments.Get(name)
	switch {
	case !ok || name.Account() != c.Account:
		v.Add("deployment", "%s is not a deployment of accounts/%s: list deployments with GET /v1/accounts/%s/deployments",
			name, c.Account, c.Account)
		return nil
	case !row.State.Live():
		v.Add("deployment", "%s is %s and serves no requests: use a deployment that is READY", name, row.State.State)
		return nil
	case !row.State.EnableAddons:
		v.Add("deployment", "%s does not load addons: set its enableAddons with PATCH /v1/%s, or name another "+
			"deployment", name,
			name)
		return nil
	}
	return row
}

// requireCapacity returns an error if the deployment has loaded the addon model already. It adds a
// violation if the deployment has the maximum number of addons, unless replaces is true: then the
// addon replaces the latest one.
func requireCapacity(c *call, v *domain.Violations, deployment domain.Name, model string, replaces bool) error {
	wanted := 0
	for row := range c.View().Addons(deployment) {
		if !row.State.Wanted() {
			continue
		}
		if wanted++; row.State.Model == model {
			f := domain.Errorf(domain.AlreadyExists, "model: %s is already loaded into %s, as %s: use that deployed "+
				"model", model, deployment, row.Name)
			f.Reason = "ALREADY_LOADED"
			return f
		}
	}
	v.Require(replaces || wanted < domain.MaxAddons, "deployment",
		"has the maximum of %d addons: unload an addon first, or load this addon into another deployment", wanted)
	return nil
}
