package domain

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A deployment serves a model with replicas on nodes.
//
//	(none)   --CreateDeployment--> CREATING
//	CREATING --MarkDeploymentReady--> READY, when minReplicaCount replicas are ready
//	CREATING --FailDeployment-->      FAILED, when it cannot be placed or loaded
//	live     --FailDeployment-->      FAILED, when a resource that it uses was deleted
//	READY    --UpdateDeployment-->    UPDATING --MarkDeploymentReady--> READY
//	live     --ScaleDeployment-->     unchanged: a READY deployment that is scaled to zero stays READY
//	live, FAILED --DeleteDeployment--> DELETING --FinishDeletion--> DELETED | (none) when hard
//	DELETED  --UndeleteDeployment--> CREATING
//	DELETED  --PurgeDeployment, or a hard DeleteDeployment--> (none)
//
// The replicas of a deployment:
//
//	pendingScheduling --PlaceReplica--> downloadingModel --AdvanceReplica--> initializing --> ready
//	any               --RemoveReplica--> (none)
//
// The weights that a deployment serves, with hot loading (see HotLoad):
//
//	base model or hot-loaded weights --OfferWeights--> unchanged, while the offered weights load
//	loading                          --SwapWeights--> the offered weights
//	loading                          --RefuseWeights--> unchanged, with the reason in the status
//	hot-loaded weights               --WithdrawWeights--> base model
var Deployments = referenceable(NewKind("deployments", map[string]Event[Deployment]{
	"deployment.created.v1":   DeploymentCreated{},
	"deployment.ready.v1":     DeploymentBecameReady{},
	"deployment.failed.v1":    DeploymentFailed{},
	"deployment.updated.v1":   DeploymentUpdated{},
	"deployment.scaled.v1":    DeploymentScaled{},
	"deployment.deleting.v1":  DeploymentDeleting{},
	"deployment.deleted.v1":   DeploymentDeleted{},
	"deployment.undeleted.v1": DeploymentUndeleted{},
	"deployment.purged.v1":    DeploymentPurged{},
	"replica.placed.v1":       ReplicaPlaced{},
	"replica.abandoned.v1":    ReplicaAbandoned{},
	"replica.advanced.v1":     ReplicaAdvanced{},
	"replica.removed.v1":      ReplicaRemoved{},

	"deployment.weightsOffered.v1":   WeightsOffered{},
	"deployment.weightsSwapped.v1":   WeightsSwapped{},
	"deployment.weightsRefused.v1":   WeightsRefused{},
	"deployment.weightsWithdrawn.v1": WeightsWithdrawn{},

	"deployment.releaseStarted.v1":    ReleaseStarted{},
	"deployment.releaseAdvanced.v1":   ReleaseAdvanced{},
	"deployment.releasePromoted.v1":   ReleasePromoted{},
	"deployment.releaseRolledBack.v1": ReleaseRolledBack{},
}), "deployment.", func(x *Deployment) *Deletion { return &x.Deletion })

// Deployment states.
const (
	DeploymentCreatingState = "CREATING"
	DeploymentReadyState    = "READY"
	DeploymentUpdatingState = "UPDATING"
	DeploymentFailedState   = "FAILED"
	DeploymentDeletingState = "DELETING"
	DeploymentDeletedState  = "DELETED"
)

// Replica states. A desired replica that is not placed yet is reported as pendingScheduling.
const (
	ReplicaDownloading  = "downloadingModel"
	ReplicaInitializing = "initializing"
	ReplicaReady        = "ready"
)

// MaxReplicaFailures is the number of consecutive replicas that may fail to start before a
// deployment that has never been READY fails.
const MaxReplicaFailures = 3

// A Replica is one running copy of the model.
type Replica struct {
	ID         string `json:"id"`
	State      string `json:"state"`
	Node       Name   `json:"node"`
	Generation int    `json:"generation"`         // Deployment.Generation when the replica was placed
	Replaces   string `json:"replaces,omitempty"` // ID of the replica that is removed when this one is ready
}

