package rest

import (
	"cmp"
	"reflect"
	"time"

	"anneal/api/request"
	"anneal/api/routing"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// Deployment is the wire type of a deployment. Only the response to the request that sets
// DirectRouteAPIKeys contains them.
type Deployment struct {
	Name string `json:"name" api:"output"`
	domain.DeploymentSpec
	DirectRouteAPIKeys  []string      `json:"directRouteApiKeys,omitempty" api:"input" query:"-"`
	ActiveModelVersion  string        `json:"activeModelVersion,omitempty" api:"output"`
	TargetModelVersion  string        `json:"targetModelVersion,omitempty" api:"output"`
	SpeechFormat        string        `json:"speechFormat,omitempty" api:"output"`
	DisableAutoDeploy   bool          `json:"disableAutoDeploy,omitempty" api:"output"`
	DisableSpeculation  bool          `json:"disableSpeculativeDecoding,omitempty" api:"output"`
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
	// Queue describes what the missing replicas wait for; nil if there are none.
	Queue  *JobQueue `json:"queue,omitempty" api:"output"`
	Region string    `json:"region" api:"output"`
	// NumPeftDeviceCached is the number of addons that all ready replicas have loaded. It is nil
	// unless the deployment has enableAddons.
	NumPeftDeviceCached *int `json:"numPeftDeviceCached,omitempty" api:"output"`
	// HotLoad describes which weights of trainer jobs the replicas serve. It is nil unless the
	// deployment has enableHotLoad.
	HotLoad *HotLoad `json:"hotLoad,omitempty" api:"output"`
	// TrafficSplit is the newest release of the deployment; nil if there was none.
	TrafficSplit *TrafficSplit `json:"trafficSplit,omitempty" api:"output"`
}

// ReplicaStats has the numbers of replicas of a deployment by state.
type ReplicaStats struct {
	PendingScheduling int `json:"pendingSchedulingReplicaCount"`
	DownloadingModel  int `json:"downloadingModelReplicaCount"`
	Initializing      int `json:"initializingReplicaCount"`
	Ready             int `json:"readyReplicaCount"`
}

// Limits of the direct route's keys.
const (
	maxDirectKeys    = 16
	maxDirectKeySize = 1024 // maximum size of a key in bytes
)

var deployments = &resource[domain.Deployment, Deployment]{
	kind: domain.Deployments, noun: "deployment", requires: []string{"baseModel"}, idParam: "deploymentId",
	order: "createTime", reads: request.Read, writes: request.Write,
	deletes: true, validateOnly: true,
	hidden: func(d *domain.Deployment) bool { return d.State == domain.DeploymentDeletedState },
	fields: storedFieldsOf[domain.Deployment, Deployment]("name", "baseModel", "displayName", "description", "expireTime",
		"minReplicaCount",
		"maxReplicaCount", "autoscalingPolicy", "acceleratorCount", "acceleratorShare", "acceleratorType", "precision",
		"enableAddons",
		"draftModel", "directRouteType",
		"deploymentTemplate", "placement", "maxContextLength", "enableHotLoad", "deploymentShape",
		"createTime", "updateTime", "deleteTime", "purgeTime", "state", "cluster"),
	render:  renderDeployment,
	creator: func(d *domain.Deployment) string { return d.CreatedBy },
	dependent: map[string]func(*projections.Row[domain.Deployment]) bool{
		"status": hasReplicas, "queue": lacksReplicas, "replicaCount": hasReplicas, "replicaStats": hasReplicas,
		"activeModelVersion": hasReplicas,
		"region": func(row *projections.Row[domain.Deployment]) bool {
			return len(row.State.Replicas) > 0 || row.State.Placement != nil
		},
		"trafficSplit":        hasRelease,
		"directRouteHandle":   func(row *projections.Row[domain.Deployment]) bool { return row.State.Reachable() },
		"numPeftDeviceCached": func(row *projections.Row[domain.Deployment]) bool { return row.State.EnableAddons }},
	local: addServing,
	createParameters: []request.Parameter{
		{Name: "disableAutoDeploy", Kind: wire.Bool,
			Description: "Whether requests that name only the model are not routed to this deployment. Requests that name " +
				"MODEL#DEPLOYMENT or the deployment itself still reach it."},
		{Name: "skipImageTagValidation", Kind: wire.Bool,
			Description: "Has no effect: this server never validates image tags."},
		{Name: "skipShapeValidation", Kind: wire.Bool,
			Description: "Whether to accept a shape version that is not marked as validated."},
		{Name: "disableSpeculativeDecoding", Kind: wire.Bool,
			Description: "Whether to disable speculative decoding. The deployment then ignores all settings of " +
				"speculative decoding, also those of its shape and its model, and the field prediction of requests."},
	},
	deleteParameters: []request.Parameter{
		{Name: "hard", Kind: wire.Bool,
			Description: "Whether to delete the deployment permanently. Otherwise it is soft-deleted, and can be undeleted " +
				"until its purgeTime."},
		{Name: "ignoreChecks", Kind: wire.Bool,
			Description: "Whether to delete the deployment even if it has served requests recently, or has an active release."},
	},
	create: createDeployment,
	update: updateDeployment,
	remove: func(c *call, row *projections.Row[domain.Deployment], p *request.Params) (domain.Command[domain.Deployment],
		error) {
		return domain.DeleteDeployment{Hard: p.Flag("hard"), IgnoreChecks: p.Flag("ignoreChecks"),
			LastServed: c.LastServed.Of(row.Name), Reason: "deleted by its user"}, nil
	},
}

var _ = register(deployments.operations, deploymentOperations, releaseOperations)

// hasReplicas reports whether a deployment has or may get replicas, which depend on nodes.
func hasReplicas(row *projections.Row[domain.Deployment]) bool {
	return row.State.Live() || len(row.State.Replicas) > 0
}

func renderDeployment(v *projections.View, row *projections.Row[domain.Deployment], out *Deployment) {
	d := &row.State
	*out = Deployment{Name: string(row.Name), DeploymentSpec: d.DeploymentSpec,
		CreateTime: wire.TimestampOf(&row.CreateTime), UpdateTime: wire.TimestampOf(&row.UpdateTime),
		DeleteTime: d.DeleteTime, PurgeTime: d.PurgeTime, State: d.State, Status: d.Status,
		CreatedBy: creatorOf(v, d.CreatedBy), Cluster: d.Cluster,
		DesiredReplicaCount: d.DesiredReplicas, Region: regionOf(v, d)}
	out.DeploymentSpec.DirectRouteAPIKeys, out.SpeechFormat, out.HotLoad = nil, d.SpeechFormat, renderHotLoad(d)
	out.TrafficSplit = renderSplit(v, row)
	out.DisableAutoDeploy, out.DisableSpeculation = d.DisableAutoDeploy, d.DisableSpeculativeDecoding
	if v != nil && d.EnableAddons {
		out.NumPeftDeviceCached = new(int)
		for addon := range v.Addons(row.Name) {
			if addon.State.State == domain.ModelDeployedState {
				*out.NumPeftDeviceCached++
			}
		}
		if slots := projections.AddonSlots(v, d); slots > 0 {
			*out.NumPeftDeviceCached = min(*out.NumPeftDeviceCached, slots)
		}
	}
	alive := d.Ordered()
	if v != nil {
		alive = v.Alive(d)
	}
	out.ReplicaCount = len(alive)
	out.ReplicaStats.PendingScheduling = max(0, d.DesiredReplicas-len(alive))
	out.Status = routing.StatusOf(v, row.Name, d, out.ReplicaStats.PendingScheduling)
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
	if v != nil {
		out.ReplicaStats.Ready -= routing.UnreachableOf(v, row.Name, d, alive)
	}
	if out.ReplicaStats.Ready > 0 {
		out.ActiveModelVersion = modelVersion(d, d.Hot.Served)
	}
	if d.Live() {
		out.TargetModelVersion = modelVersion(d, cmp.Or(d.Hot.Offered, d.Hot.Served))
	}
}

// regionOf returns the region of the first replica whose node has a region. If there is none, it
// returns the region in the deployment's placement, or REGION_UNSPECIFIED.
func regionOf(v *projections.View, d *domain.Deployment) string {
	if v != nil {
		for _, replica := range v.Alive(d) {
			if node, ok := v.Nodes.Get(replica.Node); ok && node.State.Region != "" {
				return node.State.Region
			}
		}
	}
	if p := d.Placement; p != nil && (v == nil || v.Located()) {
		if allowed := p.Allowed(); len(allowed) > 0 && p.MultiRegion == "" {
			return allowed[0]
		}
	}
	return domain.Regions[0]
}

// speechFormat returns the format of a speech model. It returns "" for a text model, and for a
// model that does not exist or that the account may not use.
func (c *call) speechFormat(model string) string {
	row, ok := c.UsableModel(c.Account, model)
	if !ok {
		return ""
	}
	return row.State.SpeechFormat()
}

// sizeOf returns the size of a model or, for an addon, of its base model. It returns the zero value
// for a model that does not exist or that the account may not use.
func (c *call) sizeOf(model string) domain.ModelSize {
	row, ok := c.baseOf(model)
	if !ok {
		return domain.ModelSize{}
	}
	return row.State.Size()
}

// baseOf returns the row of a model or, for an addon, of its base model. It returns false if the
// account may not use it.
func (c *call) baseOf(model string) (*projections.Row[domain.Model], bool) {
	row, ok := c.UsableModel(c.Account, model)
	if ok && row.State.Kind == domain.PEFTAddon {
		return c.UsableModel(c.Account, row.State.BaseModel)
	}
	return row, ok
}

func deploymentOperations(s *Service) []request.Operation {
	const one = request.CollectionPath + "deployments/{id}"
	return []request.Operation{
		{ID: "scaleDeployment", Method: "PATCH", Path: one + ":scale", Tag: "deployments",
			Summary: "Set the number of replicas of a deployment", Permission: request.Write,
			Body: reflect.TypeFor[scaling](), BodyOptional: true, ReleasesResources: true, Response: request.NoBody,
			Handle: s.handle(scaleDeployment)},
		{ID: "undeleteDeployment", Method: "POST", Path: one + ":undelete", Tag: "deployments",
			Summary: "Restore a soft-deleted deployment", Permission: request.Write,
			Description: "The addons that were loaded when the deployment was deleted are loaded again.",
			Body:        request.NoBody, BodyOptional: true, Response: reflect.TypeFor[Deployment](),
			Handle: s.handle(deployments.verb(undeleteDeployment))},
	}
}

// A scaling is the request body of scaleDeployment.
type scaling struct {
	ReplicaCount *int `json:"replicaCount"`
}

func scaleDeployment(c *call) (any, error) {
	p, body := c.Params(), scaling{}
	if err := p.ReadVerb(&body); err != nil {
		return nil, err
	}
	p.Require(body.ReplicaCount != nil, "replicaCount", "is required: the number of replicas")
	if body.ReplicaCount == nil {
		return nil, p.Err()
	}
	row, err := deployments.row(c)
	if err != nil {
		return nil, err
	}
	if err := c.RequireActive(c.Account); err != nil && *body.ReplicaCount > row.State.DesiredReplicas {
		return nil, err
	}
	command := domain.ScaleDeployment{Replicas: *body.ReplicaCount, Reason: "replicaCount was set by a request"}
	intent := domain.Intend(domain.Deployments, row.Name, domain.Command[domain.Deployment](command))
	if err := allViolations(c, intent, p, unprefixed); err != nil {
		return nil, err
	}
	_, err = c.Do(intent)
	return request.Empty, err
}

func undeleteDeployment(c *call, row *projections.Row[domain.Deployment]) (any, error) {
	if err := c.RequireActive(c.Account); err != nil {
		return nil, err
	}
	if _, usable := c.UsableModel(c.Account, row.State.BaseModel); !usable {
		f := domain.Errorf(domain.FailedPrecondition,
			"%s cannot be undeleted, because its baseModel %s no longer exists: create another deployment",
			row.Name, row.State.BaseModel)
		f.Reason = "MODEL_GONE"
		return nil, f
	}
	var v domain.Violations
	if requireAliases(c, &v, row.Name, row.State.Aliases); len(v) > 0 {
		return nil, domain.Errorf(domain.FailedPrecondition, "%s cannot be undeleted: %s", row.Name, v.Err())
	}
	shape := row.State.DeploymentShape
	gone := shape != "" && !c.shapeVersionExists(shape)
	if gone {
		c.Warn("deploymentShape: the shape %s was deleted; the deployment keeps the settings that it has taken from "+
			"it", shape)
	}
	undelete := domain.Command[domain.Deployment](domain.UndeleteDeployment{ShapeGone: gone})
	result, err := c.Do(domain.Intend(domain.Deployments, row.Name, undelete))
	if err != nil {
		return nil, err
	}
	return deployments.reply(c, result)
}
