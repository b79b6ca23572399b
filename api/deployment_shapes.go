package api

import (
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// DeploymentShape is a deployment shape on the wire.
type DeploymentShape struct {
	Name string `json:"name" api:"output"`
	domain.ShapeSpec
	CreateTime     *time.Time   `json:"createTime,omitempty" api:"output"`
	UpdateTime     *time.Time   `json:"updateTime,omitempty" api:"output"`
	ModelType      string       `json:"modelType" api:"output"`
	ParameterCount domain.Count `json:"parameterCount" api:"output"`

	model domain.ModelTraits // of the baseModel that a request names
	size  domain.ModelSize   // of the baseModel as it will be
	fleet string             // accelerator that is taken where none is named
}

var deploymentShapes = &resource[domain.DeploymentShape, DeploymentShape]{
	kind: domain.DeploymentShapes, noun: "deployment shape", wrapper: "deploymentShape", idParam: "deploymentShapeId",
	reads: request.Read, writes: request.Write,
	fields: fieldsOf[DeploymentShape](),
	public: func(s *domain.DeploymentShape) bool { return s.Newest().Public },
	render: func(_ *projections.View, row *projections.Row[domain.DeploymentShape], out *DeploymentShape) {
		*out = shownShape(row.Name, row.State, row.State.Newest())
	},
	prepare: prepareShape,
	create: func(c *call, _ domain.Name, given *DeploymentShape) domain.Command[domain.DeploymentShape] {
		return domain.CreateDeploymentShape{ShapeSpec: given.ShapeSpec, Model: given.model, Size: given.size, Accelerator: given.fleet, CreatedBy: string(c.Principal.Key)}
	},
	update: func(old domain.DeploymentShape, merged, given *DeploymentShape, _ wire.Mask) (domain.Command[domain.DeploymentShape], error) {
		model := given.model
		if merged.BaseModel == old.Newest().BaseModel {
			model = old.Newest().ModelTraits
		}
		return domain.UpdateDeploymentShape{ShapeSpec: merged.ShapeSpec, Model: model, Size: given.size, Accelerator: given.fleet}, nil
	},
	remove: func(c *call, row *projections.Row[domain.DeploymentShape], _ *request.Params) (domain.Command[domain.DeploymentShape], error) {
		return domain.DeleteDeploymentShape{}, nil
	},
}

// shownShape is a shape as it was at one of its versions.
func shownShape(name domain.Name, s domain.DeploymentShape, version *domain.ShapeVersion) DeploymentShape {
	return DeploymentShape{Name: string(name), ShapeSpec: version.ShapeSpec, CreateTime: wire.Timestamp(s.Versions[0].CreateTime),
		UpdateTime: wire.Timestamp(version.CreateTime), ModelType: version.ModelType, ParameterCount: version.ParameterCount}
}

// prepareShape looks at the models that a shape names.
func prepareShape(c *call, name domain.Name, given *DeploymentShape, extra map[string]string, v *domain.Violations) error {
	prefix := ""
	if extra != nil { // a create: the shape is a field of the body
		prefix = "deploymentShape."
	}
	c.wantModel(v, prefix+"baseModel", given.BaseModel, "")
	c.wantModel(v, prefix+"draftModel", given.DraftModel, "")
	if row, ok := c.UsableModel(c.Account, given.BaseModel); ok {
		v.Require(row.State.Kind != domain.SpeechModel, prefix+"baseModel", "names a speech model, which no shape is for: deploy it without one")
		v.Require(row.State.Kind != domain.PEFTAddon, prefix+"baseModel", "names an addon: give the model that it was made for, %s", row.State.BaseModel)
		given.model = row.State.Traits()
	}
	model := given.BaseModel
	if row, exists := c.View().Shapes.Get(name); exists && model == "" {
		model = row.State.Newest().BaseModel
	}
	given.size, given.fleet = c.sizeOf(model), domain.FleetAccelerator(c.View().Fleet())
	for _, one := range []struct {
		field   string
		used    bool
		instead string
	}{{"enableAddons", given.EnableAddons, "set it on the deployment"}, {"draftModel", given.DraftModel != "", "set it on the deployment"},
		{"disableSpeculativeDecoding", given.DisableSpeculativeDecoding, "it has no effect"}} {
		if one.used {
			c.Warn("%s is deprecated in a deployment shape: %s", one.field, one.instead)
		}
	}
	return nil
}
