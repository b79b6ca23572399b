package domain

import (
	"slices"
	"time"
)

func (d Deployment) must(allowed ...string) error {
	if !d.Exists() {
		return notFound("deployment")
	}
	for _, state := range allowed {
		if d.State == state {
			return nil
		}
	}
	return precondition("DEPLOYMENT_STATE", "the deployment is %s; the operation requires %s", d.State, join(allowed))
}

func (d Deployment) mustLive() error {
	return d.must(DeploymentCreatingState, DeploymentReadyState, DeploymentUpdatingState)
}

const operatorsAliases = "are model names in every account, so only the operator may change them: leave them " +
	"unchanged, or ask the operator"

// CreateDeployment creates a deployment.
type CreateDeployment struct {
	DeploymentSpec
	CreatedBy   string
	Cluster     string        // name of the installation that creates the deployment
	DirectKeys  [][]byte      // hashes of the API keys of the direct route
	Model       ModelSize     // size of the baseModel; for an addon, of the addon's base model
	ZeroFloor   time.Duration // minimum scaleToZeroWindow that the server allows; 0 stands for MinScaleToZeroWindow
	Operator    bool          // the caller is the operator: required to set aliases
	Accelerator string        // accelerator type if the spec names none (see FleetAccelerator); "" is NoAccelerator
}

// Check validates the spec without creating a deployment, and returns the spec with its defaults.
func (c CreateDeployment) Check(now time.Time) (DeploymentSpec, error) {
	var v Violations
	inFuture(&v, "expireTime", c.ExpireTime, now)
	v.Require(c.Operator || len(c.Aliases) == 0, "aliases", operatorsAliases)
	c.AutoscalingPolicy.checkFloor(&v, c.ZeroFloor)
	v = append(v, c.Validate()...)
	spec := c.resolve(&v, c.Model, c.Accelerator)
	return spec.withDefaults(), v.Err()
}

func (c CreateDeployment) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	if d.Exists() { // the ID of a DELETED deployment also stays reserved, until the deployment is purged
		if d.State == DeploymentDeletedState {
			err := alreadyExists("a deleted deployment")
			err.Message += ", undelete it, free its ID with a delete that has hard"
			return nil, err
		}
		return nil, alreadyExists("a deployment")
	}
	spec, err := c.Check(now)
	if err != nil {
		return nil, err
	}
	return DeploymentCreated{spec, c.CreatedBy, c.Cluster, c.DirectKeys, now}, nil
}

// MarkDeploymentReady records that enough ready replicas run the newest generation of the settings:
// minReplicaCount of them, or all desired replicas if these are fewer.
type MarkDeploymentReady struct{ Generation int }

func (c MarkDeploymentReady) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	switch {
	case !d.Exists():
		return nil, notFound("deployment")
	case d.State == DeploymentReadyState && d.Generation == c.Generation:
		return nil, nil
	case d.Generation != c.Generation:
		return nil, precondition("STALE_GENERATION",
			"generation %d of the deployment's settings was replaced by generation %d",
			c.Generation, d.Generation)
	case d.CurrentReplicas() < min(d.MinReplicaCount, d.DesiredReplicas):
		return nil, precondition("NOT_READY", "only %d of the required %d replicas are ready", d.CurrentReplicas(),
			min(d.MinReplicaCount, d.DesiredReplicas))
	}
	return DeploymentBecameReady{c.Generation, now}, d.must(DeploymentCreatingState, DeploymentUpdatingState)
}

// FailDeployment records that a deployment cannot be placed or loaded. If Lost is set, a resource
// that the deployment uses, such as its model, was deleted; then the deployment fails in any live
// state.
type FailDeployment struct {
	Status Status
	Lost   bool `json:",omitempty"`
}

func (c FailDeployment) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	switch {
	case d.State == DeploymentFailedState:
		return nil, nil
	case c.Lost:
		return DeploymentFailed{c.Status, now}, d.must(DeploymentCreatingState, DeploymentReadyState, DeploymentUpdatingState)
	}
	return DeploymentFailed{c.Status, now}, d.must(DeploymentCreatingState)
}

