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
//	CREATING --SettleDeployment--> READY, when minReplicaCount replicas are
//	CREATING --FailDeployment-->   FAILED, when it cannot be placed or loaded
//	live     --FailDeployment-->   FAILED, when what it uses was deleted as its use began
//	READY    --UpdateDeployment--> UPDATING --SettleDeployment--> READY
//	READY    --ScaleDeployment-->  READY, another number of replicas wanted
//	live     --DeleteDeployment--> DELETING --FinishDeletion--> DELETED | (none) when hard
//	DELETED  --UndeleteDeployment--> CREATING
//	DELETED  --PurgeDeployment-->  (none)
//
// Its replicas:
//
//	pendingScheduling --PlaceReplica--> downloadingModel --AdvanceReplica--> initializing --> ready
//	any               --RemoveReplica--> (none)
//
// What it answers with, where weights are loaded hot: see HotLoad.
//
//	its model's own, or served --OfferWeights--> the same, others being loaded --SwapWeights--> those
//	others being loaded        --RefuseWeights--> the same as before, with the reason
//	served                     --WithdrawWeights--> its model's own
var Deployments = usable(NewKind("deployments", map[string]Event[Deployment]{
	"deployment.created.v1":   DeploymentCreated{},
	"deployment.ready.v1":     DeploymentSettled{},
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

// Replica states; pendingScheduling is a wanted replica that has no place yet.
const (
	ReplicaDownloading  = "downloadingModel"
	ReplicaInitializing = "initializing"
	ReplicaReady        = "ready"
)

// MaxReplicaFailures is how many replicas in a row may fail to start before
// a deployment that never was READY fails.
const MaxReplicaFailures = 3

// A Replica is one running copy of the model.
type Replica struct {
	ID         string `json:"id"`
	State      string `json:"state"`
	Node       Name   `json:"node"`
	Generation int    `json:"generation"` // of the settings that it runs
}

// Deployment is the state of one deployment.
type Deployment struct {
	DeploymentSpec
	Deletion
	State           string             `json:"state"`
	Status          Status             `json:"status"`
	CreatedBy       string             `json:"createdBy"`
	Cluster         string             `json:"cluster,omitempty"`    // the installation that it was made in
	DirectKeys      [][]byte           `json:"directKeys,omitempty"` // hashes of the keys of its direct route
	Generation      int                `json:"generation"`           // of the settings, from 1; replicas of an older one are replaced
	DesiredReplicas int                `json:"desiredReplicas"`
	HeldFrom        time.Time          `json:"heldFrom"` // when its user, or its waking, last set that; what load says counts from then
	Replicas        map[string]Replica `json:"replicas,omitempty"`
	ReplicaSeq      int                `json:"replicaSeq"` // number of the newest replica
	Failures        int                `json:"failures"`   // replicas in a row that failed to start
	FailedTime      time.Time          `json:"failedTime"` // when the last of them did
	Hard            bool               `json:"hard,omitempty"`
	Since           time.Time          `json:"since"` // when its state last changed
	DeleteTime      *time.Time         `json:"deleteTime,omitempty"`
	PurgeTime       *time.Time         `json:"purgeTime,omitempty"`
	Hot             HotLoad            `json:"hot,omitzero"`
}

// Exists implements State.
func (d Deployment) Exists() bool { return d.State != "" }

// Stage implements Staged.
func (d Deployment) Stage() string { return d.State }

// Live reports whether the deployment should have replicas.
func (d Deployment) Live() bool {
	return d.State == DeploymentCreatingState || d.State == DeploymentReadyState || d.State == DeploymentUpdatingState
}

// Due reports whether the deployment is deleted and its purgeTime has come.
func (d Deployment) Due(now time.Time) bool {
	return d.State == DeploymentDeletedState && !now.Before(*d.PurgeTime)
}

// Reachable reports whether the deployment may have a direct route: one that was
// asked for over the Internet, until it is deleted.
func (d Deployment) Reachable() bool {
	return d.DirectRouteType == DirectInternet && d.Exists() && d.State != DeploymentDeletingState && d.State != DeploymentDeletedState
}

// Ordered yields the replicas in the order of their numbers.
func (d Deployment) Ordered() []Replica {
	return slices.SortedFunc(maps.Values(d.Replicas), func(a, b Replica) int {
		return cmp.Or(cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID))
	})
}

// ReadyReplicas counts the replicas that answer, of any generation.
func (d Deployment) ReadyReplicas() int {
	n := 0
	for _, r := range d.Replicas {
		if r.State == ReplicaReady {
			n++
		}
	}
	return n
}

// Current counts the ready replicas that run the newest settings.
func (d Deployment) Current() int {
	n := 0
	for _, r := range d.Replicas {
		if r.State == ReplicaReady && r.Generation == d.Generation {
			n++
		}
	}
	return n
}

// NextReplica is the ID of the replica that will be placed next.
func (d Deployment) NextReplica() string { return "r" + strconv.Itoa(d.ReplicaSeq+1) }

// ReplicaNumber is the number in a replica's ID; 0 when it has none.
func ReplicaNumber(id string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(id, "r"))
	return n
}

// ReplicaAllocationID names the allocation of one replica.
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
	*d = Deployment{DeploymentSpec: e.DeploymentSpec, CreatedBy: e.CreatedBy, Cluster: e.Cluster, DirectKeys: e.DirectKeys, State: DeploymentCreatingState, Status: StatusOf(nil),
		Generation: 1, DesiredReplicas: e.MinReplicaCount, HeldFrom: e.Time, Since: e.Time}
}

