package rest

import (
	"strings"

	"anneal/api/wire"
	"anneal/domain"
)

// A deployment template is a preset that the operator stores: a public deployment shape of the
// account publicAccount, which accounts of the type domain.Enterprise name by its ID. A deployment
// takes the settings of the shape's latest validated version, as with deploymentShape.

// templateShape returns the resource name of the shape that a template names.
func templateShape(template string) string {
	return string(domain.NewName(publicAccount, domain.DeploymentShapes.Collection, template))
}

// shapeOfCreate returns the shape version whose settings a new deployment takes, that of its
// deploymentShape or of its deploymentTemplate. It returns nil when the deployment names none, and
// when it adds violations.
func (c *call) shapeOfCreate(v *domain.Violations, spec *domain.DeploymentSpec, skip bool) *versionRow {
	template := spec.DeploymentTemplate
	if template == "" || !isEnterprise(c) { // planDeployment rejects the templates of other accounts
		if spec.DeploymentShape == "" {
			return nil
		}
		return c.shapeVersion(v, spec.DeploymentShape, skip)
	}
	shape := templateShape(template)
	if spec.DeploymentShape != "" {
		v.Require(strings.HasPrefix(spec.DeploymentShape, shape+"/versions/"), "deploymentTemplate",
			"cannot be combined with another deploymentShape: give one of them")
		return c.shapeVersion(v, spec.DeploymentShape, skip)
	}
	var missing domain.Violations
	version := c.shapeVersion(&missing, shape, skip)
	v.Require(version != nil, "deploymentTemplate",
		"%s is not a template of this installation: the operator must store it as a "+
			"public, validated deployment shape of accounts/%s", wire.Quote(template), publicAccount)
	return version
}

// isEnterprise reports whether the account may use templates.
func isEnterprise(c *call) bool {
	row, ok := c.View().Accounts.Get(domain.NewName(c.Account, "accounts", c.Account))
	return ok && row.State.AccountType == domain.Enterprise
}
