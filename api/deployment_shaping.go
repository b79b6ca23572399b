package api

import (
	"strings"

	"anneal/api/wire"
	"anneal/domain"
)

// wantShape finds the version of a shape that a create or update names, and
// gives a new deployment its settings. An update that names none is held to
// the version that the deployment was made with, for as long as that exists.
func (c *call) wantShape(v *domain.Violations, name domain.Name, given *Deployment) {
	row, exists := c.View().Deployments.Get(name)
	switch {
	case given.DeploymentShape != "":
		given.shape = c.shapeVersion(v, given.DeploymentShape, given.skipShape)
	case exists && row.State.DeploymentShape != "":
		given.shape = c.shapeVersion(new(domain.Violations), row.State.DeploymentShape, true)
	}
	if given.shape == nil {
		return
	}
	model, addons := given.BaseModel, given.EnableAddons
	if exists {
		model, addons = row.State.BaseModel, addons || row.State.EnableAddons
	}
	if _, usable := c.UsableModel(c.Account, model); usable {
		wish, _ := c.wishFor(model, addons)
		given.shape.State.Serves(v, wish)
	}
	if !exists {
		given.DeploymentSpec = given.DeploymentSpec.Shaped(v, string(given.shape.Name), given.shape.State.ShapeSpec, every)
		given.silence()
	}
}

// shapeVersion finds what a reference to a shape, or to a version of one,
// stands for: of a shape, its latest validated version, or the newest of all
// where validation is skipped.
func (c *call) shapeVersion(v *domain.Violations, ref string, skip bool) *versionRow {
	shapeRef, id, pinned := strings.Cut(ref, "/versions/")
	name, ok := domain.ParseName(shapeRef, domain.DeploymentShapes.Collection)
	if !ok {
		v.Add("deploymentShape", "must be a name like accounts/ACCOUNT/deploymentShapes/ID, or that of one of its versions")
		return nil
	}
	shape, ok := c.View().Shapes.Get(name)
	var version *domain.ShapeVersion
	if ok {
		switch {
		case pinned:
			version, ok = shape.State.Version(id)
		case skip:
			version = shape.State.Newest()
		default:
			if version, ok = shape.State.LatestValidated(); !ok && name.Account() == c.Account {
				v.Add("deploymentShape", "names a shape of which no version is validated: validate one, or set skipShapeValidation")
				return nil
			}
		}
	}
	switch {
	case !ok || name.Account() != c.Account && !version.Public:
		v.Add("deploymentShape", "names no deployment shape that accounts/%s may use: POST deploymentShapeVersions:match lists those that fit a model", c.Account)
		return nil
	case !version.Validated && !skip:
		v.Add("deploymentShape", "names a version that is not validated: validate it, name another, or set skipShapeValidation")
		return nil
	}
	return versionOf(shape, version)
}

// reshaped is an update's outcome as the shape allows it. A new shape brings
// its settings, but for those that the update itself names.
func reshaped(merged domain.DeploymentSpec, given *Deployment, changed wire.Mask) (domain.DeploymentSpec, error) {
	var v domain.Violations
	fills := changed.Has // what the update takes out, the shape puts back
	switch {
	case changed.Has("deploymentShape") && given.DeploymentShape == "":
		return merged.Unshaped(every), nil
	case given.shape == nil:
		return merged, nil
	case changed.Has("deploymentShape"):
		merged, fills = merged.Unshaped(changed.Has), every
	}
	merged = merged.Shaped(&v, string(given.shape.Name), given.shape.State.ShapeSpec, fills)
	return merged, v.Err()
}

func every(string) bool { return true }
