package rest

import (
	"strings"

	"anneal/api/wire"
	"anneal/domain"
)

// shapeOfUpdate returns the shape version that an update names, or, if it names none, the version
// that the deployment has. It returns nil if the deployment has no shape, or its shape was deleted.
func (c *call) shapeOfUpdate(v *domain.Violations, q *update[domain.Deployment, Deployment]) (shape *versionRow) {
	switch {
	case q.given.DeploymentShape != "":
		shape = c.shapeVersion(v, q.given.DeploymentShape, false)
	case q.old.DeploymentShape != "":
		shape = c.shapeVersion(new(domain.Violations), q.old.DeploymentShape, true)
	}
	if shape != nil {
		c.requireServes(v, shape, q.old.BaseModel, q.given.EnableAddons || q.old.EnableAddons)
	}
	return shape
}

// requireServes adds a violation unless the shape version supports the model and, if addons is
// true, addons. It ignores a model that the account may not use, because another check adds a
// violation for that.
func (c *call) requireServes(v *domain.Violations, shape *versionRow, model string, addons bool) {
	if _, usable := c.UsableModel(c.Account, model); usable {
		requirements, _ := c.shapeRequirements(model, addons)
		shape.State.RequireMatch(v, requirements)
	}
}

// shapeVersion returns the shape version that ref names. If ref names a shape, it returns the
// newest version of the shape that is marked as validated or, if skip is true, the newest of all.
// If there is no such version, it adds a violation and returns nil.
func (c *call) shapeVersion(v *domain.Violations, ref string, skip bool) *versionRow {
	shapeRef, id, pinned := strings.Cut(ref, "/versions/")
	name, ok := domain.ParseName(shapeRef, domain.DeploymentShapes.Collection)
	if !ok {
		v.Add("deploymentShape", "must be accounts/ACCOUNT/deploymentShapes/SHAPE, or "+
			"accounts/ACCOUNT/deploymentShapes/SHAPE/versions/VERSION")
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
				v.Add("deploymentShape", "no version of %s is marked as validated: set validated of a version with PATCH, or "+
					"set skipShapeValidation", name)
				return nil
			}
		}
	}
	switch {
	case !ok || name.Account() != c.Account && !version.Public:
		v.Add("deploymentShape", "%s is not a deployment shape that accounts/%s may use: list the shapes that fit "+
			"a model with POST deploymentShapeVersions:match", wire.Quote(ref), c.Account)
		return nil
	case !version.Validated && !skip:
		v.Add("deploymentShape", "%s is not marked as validated: set its field validated with PATCH, name another "+
			"version, or set skipShapeValidation", wire.Quote(ref))
		return nil
	}
	return versionOf(shape, version)
}

// shapeVersionExists reports whether a shape version with the name exists in any account.
func (c *call) shapeVersionExists(version string) bool {
	shape, id, _ := strings.Cut(version, "/versions/")
	row, ok := c.View().Shapes.Get(domain.Name(shape))
	if ok {
		_, ok = row.State.Version(id)
	}
	return ok
}

// reshape returns the settings that a deployment has after the update q. If the update changes the
// shape, the fields that it does not name get the values of the new shape.
func reshape(v *domain.Violations, q *update[domain.Deployment, Deployment], shape *versionRow) domain.DeploymentSpec {
	merged, changed := q.merged.DeploymentSpec, q.mask.Has
	switch {
	case changed("deploymentShape") && q.given.DeploymentShape == "":
		return merged.WithoutShape(allFields)
	case shape == nil:
		return merged
	case changed("deploymentShape"):
		return merged.WithoutShape(changed).WithShape(v, string(shape.Name), shape.State.ShapeSpec, allFields)
	}
	// A field that the update clears gets the value of the shape. A field that it does not change
	// is not checked against the shape, because an earlier release may have stored another value.
	return merged.WithShape(v, string(shape.Name), shape.State.ShapeSpec, changed)
}

func allFields(string) bool { return true }