type DeploymentSettled struct {
	Generation int       `json:"generation"`
	Time       time.Time `json:"time"`
}

func (e DeploymentSettled) Evolve(d *Deployment) {
	d.State, d.Status, d.Failures, d.Since = DeploymentReadyState, StatusOf(nil), 0, e.Time
}

type DeploymentFailed struct {
	Status Status    `json:"status"`
	Time   time.Time `json:"time"`
}

func (e DeploymentFailed) Evolve(d *Deployment) {
	d.State, d.Status, d.Replicas, d.DesiredReplicas, d.Since = DeploymentFailedState, e.Status, nil, 0, e.Time
}

type DeploymentUpdated struct {
	DeploymentSpec
	DirectKeys [][]byte  `json:"directKeys,omitempty"`
	Rollout    bool      `json:"rollout"` // replicas must be replaced
	Time       time.Time `json:"time"`
}

func (e DeploymentUpdated) Evolve(d *Deployment) {
	d.DeploymentSpec, d.DirectKeys = e.DeploymentSpec, e.DirectKeys
	d.DesiredReplicas = clamp(d.DesiredReplicas, e.MinReplicaCount, *e.MaxReplicaCount)
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
}

type DeploymentDeleting struct {
	Hard   bool      `json:"hard"`
	Reason string    `json:"reason"`
	Time   time.Time `json:"time"`
}

func (e DeploymentDeleting) Evolve(d *Deployment) {
	d.State, d.DesiredReplicas, d.Hard, d.Since = DeploymentDeletingState, 0, e.Hard, e.Time
	d.DeletionTime = nil
}

type DeploymentDeleted struct {
	DeleteTime time.Time `json:"deleteTime"`
	PurgeTime  time.Time `json:"purgeTime"`
}

func (e DeploymentDeleted) Evolve(d *Deployment) {
	d.State, d.Since, d.DeleteTime, d.PurgeTime = DeploymentDeletedState, e.DeleteTime, &e.DeleteTime, &e.PurgeTime
}

type DeploymentUndeleted struct {
	Time    time.Time  `json:"time"`
	Expires *time.Time `json:"expires,omitempty"` // when it is still to expire
}

func (e DeploymentUndeleted) Evolve(d *Deployment) {
	d.State, d.Since, d.HeldFrom, d.DesiredReplicas, d.Failures = DeploymentCreatingState, e.Time, e.Time, d.MinReplicaCount, 0
	d.DeleteTime, d.PurgeTime, d.ExpireTime, d.Status = nil, nil, e.Expires, StatusOf(nil)
}

type DeploymentPurged struct{}

func (DeploymentPurged) Evolve(d *Deployment) { *d = Deployment{} }

type ReplicaPlaced struct {
	ID         string `json:"id"`
	Node       Name   `json:"node"`
	Generation int    `json:"generation"`
}

func (e ReplicaPlaced) Evolve(d *Deployment) {
	d.setReplica(Replica{e.ID, ReplicaDownloading, e.Node, e.Generation})
	d.ReplicaSeq++
}

// ReplicaAbandoned fences a replica that was not placed: its number is used up.
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
	Failed bool      `json:"failed"` // it could not start, or broke down
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
}

func (d *Deployment) setReplica(r Replica) {
	d.Replicas = maps.Clone(d.Replicas)
	if d.Replicas == nil {
		d.Replicas = map[string]Replica{}
	}
	d.Replicas[r.ID] = r
}

func clamp(n, low, high int) int { return max(low, min(n, high)) }