// A ReplicaShortage records since when a live deployment has had fewer replicas than its minimum,
// and since when fewer than its desired number. A time is zero if there are enough replicas. The
// minimum is minReplicaCount, or the desired number if that is lower.
type ReplicaShortage struct {
	Minimum time.Time `json:"minimum,omitzero"`
	Desired time.Time `json:"desired,omitzero"`
}

// Since returns since when the replica that is placed next is missing; zero if there are enough
// replicas.
func (s ReplicaShortage) Since() time.Time {
	if !s.Minimum.IsZero() {
		return s.Minimum
	}
	return s.Desired
}

// Deployment is the state of one deployment.
type Deployment struct {
	DeploymentSpec
	Deletion
	State      string   `json:"state"`
	Status     Status   `json:"status"`
	CreatedBy  string   `json:"createdBy"`
	Cluster    string   `json:"cluster,omitempty"`    // name of the installation that created the deployment
	DirectKeys [][]byte `json:"directKeys,omitempty"` // hashes of the API keys of the direct route
	// number of the current settings, from 1; replicas of an older generation are replaced
	Generation      int `json:"generation"`
	DesiredReplicas int `json:"desiredReplicas"`
	// when a user, or a request to a deployment scaled to zero, last set DesiredReplicas; the
	// autoscaler measures load from then on
	HeldFrom   time.Time          `json:"heldFrom"`
	Replicas   map[string]Replica `json:"replicas,omitempty"`
	ReplicaSeq int                `json:"replicaSeq"` // number in the ID of the newest replica; 0 before the first
	Failures   int                `json:"failures"`   // number of consecutive replicas that failed to start
	FailedTime time.Time          `json:"failedTime"` // when a replica last failed to start; zero if none did
	Short      ReplicaShortage    `json:"short,omitzero"`
	Hard       bool               `json:"hard,omitempty"`
	Since      time.Time          `json:"since"` // when State last changed
	DeleteTime *time.Time         `json:"deleteTime,omitempty"`
	PurgeTime  *time.Time         `json:"purgeTime,omitempty"`
	Hot        HotLoad            `json:"hot,omitzero"`
	Release    *TrafficSplit      `json:"release,omitempty"` // newest release; nil if there was none
}

// Exists implements State.
func (d Deployment) Exists() bool { return d.State != "" }

// StateName implements StateNamer.
func (d Deployment) StateName() string { return d.State }

// Live reports whether the deployment should have replicas.
func (d Deployment) Live() bool {
	return d.State == DeploymentCreatingState || d.State == DeploymentReadyState || d.State == DeploymentUpdatingState
}

// PurgeDue reports whether the deployment is deleted and its purgeTime has passed.
func (d Deployment) PurgeDue(now time.Time) bool {
	return d.State == DeploymentDeletedState && !now.Before(*d.PurgeTime)
}

// Reachable reports whether the deployment may have a direct route: its directRouteType is
// INTERNET, and it is not deleted.
func (d Deployment) Reachable() bool {
	return d.DirectRouteType == DirectInternet && d.Exists() && d.State != DeploymentDeletingState &&
		d.State != DeploymentDeletedState
}

// Ordered returns the replicas, ordered by the number in their IDs.
func (d Deployment) Ordered() []Replica {
	return slices.SortedFunc(maps.Values(d.Replicas), func(a, b Replica) int {
		return cmp.Or(cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID))
	})
}

// ReadyReplicas counts the ready replicas of all generations of the settings.
func (d Deployment) ReadyReplicas() int {
	n := 0
	for _, r := range d.Replicas {
		if r.State == ReplicaReady {
			n++
		}
	}
	return n
}

// CurrentReplicas counts the ready replicas that run the newest generation of the settings.
func (d Deployment) CurrentReplicas() int {
	n := 0
	for _, r := range d.Replicas {
		if r.State == ReplicaReady && r.Generation == d.Generation {
			n++
		}
	}
	return n
}

