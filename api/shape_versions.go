package api

import (
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"reflect"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
	"anneal/projections/query"
)

// DeploymentShapeVersion is a version of a deployment shape on the wire.
type DeploymentShapeVersion struct {
	Name            string           `json:"name" api:"output"`
	CreateTime      *time.Time       `json:"createTime,omitempty" api:"output"`
	Snapshot        *DeploymentShape `json:"snapshot,omitempty" api:"output"`
	Validated       bool             `json:"validated"`
	Public          bool             `json:"public"`
	LatestValidated bool             `json:"latestValidated" api:"output"`
	Capabilities    []string         `json:"capabilities" api:"output"`
}

// A version's state in a list: the version, and the shape that it is of.
type versionState struct {
	*domain.ShapeVersion
	shape *projections.Row[domain.DeploymentShape]
}

// Exists implements domain.State.
func (versionState) Exists() bool { return true }

type versionRow = projections.Row[versionState]

var shapeVersionFields = fieldsOf[DeploymentShapeVersion]()

const shapeVersionList = "deploymentShapeVersions"

func shapeVersionOperations(s *Server) []request.Operation {
	const versions = request.CollectionPath + "deploymentShapes/{id}/versions"
	page, one := request.PageType(shapeVersionList, reflect.TypeFor[DeploymentShapeVersion]()), reflect.TypeFor[DeploymentShapeVersion]()
	all := []request.Operation{ // reading decides itself, since what is public is everybody's
		{ID: "listDeploymentShapeVersions", Method: "GET", Path: versions, Summary: "List the versions of a deployment shape", Gate: request.WithKey, Permission: request.Read,
			Query: request.ListParameters, Response: page, Handle: s.handle(listShapeVersions)},
		{ID: "getDeploymentShapeVersion", Method: "GET", Path: versions + "/{version}", Summary: "Read a version of a deployment shape", Gate: request.WithKey, Permission: request.Read,
			Query: []request.Parameter{request.ReadMaskParameter}, Response: one, Handle: s.handle(getShapeVersion)},
		{ID: "updateDeploymentShapeVersion", Method: "PATCH", Path: versions + "/{version}", Summary: "Say that a version is validated or public", Permission: request.Publish,
			Query: []request.Parameter{request.UpdateMaskParameter}, Body: one, Response: one, Handle: s.handle(patchShapeVersion)},
		{ID: "matchDeploymentShapeVersions", Method: "POST", Path: request.CollectionPath + "deploymentShapeVersions:match", Summary: "List the versions that a deployment could be made with", Permission: request.Read,
			Query: request.ListParameters, Body: reflect.TypeFor[shapeMatch](), BodyOptional: true, Response: page, Handle: s.handle(matchShapes)},
	}
	for i := range all {
		all[i].Tag = "deploymentShapes"
	}
	return all
}

func versionOf(shape *projections.Row[domain.DeploymentShape], version *domain.ShapeVersion) *versionRow {
	return &versionRow{Name: domain.Name(domain.ShapeVersionName(shape.Name, version.ID)),
		State: versionState{version, shape}, CreateTime: version.CreateTime}
}

func renderShapeVersion(row *versionRow, out *DeploymentShapeVersion) {
	version, shape := row.State.ShapeVersion, row.State.shape
	snapshot := shownShape(shape.Name, shape.State, version)
	latest, ok := shape.State.LatestValidated()
	*out = DeploymentShapeVersion{Name: string(row.Name), CreateTime: wire.Timestamp(version.CreateTime), Snapshot: &snapshot,
		Validated: version.Validated, Public: version.Public, LatestValidated: ok && latest.ID == version.ID, Capabilities: version.Capabilities()}
}

// readableVersions are the versions of the path's shape that the caller may
// read: all of its own account's, and the public ones of others.
func readableVersions(c *call) ([]*versionRow, error) {
	refusal := c.Principal.Authorize(c.Account, request.Read)
	if refusal != nil && (c.Principal.Account == c.Account || c.Principal.Require(request.Read) != nil) {
		return nil, refusal
	}
	shape, err := deploymentShapes.row(c)
	if err != nil && refusal == nil {
		return nil, err
	}
	var rows []*versionRow
	for i := 0; err == nil && i < len(shape.State.Versions); i++ {
		if version := &shape.State.Versions[i]; refusal == nil || version.Public {
			rows = append(rows, versionOf(shape, version))
		}
	}
	if len(rows) == 0 {
		return nil, refusal
	}
	return rows, nil
}

func listShapeVersions(c *call) (any, error) {
	rows, err := readableVersions(c)
	if err != nil {
		return nil, err
	}
	return c.listVersions(c.Params(), func(yield func(*versionRow) bool) {
		for _, row := range rows {
			if !yield(row) {
				return
			}
		}
	}, "")
}

// listVersions answers a page; bound is what its token belongs to beyond the
// query.
func (c *call) listVersions(p *request.Params, rows iter.Seq[*versionRow], bound string) (any, error) {
	q, m := request.ReadListQuery(c.Call, p, reflect.TypeFor[DeploymentShapeVersion]())
	q.DefaultOrder = "createTime"
	q.Binding += bound
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
	m, _ := wire.ParseMask(&p.Violations, "readMask", reflect.TypeFor[DeploymentShapeVersion](), p.Texts("readMask"), false)
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
	return request.NotFoundReason("NOT_FOUND", "%s has no version %s: list what there is with GET /v1/%s/versions", shape, wire.Quote(c.PathValue("version")), shape)
}