// UpdateDeployment replaces the deployment's DeploymentSpec.
type UpdateDeployment struct {
	DeploymentSpec
	DirectKeys  [][]byte      // hashes of the API keys of the direct route
	Model       ModelSize     // size of the baseModel, as in CreateDeployment; checked only if hardware settings change
	ZeroFloor   time.Duration // minimum scaleToZeroWindow that the server allows; checked only if the window changes
	Operator    bool          // the caller is the operator: required to change aliases
	Accelerator string        // accelerator type if the spec names none (see FleetAccelerator); "" is NoAccelerator
}

func (c UpdateDeployment) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	if err := d.mustLive(); err != nil {
		return nil, err
	}
	var v Violations
	spec := c.DeploymentSpec.resolveUpdate(&v, d.DeploymentSpec, c.Model, c.Accelerator).withDefaults()
	if sameJSON(spec, d.DeploymentSpec) && sameJSON(c.DirectKeys, d.DirectKeys) {
		return nil, nil
	}
	v.Require(c.BaseModel == d.BaseModel, "baseModel", "cannot change: create another deployment")
	v.Require(c.Operator || slices.Equal(c.Aliases, d.Aliases), "aliases", operatorsAliases)
	v.Require(c.SpeechFormat == d.SpeechFormat, "speechFormat", "cannot change: the baseModel determines it")
	v.Require(c.DisableAutoDeploy == d.DisableAutoDeploy, "disableAutoDeploy", "cannot change: create another deployment")
	v.Require(sameJSON(spec.Placement, d.Placement), "placement", "cannot change: create another deployment")
	if spec.ExpireTime != nil && (d.ExpireTime == nil || !spec.ExpireTime.Equal(*d.ExpireTime)) {
		inFuture(&v, "expireTime", spec.ExpireTime, now)
	}
	if !sameJSON(spec.AutoscalingPolicy, d.AutoscalingPolicy) {
		c.AutoscalingPolicy.checkFloor(&v, c.ZeroFloor)
	}
	if c.AcceleratorType == d.AcceleratorType && c.DeploymentShape == d.DeploymentShape {
		// Skip the check: a shape or FleetAccelerator may have chosen a type that Validate refuses.
		c.AcceleratorType = ""
	}
	v = append(v, c.Validate()...)
	if err := v.Err(); err != nil {
		return nil, err
	}
	return DeploymentUpdated{spec, c.DirectKeys, spec.rollout(d.DeploymentSpec), now}, nil
}

// ScaleDeployment sets the number of desired replicas, within the bounds of the spec.
type ScaleDeployment struct {
	Replicas int
	Reason   string
	ByLoad   *int // for the autoscaler: DesiredReplicas from which it computed the change; nil for a user
}

func (c ScaleDeployment) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	if err := d.mustLive(); err != nil {
		return nil, err
	}
	var v Violations
	highest := "maxReplicaCount"
	if d.MaxWithRevocable() > d.MaxReplicas() {
		highest = "maxWithRevocableReplicaCount"
	}
	v.Require(c.Replicas >= d.MinReplicaCount && c.Replicas <= d.MaxWithRevocable(), "replicaCount",
		"must be from minReplicaCount (%d) to %s (%d): choose another number, or change these bounds first",
		d.MinReplicaCount, highest, d.MaxWithRevocable())
	if err := v.Err(); err != nil {
		return nil, err
	}
	switch {
	case d.DesiredReplicas == c.Replicas:
		return nil, nil
	case c.ByLoad != nil && d.DesiredReplicas != *c.ByLoad:
		return nil, precondition("STALE_PLAN",
			"the autoscaler planned for %d desired replicas, but the deployment was scaled to %d in between", *c.ByLoad,
			d.DesiredReplicas)
	}
	return DeploymentScaled{c.Replicas, c.Reason, c.ByLoad != nil, now}, nil
}

// WakeDeployment scales a deployment from zero to one replica, because a request is waiting.
type WakeDeployment struct{}

func (WakeDeployment) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	switch err := d.mustLive(); {
	case err != nil:
		return nil, err
	case d.DesiredReplicas > 0:
		return nil, nil
	case d.MaxWithRevocable() == 0:
		return nil, precondition("SCALED_TO_ZERO", "the maxReplicaCount of the deployment is 0: raise it to serve requests")
	}
	return DeploymentScaled{1, "a request is waiting for a replica", false, now}, nil
}