// NextReplica returns the ID of the next replica to be placed.
func (d Deployment) NextReplica() string { return "r" + strconv.Itoa(d.ReplicaSeq+1) }

// ReplicaNumber returns the number in a replica's ID, such as 2 for r2; 0 when the ID has none.
func ReplicaNumber(id string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(id, "r"))
	return n
}

// ReplicaAllocationID returns the ID of a replica's allocation.
func ReplicaAllocationID(deployment Name, replica string) string {
	return string(deployment) + "#" + replica
}

type DeploymentCreated struct {
	DeploymentSpec
	CreatedBy  string    `json:"createdBy"`
	Cluster    string    `json:"cluster,omitempty"`
	DirectKeys [][]byte  `json:"directKeys,omitempty"`
	Time       time.Time `json:"time"`
}

func (e DeploymentCreated) Evolve(d *Deployment) {
	*d = Deployment{DeploymentSpec: e.DeploymentSpec, CreatedBy: e.CreatedBy, Cluster: e.Cluster, DirectKeys: e.DirectKeys,
		State: DeploymentCreatingState, Status: StatusOf(nil),
		Generation: 1, DesiredReplicas: e.MinReplicaCount, HeldFrom: e.Time, Since: e.Time}
	d.countReplicas(e.Time)
}

type DeploymentBecameReady struct {
	Generation int       `json:"generation"`
	Time       time.Time `json:"time"`
}

func (e DeploymentBecameReady) Evolve(d *Deployment) {
	d.State, d.Status, d.Failures, d.Since = DeploymentReadyState, StatusOf(nil), 0, e.Time
}

type DeploymentFailed struct {
	Status Status    `json:"status"`
	Time   time.Time `json:"time"`
}

func (e DeploymentFailed) Evolve(d *Deployment) {
	d.State, d.Status, d.Replicas, d.DesiredReplicas, d.Since = DeploymentFailedState, e.Status, nil, 0, e.Time
	d.countReplicas(e.Time)
}

type DeploymentUpdated struct {
	DeploymentSpec
	DirectKeys [][]byte  `json:"directKeys,omitempty"`
	Rollout    bool      `json:"rollout"` // the update replaces all replicas
	Time       time.Time `json:"time"`
}

func (e DeploymentUpdated) Evolve(d *Deployment) {
	d.DeploymentSpec, d.DirectKeys = e.DeploymentSpec, e.DirectKeys
	d.DesiredReplicas = clamp(d.DesiredReplicas, e.MinReplicaCount, e.MaxWithRevocable())
	if !e.EnableHotLoad {
		d.Hot = HotLoad{}
	}
	if e.Rollout {
		d.Generation++
		d.Failures = 0
	}
	if d.State != DeploymentCreatingState {
		d.State, d.Since = DeploymentUpdatingState, e.Time
	}
	d.countReplicas(e.Time)
}

type DeploymentScaled struct {
	Replicas int       `json:"replicas"`
	Reason   string    `json:"reason"`
	ByLoad   bool      `json:"byLoad"`
	Time     time.Time `json:"time"`
}

func (e DeploymentScaled) Evolve(d *Deployment) {
	d.DesiredReplicas = e.Replicas
	if !e.ByLoad {
		d.HeldFrom = e.Time
	}
	d.countReplicas(e.Time)
}

type DeploymentDeleting struct {
	Hard   bool      `json:"hard"`
	Reason string    `json:"reason"`
	Time   time.Time `json:"time"`
}

func (e DeploymentDeleting) Evolve(d *Deployment) {
	d.State, d.DesiredReplicas, d.Hard, d.Since = DeploymentDeletingState, 0, e.Hard, e.Time
	d.DeletionTime = nil
	d.countReplicas(e.Time)
}

type DeploymentDeleted struct {
	DeleteTime time.Time `json:"deleteTime"`
	PurgeTime  time.Time `json:"purgeTime"`
}

