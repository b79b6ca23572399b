package rest

import (
	"time"

	"anneal/domain"
	"anneal/projections"
)

// A deploymentPlan has the values for the command of a create or update, which the validation of the
// request computes.
type deploymentPlan struct {
	directKeys   [][]byte         // hashes of directRouteApiKeys
	model        domain.ModelSize // size of the baseModel
	speechFormat string           // format of the baseModel if it is a speech model; "" for a text model
	operator     bool             // the caller is the operator
	zeroFloor    time.Duration    // minimum of scaleToZeroWindow
	accelerator  string           // accelerator type of a deployment that names none
}

func createDeployment(c *call, q *creation[Deployment]) (plan[domain.Deployment, Deployment], error) {
	q.p.Flag("skipImageTagValidation")
	c.warnParameters()
	noAutoDeploy, skipShape := q.p.Flag("disableAutoDeploy"), q.p.Flag("skipShapeValidation")
	noSpeculation := q.p.Flag("disableSpeculativeDecoding")
	planned := plan[domain.Deployment, Deployment]{respond: c.completeDeployment(q.given)}
	if err := c.RequireActive(c.Account); err != nil {
		return planned, err
	}
	v, spec := &q.p.Violations, &q.given.DeploymentSpec
	if noSpeculation {
		disableSpeculation(spec)
	}
	// If the deployment exists, Decide rejects the create, whatever its shape is. Without a shape,
	// there are no validated settings against which the model could be checked.
	if _, exists := c.View().Deployments.Get(q.name); !exists {
		if shape := c.shapeOfCreate(v, spec, skipShape); shape != nil {
			c.requireServes(v, shape, spec.BaseModel, spec.EnableAddons)
			*spec = spec.WithShape(v, string(shape.Name), shape.State.ShapeSpec, allFields)
		}
		if noSpeculation {
			disableSpeculation(spec)
		} else if base, ok := c.baseOf(spec.BaseModel); ok {
			*spec = spec.WithSpeculationOf(base.State.ModelSpec)
		}
	}
	d := c.planDeployment(v, q.name, spec.BaseModel, q.given)
	recorded := *spec
	recorded.DirectRouteAPIKeys, recorded.SpeechFormat, recorded.DisableAutoDeploy = nil, d.speechFormat, noAutoDeploy
	recorded.DisableSpeculativeDecoding = noSpeculation
	planned.command = domain.CreateDeployment{DeploymentSpec: recorded, CreatedBy: string(c.Principal.Key),
		Cluster: c.Cluster, DirectKeys: d.directKeys, Model: d.model, ZeroFloor: d.zeroFloor, Accelerator: d.accelerator,
		Operator: d.operator}
	return planned, nil
}

func updateDeployment(c *call, q *update[domain.Deployment, Deployment]) (plan[domain.Deployment, Deployment], error) {
	planned := plan[domain.Deployment, Deployment]{respond: c.completeDeployment(q.given)}
	if err := c.RequireActive(c.Account); err != nil {
		return planned, err
	}
	v := &q.p.Violations
	v.Require(!q.mask.Has("deploymentTemplate") || q.given.DeploymentTemplate == q.old.DeploymentTemplate,
		"deploymentTemplate",
		"cannot be changed after creation: set deploymentShape, or the fields of the deployment directly")
	shape := c.shapeOfUpdate(v, q)
	d := c.planDeployment(v, q.name, q.old.BaseModel, q.given)
	spec := reshape(v, q, shape)
	keys := q.old.DirectKeys
	spec.DirectRouteAPIKeys, spec.SpeechFormat, spec.DisableAutoDeploy = q.old.DirectRouteAPIKeys, q.old.SpeechFormat,
		q.old.DisableAutoDeploy
	spec.DisableSpeculativeDecoding = q.old.DisableSpeculativeDecoding
	if q.mask.Has("directRouteApiKeys") {
		keys, spec.DirectRouteAPIKeys = d.directKeys, nil
	}
	planned.command = domain.UpdateDeployment{DeploymentSpec: spec, DirectKeys: keys, Model: d.model,
		ZeroFloor: d.zeroFloor, Accelerator: d.accelerator, Operator: d.operator}
	return planned, nil
}

// fleetAccelerator returns the accelerator type for a deployment or a shape that names none: see
// domain.FleetAccelerator. speechFormat is the format of the baseModel if it is a speech model; ""
// for a text model.
func fleetAccelerator(c *call, speechFormat string, placement *domain.Placement) string {
	need := domain.DeploymentSpec{SpeechFormat: speechFormat, Placement: placement}.Need(domain.Hosted{})
	return domain.FleetAccelerator(c.View().Fleet(), projections.ForAccount(c.View(), c.Account, need))
}

// completeDeployment returns a function that adds the direct route's keys to the response. If a key
// is easily guessed, it also adds a warning.
func (c *call) completeDeployment(given *Deployment) func(out *Deployment) {
	return func(out *Deployment) {
		out.DirectRouteAPIKeys = given.DirectRouteAPIKeys
		warnOfWeakKeys(c, out)
	}
}

// disableSpeculation removes all settings of speculative decoding from a deployment.
func disableSpeculation(spec *domain.DeploymentSpec) {
	spec.DraftModel, spec.DraftTokenCount, spec.NgramSpeculationLength = nil, 0, 0
}

// planDrafter validates the draft model, and adds its memory to the plan.
func (c *call) planDrafter(v *domain.Violations, given *Deployment, d *deploymentPlan) {
	drafter := given.ServedDrafter()
	v.Require(c.speechFormat(given.Drafter()) == "", "draftModel",
		"%s is a speech model, which cannot draft tokens: use a text model", given.Drafter())
	row, ok := c.UsableModel(c.Account, given.Drafter())
	v.Require(!ok || row.State.Kind != domain.PEFTAddon, "draftModel",
		"%s is an addon, which cannot draft tokens: use a base model", given.Drafter())
	if ok && drafter != "" && d.speechFormat == "" {
		d.model.Draft = row.State.Size().Memory("", given.MaxContextLength)
	}
}

// planDeployment validates the fields that both creates and updates of deployments can set, and
// returns the values for the command. model is the deployment's baseModel.
func (c *call) planDeployment(v *domain.Violations, name domain.Name, model string, given *Deployment) deploymentPlan {
	d := deploymentPlan{model: c.sizeOf(model), speechFormat: c.speechFormat(model), operator: c.Principal.IsOperator(),
		zeroFloor: c.Limits.ScaleToZero}
	d.accelerator = fleetAccelerator(c, d.speechFormat, given.Placement)
	v.Require(given.DeploymentTemplate == "" || isEnterprise(c), "deploymentTemplate",
		"is only for accounts of type %s: leave it out, and set the fields of the deployment directly", domain.Enterprise)
	requireAliases(c, v, name, given.Aliases)
	c.requireModel(v, "baseModel", given.BaseModel, "")
	c.requireModel(v, "draftModel", given.Drafter(), "")
	c.planDrafter(v, given, &d)
	v.Require(len(given.DirectRouteAPIKeys) <= maxDirectKeys, "directRouteApiKeys", "must have at most %d keys",
		maxDirectKeys)
	for _, key := range given.DirectRouteAPIKeys {
		v.Require(key != "" && len(key) <= maxDirectKeySize, "directRouteApiKeys", "each key must have 1 to %d bytes",
			maxDirectKeySize)
	}
	if len(*v) == 0 {
		d.directKeys = c.HashDirectKeys(name, given.DirectRouteAPIKeys)
	}
	return d
}
