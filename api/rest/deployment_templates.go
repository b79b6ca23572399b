package rest

import (
	"strings"

	"anneal/api/wire"
	"anneal/domain"
)

// A deployment template is a preset that the operator provides: a public deployment shape of the
// account publicAccount, which accounts of the type domain.Enterprise name by its ID. A deployment
// takes the settings of the shape's latest validated version, as with the field deploymentShape.

// templateShape returns the resource name of the deployment shape to which template, the ID of a
// deployment template, refers.
func templateShape(template string) string {
	return string(domain.NewName(publicAccount, domain.DeploymentShapes.Collection, template))
}

// shapeOfCreate returns the shape version from which a new deployment takes its settings: that of
// its deploymentShape or its deploymentTemplate. It returns nil if the deployment names neither, or
// after adding a violation.
func (c *call) shapeOfCreate(v *domain.Violations, spec *domain.DeploymentSpec, skip bool) *versionRow {
	template := spec.DeploymentTemplate
	// planDeployment adds a violation if an account that is not of type ENTERPRISE names a template
	if template == "" || !isEnterprise(c) {
		if spec.DeploymentShape == "" {
			return nil
		}
		return c.shapeVersion(v, spec.DeploymentShape, skip)
	}
	shape := templateShape(template)
	if spec.DeploymentShape != "" {
		v.Require(strings.HasPrefix(spec.DeploymentShape, shape+"/versions/"), "deploymentTemplate",
			"cannot be combined with another deploymentShape: give only one of the two")
		return c.shapeVersion(v, spec.DeploymentShape, skip)
	}
	var missing domain.Violations
	version := c.shapeVersion(&missing, shape, skip)
	v.Require(version != nil, "deploymentTemplate",
		"%s is not a deployment template of this installation: ask the operator to store it as a public, validated "+
			"deployment shape of accounts/%s", wire.Quote(template), publicAccount)
	return version
}

// isEnterprise reports whether the account of the call may use deployment templates.
func isEnterprise(c *call) bool {
	row, ok := c.View().Accounts.Get(domain.NewName(c.Account, "accounts", c.Account))
	return ok && row.State.AccountType == domain.Enterprise
}