func (e DeploymentDeleted) Evolve(d *Deployment) {
	d.State, d.Since, d.DeleteTime, d.PurgeTime = DeploymentDeletedState, e.DeleteTime, &e.DeleteTime, &e.PurgeTime
}

type DeploymentUndeleted struct {
	Time time.Time `json:"time"`
	// expireTime from now on; nil removes the previous one, which has passed
	Expires *time.Time `json:"expires,omitempty"`
	// the shape was deleted too: the undeleted deployment keeps its settings, but names no shape
	ShapeGone bool `json:"shapeGone,omitempty"`
}

func (e DeploymentUndeleted) Evolve(d *Deployment) {
	d.State, d.Since, d.HeldFrom, d.DesiredReplicas, d.Failures = DeploymentCreatingState, e.Time, e.Time,
		d.MinReplicaCount, 0
	d.DeleteTime, d.PurgeTime, d.ExpireTime, d.Status = nil, nil, e.Expires, StatusOf(nil)
	if e.ShapeGone {
		d.DeploymentShape = ""
	}
	d.countReplicas(e.Time)
}

type DeploymentPurged struct{}

func (DeploymentPurged) Evolve(d *Deployment) { *d = Deployment{} }

type ReplicaPlaced struct {
	ID         string `json:"id"`
	Node       Name   `json:"node"`
	Generation int    `json:"generation"`
	Replaces   string `json:"replaces,omitempty"` // ID of the old replica that this replica replaces
	Reason     string `json:"reason,omitempty"`   // why the old replica is replaced
}

func (e ReplicaPlaced) Evolve(d *Deployment) {
	d.setReplica(Replica{e.ID, ReplicaDownloading, e.Node, e.Generation, e.Replaces})
	d.ReplicaSeq++
	d.countReplicas(d.Short.Desired)
}

// ReplicaAbandoned records that a replica will not be placed. The replica's number is never used
// again, so a late placement is refused.
type ReplicaAbandoned struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
}

func (e ReplicaAbandoned) Evolve(d *Deployment) {
	d.ReplicaSeq = max(d.ReplicaSeq, ReplicaNumber(e.ID))
}

type ReplicaAdvanced struct {
	ID    string `json:"id"`
	State string `json:"state"`
}

func (e ReplicaAdvanced) Evolve(d *Deployment) {
	r := d.Replicas[e.ID]
	r.State = e.State
	d.setReplica(r)
	if e.State == ReplicaReady {
		d.Failures, d.Status = 0, StatusOf(nil)
	}
}

type ReplicaRemoved struct {
	ID     string    `json:"id"`
	Reason string    `json:"reason"`
	Failed bool      `json:"failed"` // the replica is removed because it could not start or has crashed
	Time   time.Time `json:"time"`
}

func (e ReplicaRemoved) Evolve(d *Deployment) {
	d.Replicas = maps.Clone(d.Replicas)
	delete(d.Replicas, e.ID)
	if e.Failed {
		d.Failures++
		d.FailedTime = e.Time
		d.Status = Status{Unavailable.String(), e.Reason}
	}
	d.countReplicas(e.Time)
}

// countReplicas updates Short, the times of the replica shortage, after an event at the given time.
func (d *Deployment) countReplicas(now time.Time) {
	short := func(since *time.Time, wanted int) {
		switch {
		case !d.Live() || len(d.Replicas) >= wanted:
			*since = time.Time{}
		case since.IsZero():
			*since = now
		}
	}
	short(&d.Short.Minimum, min(d.MinReplicaCount, d.DesiredReplicas))
	short(&d.Short.Desired, d.DesiredReplicas)
}

func (d *Deployment) setReplica(r Replica) {
	d.Replicas = maps.Clone(d.Replicas)
	if d.Replicas == nil {
		d.Replicas = map[string]Replica{}
	}
	d.Replicas[r.ID] = r
}

func clamp(n, low, high int) int { return max(low, min(n, high)) }