// DeleteDeployment deletes a deployment. LastServed is the time of the last request that it served, or
// that named it and was served by the candidate of its release; zero if there was none. Without
// IgnoreChecks, a deployment with an active release is not deleted: clients name it, even if its
// candidate has served all requests for long.
type DeleteDeployment struct {
	Hard         bool
	IgnoreChecks bool
	LastServed   time.Time
	Reason       string
}

// Unchecked reports whether the deployment is deleted without a deletion request (see Deletion).
func (c DeleteDeployment) Unchecked() bool { return c.IgnoreChecks }

// RecentUse is how long after its last request a deployment is protected from deletion.
const RecentUse = time.Hour

func (c DeleteDeployment) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	switch {
	case !d.Exists():
		return nil, notFound("deployment")
	case d.State == DeploymentDeletedState && c.Hard: // a hard delete purges the deployment immediately
		return DeploymentPurged{}, nil
	case d.State == DeploymentDeletedState, d.State == DeploymentDeletingState && (d.Hard || !c.Hard):
		return nil, nil
	case !c.IgnoreChecks && d.Release.Active():
		return nil, precondition("RELEASE_ACTIVE", "release %d of the deployment to %s is %s, and requests that name the "+
			"deployment would fail: change the model name in these requests and roll the release back, or set ignoreChecks "+
			"to delete the deployment anyway", d.Release.Number, d.Release.Candidate, d.Release.State)
	case !c.IgnoreChecks && !c.LastServed.IsZero() && now.Sub(c.LastServed) < RecentUse:
		return nil, precondition("RECENTLY_USED",
			"the deployment served a request within the last hour: set ignoreChecks to delete it anyway")
	case !c.IgnoreChecks && d.mayDelete(now) != nil:
		return nil, d.mayDelete(now)
	}
	return DeploymentDeleting{c.Hard, c.Reason, now}, nil
}

// FinishDeletion records that a deployment that is DELETING has no replicas any more. Keep is how
// long it can be undeleted after that.
type FinishDeletion struct{ Keep time.Duration }

func (c FinishDeletion) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	switch {
	case d.State == DeploymentDeletedState || !d.Exists():
		return nil, nil
	case len(d.Replicas) > 0:
		return nil, precondition("REPLICAS_LEFT", "%d replicas are still running, so the deletion cannot finish",
			len(d.Replicas))
	case d.Hard: // a hard delete purges the deployment immediately and frees its ID
		return DeploymentPurged{}, d.must(DeploymentDeletingState)
	}
	return DeploymentDeleted{now, now.Add(c.Keep)}, d.must(DeploymentDeletingState)
}

// UndeleteDeployment restores a deleted deployment. ShapeGone reports that the deployment's shape
// version does not exist any more.
type UndeleteDeployment struct {
	ShapeGone bool `json:",omitempty"`
}

func (c UndeleteDeployment) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	if d.PurgeDue(now) {
		return nil, precondition("PURGE_DUE", "the deployment could be undeleted until %s: create another deployment",
			d.PurgeTime.Format(time.RFC3339))
	}
	undeleted := DeploymentUndeleted{Time: now, ShapeGone: c.ShapeGone}
	if d.ExpireTime != nil && d.ExpireTime.After(now) {
		undeleted.Expires = d.ExpireTime
	}
	return undeleted, d.must(DeploymentDeletedState)
}

// PurgeDeployment removes a deleted deployment once its purgeTime has passed.
type PurgeDeployment struct{}

func (PurgeDeployment) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	if d.State == DeploymentDeletedState && !d.PurgeDue(now) {
		return nil, precondition("NOT_DUE", "the deployment can be undeleted until %s, so it cannot be purged yet",
			d.PurgeTime.Format(time.RFC3339))
	}
	return DeploymentPurged{}, d.must(DeploymentDeletedState)
}

// PlaceReplica places the next replica on a node on which an allocation is reserved for the
// replica. The event commits the reservation.
type PlaceReplica struct {
	ID         string // ID of the placed replica: the deployment's NextReplica
	Node       Name
	Generation int
	Replaces   string `json:",omitempty"` // ID of the replica that is moved to the node; "" moves none
	Reason     string `json:",omitempty"` // why the replica is moved; "" if none is moved
}

