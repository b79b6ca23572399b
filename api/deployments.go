package api

import (
	"fmt"
	"reflect"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// Deployment is a deployment on the wire. Its direct-route keys are in the
// answers to the create and the update that brought them and never again.
type Deployment struct {
	Name string `json:"name" api:"output"`
	domain.DeploymentSpec
	DirectRouteAPIKeys  []string      `json:"directRouteApiKeys,omitempty" api:"input" query:"-"`
	SpeechFormat        string        `json:"speechFormat,omitempty" api:"output"`
	DisableAutoDeploy   bool          `json:"disableAutoDeploy,omitempty" api:"output"`
	CreateTime          *time.Time    `json:"createTime,omitempty" api:"output"`
	UpdateTime          *time.Time    `json:"updateTime,omitempty" api:"output"`
	DeleteTime          *time.Time    `json:"deleteTime,omitempty" api:"output"`
	PurgeTime           *time.Time    `json:"purgeTime,omitempty" api:"output"`
	State               string        `json:"state" api:"output"`
	Status              domain.Status `json:"status" api:"output"`
	CreatedBy           string        `json:"createdBy,omitempty" api:"output"`
	Cluster             string        `json:"cluster,omitempty" api:"output"`
	DirectRouteHandle   string        `json:"directRouteHandle,omitempty" api:"output"`
	DesiredReplicaCount int           `json:"desiredReplicaCount" api:"output"`
	ReplicaCount        int           `json:"replicaCount" api:"output"`
	ReplicaStats        ReplicaStats  `json:"replicaStats" api:"output"`
	Region              string        `json:"region" api:"output"`
	// NumPeftDeviceCached is how many addons every ready replica has loaded;
	// only deployments that take addons have it.
	NumPeftDeviceCached *int `json:"numPeftDeviceCached,omitempty" api:"output"`
	// HotLoad is which weights of trainer jobs answer; only deployments that
	// take them have it.
	HotLoad *HotLoad `json:"hotLoad,omitempty" api:"output"`

	directKeys    [][]byte                       // hashes of DirectRouteAPIKeys
	shape         *projections.Row[versionState] // that the deployment is, or will be, made with
	skipShape     bool                           // it need not be validated
	unspeculative bool                           // speculation is off, whatever the shape says
	apart         bool                           // the baseModel's name alone does not mean it
	model         domain.ModelSize               // of the baseModel
	listens       string                         // format of the baseModel, if it is a speech model
	operator      bool                           // asks
	zeroFloor     time.Duration                  // shortest scaleToZeroWindow
	fleet         string                         // accelerator that is taken where none is named
}

// ReplicaStats counts a deployment's replicas by how far they are.
type ReplicaStats struct {
	PendingScheduling int `json:"pendingSchedulingReplicaCount"`
	DownloadingModel  int `json:"downloadingModelReplicaCount"`
	Initializing      int `json:"initializingReplicaCount"`
	Ready             int `json:"readyReplicaCount"`
}

// Limits of a deployment's direct-route keys.
const (
	maxDirectKeys    = 16
	maxDirectKeySize = 1024 // bytes
)

var deployments = &resource[domain.Deployment, Deployment]{
	kind: domain.Deployments, noun: "deployment", requires: []string{"baseModel"}, idParam: "deploymentId", order: "createTime", reads: request.Read, writes: request.Write,
	deletes: true, imagines: true,
	hidden: func(d *domain.Deployment) bool { return d.State == domain.DeploymentDeletedState },
	fields: storedFieldsOf[domain.Deployment, Deployment]("name", "baseModel", "displayName", "description", "expireTime", "minReplicaCount",
		"maxReplicaCount", "autoscalingPolicy", "acceleratorCount", "acceleratorType", "precision", "enableAddons", "draftModel", "directRouteType",
		"deploymentTemplate", "placement", "maxContextLength", "enableHotLoad", "deploymentShape", "activeModelVersion", "targetModelVersion",
		"createTime", "updateTime", "deleteTime", "purgeTime", "state", "createdBy", "cluster"),
	render: renderDeployment,
	local:  showHandle,
	ask:    askDeployment,
	asks: []request.Parameter{
		{Name: "disableAutoDeploy", Kind: wire.Bool, Description: "Whether requests for the model's name alone go past this deployment: MODEL#DEPLOYMENT and the deployment's own name still reach it."},
		{Name: "skipImageTagValidation", Kind: wire.Bool, Description: "Accepted, and without effect: there are no image tags."},
		{Name: "skipShapeValidation", Kind: wire.Bool, Description: "Whether a version of a shape that is not validated will do."},
		{Name: "disableSpeculativeDecoding", Kind: wire.Bool, Description: "Whether to leave out speculation, whatever the shape says of it."},
	},
	asksRemove: []request.Parameter{
		{Name: "hard", Kind: wire.Bool, Description: "Whether to delete for good: what is deleted softly can be brought back until its purgeTime."},
		{Name: "ignoreChecks", Kind: wire.Bool, Description: "Whether to delete even what has been used of late."},
	},
	prepare: prepareDeployment,
	create: func(c *call, _ domain.Name, given *Deployment) domain.Command[domain.Deployment] {
		spec := given.DeploymentSpec
		spec.DirectRouteAPIKeys, spec.SpeechFormat, spec.DisableAutoDeploy = nil, given.listens, given.apart
		return domain.CreateDeployment{DeploymentSpec: spec, CreatedBy: string(c.Principal.Key), Cluster: c.server.Cluster, DirectKeys: given.directKeys, Model: given.model, ZeroFloor: given.zeroFloor, Accelerator: given.fleet, Operator: given.operator}
	},
	update: func(old domain.Deployment, merged, given *Deployment, changed wire.Mask) (domain.Command[domain.Deployment], error) {
		spec, err := reshaped(merged.DeploymentSpec, given, changed)
		if err != nil {
			return nil, err
		}
		keys := old.DirectKeys
		spec.DirectRouteAPIKeys, spec.SpeechFormat, spec.DisableAutoDeploy = old.DirectRouteAPIKeys, old.SpeechFormat, old.DisableAutoDeploy
		if changed.Has("directRouteApiKeys") {
			keys, spec.DirectRouteAPIKeys = given.directKeys, nil
		}
		return domain.UpdateDeployment{DeploymentSpec: spec, DirectKeys: keys, Model: given.model, ZeroFloor: given.zeroFloor, Accelerator: given.fleet, Operator: given.operator}, nil
	},
	addGiven: func(c *call, given, out *Deployment) {
		out.DirectRouteAPIKeys = given.DirectRouteAPIKeys
		for _, unused := range out.Unused() {
			c.Warn("%s", unused)
		}
		c.warnOfRoute(out)
	},
	remove: func(c *call, row *projections.Row[domain.Deployment], p *request.Params) (domain.Command[domain.Deployment], error) {
		return domain.DeleteDeployment{Hard: p.Flag("hard"), IgnoreChecks: p.Flag("ignoreChecks"),
			LastServed: c.server.served.at(row.Name), Reason: "deleted by its user"}, nil
	},
}

func renderDeployment(v *projections.View, row *projections.Row[domain.Deployment], out *Deployment) {
	d := &row.State
	*out = Deployment{Name: string(row.Name), DeploymentSpec: d.DeploymentSpec, CreateTime: wire.TimestampOf(&row.CreateTime), UpdateTime: wire.TimestampOf(&row.UpdateTime),
		DeleteTime: d.DeleteTime, PurgeTime: d.PurgeTime, State: d.State, Status: d.Status, CreatedBy: d.CreatedBy, Cluster: d.Cluster,
		DesiredReplicaCount: d.DesiredReplicas, Region: regionOf(d.Placement)}
	out.DeploymentSpec.DirectRouteAPIKeys, out.SpeechFormat, out.HotLoad = nil, d.SpeechFormat, shownHotLoad(d)
	out.DisableAutoDeploy = d.DisableAutoDeploy
	if v != nil && d.EnableAddons {
		out.NumPeftDeviceCached = new(int)
		for addon := range addonsOf(v, row.Name) {
			if addon.State.State == domain.ModelDeployedState {
				*out.NumPeftDeviceCached++
			}
		}
	}
	alive := d.Ordered()
	if v != nil {
		alive = v.Alive(d)
	}
	out.ReplicaCount = len(alive)
	out.ReplicaStats.PendingScheduling = max(0, d.DesiredReplicas-len(alive))
	out.Status = scheduled(v, d, out.ReplicaStats.PendingScheduling)
	for _, r := range alive {
		switch r.State {
		case domain.ReplicaReady:
			out.ReplicaStats.Ready++
		case domain.ReplicaInitializing:
			out.ReplicaStats.Initializing++
		default:
			out.ReplicaStats.DownloadingModel++
		}
	}
}

// scheduled is the status of a deployment of which pending replicas wait for a
// place, or that no node could hold if it were asked, unless something worse is
// recorded.
func scheduled(v *projections.View, d *domain.Deployment, pending int) domain.Status {
	if v == nil || !d.Live() || d.Status.Code != domain.OK.String() || pending == 0 && len(d.Replicas) > 0 {
		return d.Status
	}
	prospect, why := v.Feasibility(v.NeedOf(d)), ""
	switch {
	case prospect.Fits():
		return d.Status // it is about to be given its place
	case pending > 0:
		why = fmt.Sprintf("%d of %d replicas wait for a place on a node: %s", pending, d.DesiredReplicas, prospect)
	case prospect.Infeasible() || prospect.AllLost():
		why = fmt.Sprintf("no request would wake it: %s", prospect)
	default:
		return d.Status
	}
	return domain.Status{Code: domain.Unavailable.String(), Message: why}
}

// regionOf is where the deployment is, as far as its placement pins it: nodes
// do not say where they stand.
func regionOf(p *domain.Placement) string {
	switch {
	case p != nil && p.Region != "":
		return p.Region
	case p != nil && len(p.Regions) > 0:
		return p.Regions[0]
	}
	return "REGION_UNSPECIFIED"
}

// askDeployment reads the query parameters of a create.
func askDeployment(p *request.Params, given *Deployment) {
	p.Flag("skipImageTagValidation") // there are no image tags
	given.apart = p.Flag("disableAutoDeploy")
	given.skipShape, given.unspeculative = p.Flag("skipShapeValidation"), p.Flag("disableSpeculativeDecoding")
	given.silence()
}

// silence takes speculation out when that was asked for.
func (d *Deployment) silence() {
	if d.unspeculative {
		d.DraftModel, d.DraftTokenCount, d.NgramSpeculationLength = nil, 0, 0
	}
}

func prepareDeployment(c *call, name domain.Name, given *Deployment, _ map[string]string, v *domain.Violations) error {
	if err := c.RequireActive(c.Account); err != nil {
		return err
	}
	c.wantShape(v, name, given)
	c.sizeUp(v, name, given)
	c.wantAliases(v, name, given.Aliases)
	c.wantModel(v, "baseModel", given.BaseModel, "")
	c.wantModel(v, "draftModel", given.Drafter(), "")
	v.Require(c.speechFormat(given.Drafter()) == "", "draftModel", "names a speech model, which drafts no text: name one that answers with text")
	v.Require(len(given.DirectRouteAPIKeys) <= maxDirectKeys, "directRouteApiKeys", "must hold at most %d keys", maxDirectKeys)
	for _, key := range given.DirectRouteAPIKeys {
		v.Require(key != "" && len(key) <= maxDirectKeySize, "directRouteApiKeys", "each must have 1 to %d bytes", maxDirectKeySize)
	}
	if len(*v) > 0 {
		return nil
	}
	given.directKeys = c.HashDirectKeys(name, given.DirectRouteAPIKeys)
	return nil
}

// sizeUp finds what the deployment's settings are held to: the size of its
// model, what its account may have, and the server's own limits.
func (c *call) sizeUp(v *domain.Violations, name domain.Name, given *Deployment) {
	model := given.BaseModel
	if row, exists := c.View().Deployments.Get(name); exists {
		model = row.State.BaseModel
	}
	given.model, given.zeroFloor, given.fleet = c.sizeOf(model), c.server.Limits.ScaleToZero, domain.FleetAccelerator(c.View().Fleet())
	given.listens, given.operator = c.speechFormat(model), c.Principal.IsOperator()
	if given.DeploymentTemplate != "" {
		row, ok := c.View().Accounts.Get(domain.NewName(c.Account, "accounts", c.Account))
		v.Require(ok && row.State.AccountType == domain.Enterprise, "deploymentTemplate", "is for accounts of type %s: leave it out, and give the settings themselves", domain.Enterprise)
	}
}

// speechFormat is the format of a speech model that the account may use; "" of
// any other name.
func (c *call) speechFormat(model string) string {
	row, ok := c.UsableModel(c.Account, model)
	if !ok {
		return ""
	}
	return row.State.SpeechFormat()
}

// sizeOf is the size of a model that the account may use; of an addon, its
// base model's. Of any other name nothing is known.
func (c *call) sizeOf(model string) domain.ModelSize {
	row, ok := c.UsableModel(c.Account, model)
	if ok && row.State.Kind == domain.PEFTAddon {
		row, ok = c.UsableModel(c.Account, row.State.BaseModel)
	}
	if !ok {
		return domain.ModelSize{}
	}
	return row.State.Size()
}

func deploymentOperations(s *Server) []request.Operation {
	const one = request.CollectionPath + "deployments/{id}"
	return []request.Operation{
		{ID: "scaleDeployment", Method: "PATCH", Path: one + ":scale", Tag: "deployments", Summary: "Set the number of a deployment's replicas", Permission: request.Write,
			Body: reflect.TypeFor[scaling](), BodyOptional: true, ReleasesResources: true, Response: request.NoBody, Handle: s.handle(scaleDeployment)},
		{ID: "undeleteDeployment", Method: "POST", Path: one + ":undelete", Tag: "deployments", Summary: "Bring a deleted deployment back", Permission: request.Write,
			Body: request.NoBody, BodyOptional: true, Response: reflect.TypeFor[Deployment](), Handle: s.handle(deployments.verb(undeleteDeployment))},
	}
}

// A scaling is how many replicas are wanted.
type scaling struct {
	ReplicaCount *int `json:"replicaCount"`
}

func scaleDeployment(c *call) (any, error) {
	var asked scaling
	if err := readVerb(c, &asked); err != nil {
		return nil, err
	}
	p := c.Params()
	p.Violations.Require(asked.ReplicaCount != nil, "replicaCount", "is required")
	if err := p.Err(); err != nil {
		return nil, err
	}
	row, err := deployments.row(c)
	if err != nil {
		return nil, err
	}
	if err := c.RequireActive(c.Account); err != nil && *asked.ReplicaCount > row.State.DesiredReplicas {
		return nil, err
	}
	command := domain.ScaleDeployment{Replicas: *asked.ReplicaCount, Reason: "scaled by its user"}
	_, err = c.Do(domain.Intend(domain.Deployments, row.Name, domain.Command[domain.Deployment](command)))
	return request.Empty, err
}

func undeleteDeployment(c *call, row *projections.Row[domain.Deployment]) (any, error) {
	if err := c.RequireActive(c.Account); err != nil {
		return nil, err
	}
	if _, usable := c.UsableModel(c.Account, row.State.BaseModel); !usable {
		f := domain.Errorf(domain.FailedPrecondition, "its baseModel, %s, is no longer there: create another deployment", row.State.BaseModel)
		f.Reason = "MODEL_GONE"
		return nil, f
	}
	var v domain.Violations
	if c.wantAliases(&v, row.Name, row.State.Aliases); len(v) > 0 {
		return nil, domain.Errorf(domain.FailedPrecondition, "it cannot come back: %s", v.Err())
	}
	undelete := domain.Command[domain.Deployment](domain.UndeleteDeployment{})
	result, err := c.Do(domain.Intend(domain.Deployments, row.Name, undelete))
	if err != nil {
		return nil, err
	}
	return deployments.reply(c, result)
}
