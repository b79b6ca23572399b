package rest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"reflect"
	"time"

	"anneal/api/inert"
	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
	"anneal/projections/query"
)

// DeploymentShapeVersion is the wire type of a version of a deployment shape.
type DeploymentShapeVersion struct {
	Name            string           `json:"name" api:"output"`
	CreateTime      *time.Time       `json:"createTime,omitempty" api:"output"`
	Snapshot        *DeploymentShape `json:"snapshot,omitempty" api:"output"`
	Validated       bool             `json:"validated"`
	Public          bool             `json:"public"`
	LatestValidated bool             `json:"latestValidated" api:"output"`
	Capabilities    []string         `json:"capabilities" api:"output"`
}

// versionState wraps a shape version and its shape as the domain.State of a row, so that
// query.List, which takes rows, can filter and order the versions.
type versionState struct {
	*domain.ShapeVersion
	shape *projections.Row[domain.DeploymentShape]
}

// Exists implements domain.State.
func (versionState) Exists() bool { return true }

type versionRow = projections.Row[versionState]

var shapeVersionFields = fieldsOf[DeploymentShapeVersion]()

const shapeVersionList = "deploymentShapeVersions"

func shapeVersionOperations(s *Service) []request.Operation {
	const versions = request.CollectionPath + "deploymentShapes/{id}/versions"
	page, one := request.PageType(shapeVersionList, reflect.TypeFor[DeploymentShapeVersion]()),
		reflect.TypeFor[DeploymentShapeVersion]()
	all := []request.Operation{ // the handlers check permissions, because all accounts may read public versions
		{ID: "listDeploymentShapeVersions", Method: "GET", Path: versions, Summary: "List the versions of a deployment shape",
			Gate: request.WithKey, Permission: request.Read,
			Query: request.ListParameters, Response: page, Handle: s.handle(listShapeVersions)},
		{ID: "getDeploymentShapeVersion", Method: "GET", Path: versions + "/{version}",
			Summary: "Read a version of a deployment shape", Gate: request.WithKey, Permission: request.Read,
			Query: []request.Parameter{request.ReadMaskParameter}, Response: one, Handle: s.handle(getShapeVersion)},
		{ID: "updateDeploymentShapeVersion", Method: "PATCH", Path: versions + "/{version}",
			Summary: "Mark a version of a deployment shape as validated or public", Permission: request.Publish,
			Query: []request.Parameter{request.UpdateMaskParameter}, Body: one, Response: one,
			Handle: s.handle(patchShapeVersion)},
		{ID: "matchDeploymentShapeVersions", Method: "POST", Path: request.CollectionPath + "deploymentShapeVersions:match",
			Summary: "List the versions of deployment shapes that fit a " +
				"deployment", Gate: request.InAccount, Permission: request.Read,
			Query: request.ListParameters, Body: reflect.TypeFor[shapeMatch](), BodyOptional: true, Response: page,
			Handle: s.handle(matchShapes)},
	}
	return withTag("deploymentShapes", all)
}

func versionOf(shape *projections.Row[domain.DeploymentShape], version *domain.ShapeVersion) *versionRow {
	return &versionRow{Name: domain.Name(domain.ShapeVersionName(shape.Name, version.ID)),
		State: versionState{version, shape}, CreateTime: version.CreateTime}
}

func renderShapeVersion(row *versionRow, out *DeploymentShapeVersion) {
	version, shape := row.State.ShapeVersion, row.State.shape
	snapshot := renderShape(shape.Name, shape.State, version)
	latest, ok := shape.State.LatestValidated()
	*out = DeploymentShapeVersion{Name: string(row.Name), CreateTime: wire.Timestamp(version.CreateTime),
		Snapshot:  &snapshot,
		Validated: version.Validated, Public: version.Public, LatestValidated: ok && latest.ID == version.ID,
		Capabilities: version.Capabilities()}
}

// readableVersions returns the versions of the shape in the path that the caller may read: all
// versions if it is the caller's account, otherwise the public ones.
func readableVersions(c *call) ([]*versionRow, error) {
	denied := c.Principal.Authorize(c.Account, request.Read)
	if denied != nil && (c.Principal.Account == c.Account || c.Principal.Require(request.Read) != nil) {
		return nil, denied
	}
	shape, err := deploymentShapes.row(c)
	if err != nil && denied == nil {
		return nil, err
	}
	var rows []*versionRow
	for i := 0; err == nil && i < len(shape.State.Versions); i++ {
		version := &shape.State.Versions[i]
		if denied == nil || version.Public && (c.View().Past == nil || publicNow(c, shape, version.ID)) {
			rows = append(rows, versionOf(shape, version))
		}
	}
	if len(rows) == 0 {
		return nil, denied
	}
	return rows, nil
}

