package rest

import (
	"cmp"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// DeploymentShape is the wire type of a deployment shape.
type DeploymentShape struct {
	Name string `json:"name" api:"output"`
	domain.ShapeSpec
	CreateTime     *time.Time   `json:"createTime,omitempty" api:"output"`
	UpdateTime     *time.Time   `json:"updateTime,omitempty" api:"output"`
	ModelType      string       `json:"modelType" api:"output"`
	ParameterCount domain.Count `json:"parameterCount" api:"output"`
}

var deploymentShapes = &resource[domain.DeploymentShape, DeploymentShape]{
	kind: domain.DeploymentShapes, noun: "deployment shape", wrapper: "deploymentShape", idParam: "deploymentShapeId",
	reads: request.Read, writes: request.Write,
	fields:    fieldsOf[DeploymentShape](),
	public:    func(s *domain.DeploymentShape) bool { return s.Newest().Public },
	dependent: map[string]func(*projections.Row[domain.DeploymentShape]) bool{},
	render: func(_ *projections.View, row *projections.Row[domain.DeploymentShape], out *DeploymentShape) {
		*out = renderShape(row.Name, row.State, row.State.Newest())
	},
	create: func(c *call, q *creation[DeploymentShape]) (plan[domain.DeploymentShape, DeploymentShape], error) {
		traits := c.checkShape(&q.p.Violations, "deploymentShape.", q.given)
		return plan[domain.DeploymentShape, DeploymentShape]{command: domain.CreateDeploymentShape{
			ShapeSpec: q.given.ShapeSpec, Model: traits, Size: c.sizeOf(q.given.BaseModel),
			Accelerator: fleetAccelerator(c, "", nil), CreatedBy: string(c.Principal.Key)}}, nil
	},
	update: func(c *call, q *update[domain.DeploymentShape, DeploymentShape]) (plan[domain.DeploymentShape,
		DeploymentShape], error) {
		newest := q.old.Newest()
		traits := c.checkShape(&q.p.Violations, "", q.given)
		if q.merged.BaseModel == newest.BaseModel {
			traits = newest.ModelTraits
		}
		return plan[domain.DeploymentShape, DeploymentShape]{command: domain.UpdateDeploymentShape{
			ShapeSpec: q.merged.ShapeSpec, Model: traits,
			Size:        c.sizeOf(cmp.Or(q.given.BaseModel, newest.BaseModel)),
			Accelerator: fleetAccelerator(c, "", nil)}}, nil
	},
	remove: func(c *call, row *projections.Row[domain.DeploymentShape],
		_ *request.Params) (domain.Command[domain.DeploymentShape], error) {
		return domain.DeleteDeploymentShape{}, nil
	},
}

var _ = register(deploymentShapes.operations, shapeVersionOperations)

// renderShape returns a deployment shape with the settings of one of its versions.
func renderShape(name domain.Name, s domain.DeploymentShape, version *domain.ShapeVersion) DeploymentShape {
	return DeploymentShape{Name: string(name), ShapeSpec: version.ShapeSpec,
		CreateTime: wire.Timestamp(s.Versions[0].CreateTime),
		UpdateTime: wire.Timestamp(version.CreateTime), ModelType: version.ModelType, ParameterCount: version.ParameterCount}
}

// checkShape validates the models that a shape names, adds warnings about deprecated fields, and
// returns the traits of the shape's baseModel. prefix is the path of the shape in the request's
// body.
func (c *call) checkShape(v *domain.Violations, prefix string, given *DeploymentShape) (traits domain.ModelTraits) {
	c.requireModel(v, prefix+"baseModel", given.BaseModel, "")
	c.requireModel(v, prefix+"draftModel", given.DraftModel, "")
	if row, ok := c.UsableModel(c.Account, given.BaseModel); ok {
		v.Require(row.State.Kind != domain.SpeechModel, prefix+"baseModel",
			"%s is a speech model, which deployment shapes do not support: deploy it without a shape", row.Name)
		v.Require(row.State.Kind != domain.PEFTAddon, prefix+"baseModel",
			"%s is an addon, but a shape needs a base model: give %s", row.Name, row.State.BaseModel)
		traits = row.State.Traits()
	}
	for _, one := range []struct {
		field   string
		used    bool
		instead string
	}{{"enableAddons", given.EnableAddons, "set it in the deployment"},
		{"draftModel", given.DraftModel != "", "set it in the deployment"}} {
		if one.used {
			c.Warn("%s of a deployment shape is deprecated: %s", one.field, one.instead)
		}
	}
	return traits
}