// patchShapeVersion changes what reviewers say of a version: nothing else of
// it ever changes.
func patchShapeVersion(c *call) (any, error) {
	p := c.Params()
	t := reflect.TypeFor[DeploymentShapeVersion]()
	value, err := request.ReadBody(c.Call, false)
	if err != nil {
		return nil, err
	}
	b := wire.Normalize(&p.Violations, t, value)
	m, all := wire.ParseMask(&p.Violations, "updateMask", t, p.Texts("updateMask"), true)
	switch {
	case all && len(p.Values["updateMask"]) > 0:
		m = wire.Mask{"validated": {}, "public": {}}
	case all:
		m = wire.Present(t, b)
	}
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
	if err := p.Err(); err != nil {
		return nil, err
	}
	command := domain.ReviewShapeVersion{Version: version.ID, Validated: version.Validated, Public: version.Public}
	if m.Has("validated") {
		command.Validated = given.Validated
	}
	if m.Has("public") {
		command.Public = given.Public
	}
	result, err := c.Do(domain.Intend(domain.DeploymentShapes, shape.Name, domain.Command[domain.DeploymentShape](command)))
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
	return out, nil
}

// A createDeploymentRequest is a create of a deployment as another request
// carries it.
type createDeploymentRequest struct {
	Deployment                 *Deployment `json:"deployment"`
	DeploymentID               string      `json:"deploymentId"`
	DisableAutoDeploy          bool        `json:"disableAutoDeploy"`
	DisableSpeculativeDecoding bool        `json:"disableSpeculativeDecoding"`
	ValidateOnly               bool        `json:"validateOnly"`
	SkipShapeValidation        bool        `json:"skipShapeValidation"`
	SkipImageTagValidation     bool        `json:"skipImageTagValidation"`
}

// A shapeMatch asks what a deployment could be made with.
type shapeMatch struct {
	Request *createDeploymentRequest `json:"createDeploymentRequest"`
}

// matchShapes answers the versions that the deployment could be made with.
func matchShapes(c *call) (any, error) {
	var asked shapeMatch
	if err := readVerb(c, &asked); err != nil {
		return nil, err
	}
	p := c.Params()
	model := ""
	switch {
	case asked.Request == nil:
		p.Violations.Add("createDeploymentRequest", "is required: give {\"deployment\": {\"baseModel\": \"accounts/ACCOUNT/models/ID\"}}")
	case asked.Request.Deployment == nil || asked.Request.Deployment.BaseModel == "":
		p.Violations.Add("createDeploymentRequest.deployment.baseModel", "is required")
	default:
		model = asked.Request.Deployment.BaseModel
		_, formed := domain.ParseName(model, domain.Models.Collection)
		p.Violations.Require(formed, "createDeploymentRequest.deployment.baseModel", "must be a name like accounts/ACCOUNT/models/ID")
		c.wantModel(&p.Violations, "createDeploymentRequest.deployment.baseModel", model, "")
	}
	asked.Request.check(&p.Violations)
	if len(p.Violations) > 0 {
		return nil, p.Violations.Err()
	}
	bound, err := json.Marshal(asked.Request)
	if err != nil {
		return nil, err
	}
	wish, accounts := c.wishFor(model, asked.Request.Deployment.EnableAddons)
	return c.listVersions(p, func(yield func(*versionRow) bool) {
		for _, account := range accounts {
			shapes := func(yield func(domain.Name, domain.DeploymentShape) bool) {
				for row := range c.View().Shapes.In(account) {
					if !yield(row.Name, row.State) {
						return
					}
				}
			}
			for name, version := range domain.MatchShapes(shapes, wish) {
				shape, _ := c.View().Shapes.Get(name)
				if !asked.Request.contradicts(version) && !yield(versionOf(shape, version)) {
					return
				}
			}
		}
	}, fmt.Sprintf("\n%q\n%s", wish.Model.ModelType, bound))
}

// check names what no deployment can ask for. Its devices may be those of
// shapes, since one of them is looked for; of the model more is known elsewhere.
func (r *createDeploymentRequest) check(v *domain.Violations) {
	if r == nil || r.Deployment == nil {
		return
	}
	spec := r.Deployment.DeploymentSpec
	spec.DeploymentShape = cmp.Or(spec.DeploymentShape, "any")
	for _, wrong := range spec.Wrong() {
		if wrong.Field != "baseModel" {
			v.Add("createDeploymentRequest.deployment."+wrong.Field, "%s", wrong.Description)
		}
	}
}

// contradicts tells whether the deployment could not be made with the version,
// since it asks for other settings itself.
func (r *createDeploymentRequest) contradicts(version *domain.ShapeVersion) bool {
	var v domain.Violations
	r.Deployment.Shaped(&v, "", version.ShapeSpec, every)
	return len(v) > 0
}

// wishFor is what the deployment of a usable model asks of shapes, and the
// accounts whose shapes may serve it: the deployment's own, the model's, and
// that of the model which it was made from.
func (c *call) wishFor(model string, addons bool) (domain.ShapeWish, []string) {
	row, _ := c.UsableModel(c.Account, model)
	accounts := map[string]bool{c.Account: true, row.Name.Account(): true}
	base, ok := c.UsableModel(c.Account, row.State.BaseModel)
	if ok {
		accounts[base.Name.Account()] = true
	}
	if row.State.Kind == domain.PEFTAddon && ok {
		row = base
	}
	wish := domain.WishOf(row.State)
	wish.Addons, wish.Account = addons, c.Account
	return wish, wire.SortedKeys(accounts)
}