// publicNow reports whether the shape and its version with the ID id still exist, and all accounts
// may read the version at present. It returns false if the shape was deleted and created again.
func publicNow(c *call, shape *projections.Row[domain.DeploymentShape], id string) bool {
	row, ok := request.Present(c.Call).Shapes.Get(shape.Name)
	if !ok || row.CreateEvent != shape.CreateEvent {
		return false
	}
	version, ok := row.State.Version(id)
	return ok && version.Public
}

func listShapeVersions(c *call) (any, error) {
	rows, err := readableVersions(c)
	if err != nil {
		return nil, err
	}
	return listVersions(c, c.Params(), func(yield func(*versionRow) bool) {
		for _, row := range rows {
			if !yield(row) {
				return
			}
		}
	}, "")
}

// listVersions responds with a page of rows. A page token is valid only with the same query and the
// same binding, such as the JSON of the request's body.
func listVersions(c *call, p *request.Params, rows iter.Seq[*versionRow], binding string) (any, error) {
	q, m := request.ReadListQuery(c.Call, p, reflect.TypeFor[DeploymentShapeVersion]())
	q.DefaultOrder = "createTime"
	q.Binding += binding
	page, err := query.List(rows, renderShapeVersion, shapeVersionFields, q)
	if err := request.JoinErrors(p.Err(), err); err != nil {
		return nil, err
	}
	return request.ListResponse(shapeVersionList, page.Items, page.NextPageToken, page.TotalSize, m)
}

func getShapeVersion(c *call) (any, error) {
	rows, err := readableVersions(c)
	if err != nil {
		return nil, err
	}
	p := c.Params()
	m := wire.ParseReadMask(&p.Violations, reflect.TypeFor[DeploymentShapeVersion](), p.Texts("readMask"))
	if err := p.Err(); err != nil {
		return nil, err
	}
	for _, row := range rows {
		if row.State.ID == c.PathValue("version") {
			out := new(DeploymentShapeVersion)
			renderShapeVersion(row, out)
			return m.Project(out)
		}
	}
	if err := c.Principal.Authorize(c.Account, request.Read); err != nil {
		return nil, err
	}
	return nil, noSuchVersion(c)
}

func noSuchVersion(c *call) error {
	shape := domain.NewName(c.Account, domain.DeploymentShapes.Collection, c.PathValue("id"))
	return request.NotFoundReason("NOT_FOUND", "%s has no version %s: list its versions with GET /v1/%s/versions", shape,
		wire.Quote(c.PathValue("version")), shape)
}

// patchShapeVersion changes the fields validated and public of a version. The other fields cannot
// be changed.
func patchShapeVersion(c *call) (any, error) {
	p := c.Params()
	t := reflect.TypeFor[DeploymentShapeVersion]()
	value, b, err := p.Body(t, false)
	if err != nil {
		return nil, err
	}
	m := wire.ParseUpdateMask(&p.Violations, t, p.Texts("updateMask"), b)
	var given DeploymentShapeVersion
	if err := b.Fill(&given); err != nil {
		return nil, err
	}
	shape, err := deploymentShapes.row(c)
	if err != nil {
		return nil, err
	}
	version, ok := shape.State.Version(c.PathValue("version"))
	if !ok {
		return nil, noSuchVersion(c)
	}
	deploymentShapes.checkName(p, value, domain.Name(domain.ShapeVersionName(shape.Name, version.ID)))
	old := new(DeploymentShapeVersion)
	renderShapeVersion(versionOf(shape, version), old)
	command := domain.ReviewShapeVersion{Version: version.ID, Validated: version.Validated, Public: version.Public}
	if m.Has("validated") {
		command.Validated = given.Validated
	}
	if m.Has("public") {
		command.Public = given.Public
	}
	intent := domain.Intend(domain.DeploymentShapes, shape.Name, domain.Command[domain.DeploymentShape](command))
	if err := allViolations(c, intent, p, unprefixed); err != nil {
		return nil, err
	}
	result, err := c.Do(intent)
	if err != nil {
		return nil, err
	}
	if shape, err = deploymentShapes.changed(c, result); err != nil {
		return nil, err
	}
	if version, ok = shape.State.Version(version.ID); !ok {
		return nil, noSuchVersion(c)
	}
	out := new(DeploymentShapeVersion)
	renderShapeVersion(versionOf(shape, version), out)
	warnOutputs(c, p, "", old, out)
	return out, nil
}