func (c PlaceReplica) Decide(d Deployment, _ time.Time) (Event[Deployment], error) {
	if r, placed := d.Replicas[c.ID]; placed && r.Node == c.Node {
		return nil, nil
	}
	switch err := d.mustLive(); {
	case err != nil:
		return nil, err
	case c.ID != d.NextReplica() || c.Generation != d.Generation:
		return nil, precondition("STALE_PLAN",
			"replica %s of generation %d was planned, but the next replica is %s of generation %d", c.ID, c.Generation,
			d.NextReplica(), d.Generation)
	case c.Replaces != "" && !d.movable(c.Replaces):
		return nil, precondition("STALE_PLAN", "replica %s cannot be moved: it was removed or is being moved", c.Replaces)
	}
	return ReplicaPlaced(c), nil
}

// movable reports whether a replica exists and no other replica is replacing it.
func (d Deployment) movable(id string) bool {
	for _, r := range d.Replicas {
		if r.Replaces == id {
			return false
		}
	}
	_, exists := d.Replicas[id]
	return exists
}

// AbandonReplica records that a replica will not be placed, although a node has an allocation for
// it. The deployment refuses its placement from then on, so the allocation can be released.
type AbandonReplica struct {
	ID     string
	Reason string
}

func (c AbandonReplica) Decide(d Deployment, _ time.Time) (Event[Deployment], error) {
	_, placed := d.Replicas[c.ID]
	switch {
	case !d.Exists():
		return nil, notFound("deployment")
	case placed:
		return nil, precondition("REPLICA_PLACED", "replica %s is placed on a node and cannot be abandoned", c.ID)
	case ReplicaNumber(c.ID) <= d.ReplicaSeq:
		return nil, nil
	}
	return ReplicaAbandoned(c), nil
}

// AdvanceReplica records a later state of a replica, as the replica's node reports it. An earlier
// state is ignored.
type AdvanceReplica struct {
	ID    string
	State string
	Node  Name
}

func (c AdvanceReplica) Decide(d Deployment, _ time.Time) (Event[Deployment], error) {
	r, ok := d.Replicas[c.ID]
	switch {
	case !d.Exists():
		return nil, notFound("deployment")
	case !ok || r.Node != c.Node:
		return nil, precondition("STALE_REPLICA", "replica %s is not placed on node %s", c.ID, c.Node.ID())
	case replicaRank(c.State) <= replicaRank(r.State):
		return nil, nil
	}
	return ReplicaAdvanced{c.ID, c.State}, nil
}

func replicaRank(state string) int {
	switch state {
	case ReplicaInitializing:
		return 1
	case ReplicaReady:
		return 2
	}
	return 0
}

// RemoveReplica takes a replica out of service. Failed marks a replica that crashed or could not
// start.
type RemoveReplica struct {
	ID     string
	Reason string
	Failed bool
	// the replica stays if fewer replicas than this bound would be left; "" always removes it
	Above ReplicaBound `json:",omitempty"`
}

// A ReplicaBound selects how many replicas a deployment keeps when its replicas are preempted for
// other work: AboveMinimum or AboveMaximum.
type ReplicaBound string

// With AboveMinimum, a deployment keeps its minimum number of replicas (see ReplicaShortage). With
// AboveMaximum, it keeps maxReplicaCount replicas.
const (
	AboveMinimum ReplicaBound = "minReplicaCount"
	AboveMaximum ReplicaBound = "maxReplicaCount"
)

func (b ReplicaBound) of(d Deployment) int {
	switch b {
	case AboveMinimum:
		return min(d.MinReplicaCount, d.DesiredReplicas)
	case AboveMaximum:
		return d.MaxReplicas()
	}
	return 0
}

func (c RemoveReplica) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	if _, ok := d.Replicas[c.ID]; !ok {
		return nil, nil
	}
	if keep := c.Above.of(d); len(d.Replicas) <= keep {
		return nil, precondition("STALE_PLAN", "the deployment has %d replicas and must keep its %s (%d)",
			len(d.Replicas), c.Above, keep)
	}
	return ReplicaRemoved{c.ID, c.Reason, c.Failed, now}, nil
}