// A createDeploymentRequest is the create request of a deployment, as a field of another request.
type createDeploymentRequest struct {
	Deployment                 *Deployment `json:"deployment"`
	DeploymentID               string      `json:"deploymentId"`
	DisableAutoDeploy          bool        `json:"disableAutoDeploy"`
	DisableSpeculativeDecoding bool        `json:"disableSpeculativeDecoding"`
	ValidateOnly               bool        `json:"validateOnly"`
	SkipShapeValidation        bool        `json:"skipShapeValidation"`
	SkipImageTagValidation     bool        `json:"skipImageTagValidation"`
}

// A shapeMatch is the request body of matchDeploymentShapeVersions.
type shapeMatch struct {
	Request *createDeploymentRequest `json:"createDeploymentRequest"`
}

// matchShapes responds with the shape versions that fit the deployment in the request.
func matchShapes(c *call) (any, error) {
	p, body := c.Params(), shapeMatch{}
	if err := p.ReadVerb(&body); err != nil {
		return nil, err
	}
	model := ""
	switch {
	case body.Request == nil:
		p.Violations.Add("createDeploymentRequest",
			"is required: give {\"deployment\": {\"baseModel\": \"accounts/ACCOUNT/models/ID\"}}")
	case body.Request.Deployment == nil || body.Request.Deployment.BaseModel == "":
		p.Violations.Add("createDeploymentRequest.deployment.baseModel", "is required: the name of a model")
	default:
		model = body.Request.Deployment.BaseModel
		_, formed := domain.ParseName(model, domain.Models.Collection)
		p.Violations.Require(formed, "createDeploymentRequest.deployment.baseModel",
			"must be a resource name such as accounts/ACCOUNT/models/ID")
		c.requireModel(&p.Violations, "createDeploymentRequest.deployment.baseModel", model, "")
	}
	body.Request.validate(&p.Violations)
	if len(p.Violations) > 0 { // listVersions adds the violations of the query parameters
		return listVersions(c, p, func(func(*versionRow) bool) {}, "")
	}
	c.warnInert(inert.Of(c.Operation.ID), body, struct{}{})
	bound, err := json.Marshal(body.Request)
	if err != nil {
		return nil, err
	}
	requirements, accounts := c.shapeRequirements(model, body.Request.Deployment.EnableAddons)
	return listVersions(c, p, func(yield func(*versionRow) bool) {
		for _, account := range accounts {
			shapes := func(yield func(domain.Name, domain.DeploymentShape) bool) {
				for row := range c.View().Shapes.In(account) {
					if !yield(row.Name, row.State) {
						return
					}
				}
			}
			for name, version := range domain.MatchShapes(shapes, requirements) {
				shape, _ := c.View().Shapes.Get(name)
				if !body.Request.contradicts(version) && !yield(versionOf(shape, version)) {
					return
				}
			}
		}
	}, fmt.Sprintf("\n%q\n%s", requirements.Model.ModelType, bound))
}

// validate adds the violations of the deployment's fields. It ignores the fields that a shape may
// set, and the model, which matchShapes validates.
func (r *createDeploymentRequest) validate(v *domain.Violations) {
	if r == nil || r.Deployment == nil {
		return
	}
	spec := r.Deployment.DeploymentSpec
	spec.DeploymentShape = cmp.Or(spec.DeploymentShape, "any")
	for _, invalid := range spec.Validate() {
		if invalid.Field != "baseModel" {
			v.Add("createDeploymentRequest.deployment."+invalid.Field, "%s", invalid.Description)
		}
	}
}

// contradicts reports whether the deployment sets a field to another value than the shape version
// has.
func (r *createDeploymentRequest) contradicts(version *domain.ShapeVersion) bool {
	var v domain.Violations
	r.Deployment.WithShape(&v, "", version.ShapeSpec, allFields)
	return len(v) > 0
}

// shapeRequirements returns what a shape must support so that a deployment of the model can use it,
// and the accounts whose shapes may fit: the account in the path, and the accounts of the model and
// its base model. The account in the path must be allowed to use the model.
func (c *call) shapeRequirements(model string, addons bool) (domain.ShapeRequirements, []string) {
	row, _ := c.UsableModel(c.Account, model)
	accounts := map[string]bool{c.Account: true, row.Name.Account(): true}
	base, ok := c.UsableModel(c.Account, row.State.BaseModel)
	if ok {
		accounts[base.Name.Account()] = true
	}
	if row.State.Kind == domain.PEFTAddon && ok {
		row = base
	}
	requirements := domain.ShapeRequirementsOf(row.State)
	requirements.Addons, requirements.Account = addons, c.Account
	return requirements, wire.SortedKeys(accounts)
}
