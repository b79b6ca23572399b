package domain

import (
	"slices"
	"time"
)

func (d Deployment) must(allowed ...string) error {
	if !d.Exists() {
		return gone("deployment")
	}
	for _, state := range allowed {
		if d.State == state {
			return nil
		}
	}
	return precondition("DEPLOYMENT_STATE", "the deployment is %s; this needs %s", d.State, join(allowed))
}

func (d Deployment) mustLive() error {
	return d.must(DeploymentCreatingState, DeploymentReadyState, DeploymentUpdatingState)
}

const operatorsAliases = "are names for every account, so only the operator may change them: leave them as they are, or ask the operator"

// CreateDeployment makes a deployment.
type CreateDeployment struct {
	DeploymentSpec
	CreatedBy   string
	Cluster     string        // name of the installation
	DirectKeys  [][]byte      // hashes of the keys of its direct route
	Model       ModelSize     // the baseModel's; of an addon, its base model's
	ZeroFloor   time.Duration // shortest scaleToZeroWindow; 0 is MinScaleToZeroWindow
	Operator    bool          // asks: only then may it have aliases
	Accelerator string        // that is taken where some are counted and none is named, see FleetAccelerator
}

// Check names what is wrong with the spec without creating anything, and fills
// in its defaults.
func (c CreateDeployment) Check(now time.Time) (DeploymentSpec, error) {
	var v Violations
	c.DeploymentSpec = c.settled(c.Accelerator)
	inFuture(&v, "expireTime", c.ExpireTime, now)
	v.Require(c.Operator || len(c.Aliases) == 0, "aliases", operatorsAliases)
	c.AutoscalingPolicy.checkFloor(&v, c.ZeroFloor)
	v = append(v, c.Wrong()...)
	c.checkSize(&v, c.Model)
	return c.filled(c.Model), v.Err()
}

func (c CreateDeployment) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	if d.Exists() {
		return nil, exists("a deployment")
	}
	spec, err := c.Check(now)
	if err != nil {
		return nil, err
	}
	return DeploymentCreated{spec, c.CreatedBy, c.Cluster, c.DirectKeys, now}, nil
}

// SettleDeployment records that the wanted replicas run the newest settings.
type SettleDeployment struct{ Generation int }

func (c SettleDeployment) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	switch {
	case !d.Exists():
		return nil, gone("deployment")
	case d.State == DeploymentReadyState && d.Generation == c.Generation:
		return nil, nil
	case d.Generation != c.Generation:
		return nil, precondition("STALE_GENERATION", "the deployment has other settings by now")
	case d.Current() < min(d.MinReplicaCount, d.DesiredReplicas):
		return nil, precondition("NOT_READY", "%d of %d replicas are ready", d.Current(), d.MinReplicaCount)
	}
	return DeploymentSettled{c.Generation, now}, d.must(DeploymentCreatingState, DeploymentUpdatingState)
}

// FailDeployment records that a deployment cannot be placed or loaded, or that
// what it uses was deleted: Lost may come at any time of its life.
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

// UpdateDeployment replaces what the caller sets.
type UpdateDeployment struct {
	DeploymentSpec
	DirectKeys  [][]byte      // see CreateDeployment
	Model       ModelSize     // see CreateDeployment; what stays is not held to it
	ZeroFloor   time.Duration // see CreateDeployment; a window that stays is not held to it
	Operator    bool          // asks: only then may its aliases change
	Accelerator string        // see CreateDeployment
}

func (c UpdateDeployment) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	if err := d.mustLive(); err != nil {
		return nil, err
	}
	c.DeploymentSpec = c.settled(c.Accelerator)
	spec := c.filled(c.Model)
	if sameJSON(spec, d.DeploymentSpec) && sameJSON(c.DirectKeys, d.DirectKeys) {
		return nil, nil
	}
	var v Violations
	v.Require(c.BaseModel == d.BaseModel, "baseModel", "cannot change: create another deployment")
	v.Require(c.Operator || slices.Equal(c.Aliases, d.Aliases), "aliases", operatorsAliases)
	v.Require(c.SpeechFormat == d.SpeechFormat, "speechFormat", "cannot change: it is the baseModel's")
	v.Require(c.DisableAutoDeploy == d.DisableAutoDeploy, "disableAutoDeploy", "cannot change after creation")
	v.Require(sameJSON(spec.Placement, d.Placement), "placement", "cannot change after creation")
	if spec.ExpireTime != nil && (d.ExpireTime == nil || !spec.ExpireTime.Equal(*d.ExpireTime)) {
		inFuture(&v, "expireTime", spec.ExpireTime, now)
	}
	if !sameJSON(spec.AutoscalingPolicy, d.AutoscalingPolicy) {
		c.AutoscalingPolicy.checkFloor(&v, c.ZeroFloor)
	}
	if c.hardware() != d.hardware() {
		c.checkSize(&v, c.Model)
	}
	if f, ok := c.DeploymentSpec.check().(*Error); ok {
		v = append(v, f.Violations...)
	}
	if err := v.Err(); err != nil {
		return nil, err
	}
	return DeploymentUpdated{spec, c.DirectKeys, spec.rollout(d.DeploymentSpec), now}, nil
}

// ScaleDeployment sets how many replicas are wanted, within its bounds.
type ScaleDeployment struct {
	Replicas int
	Reason   string
	ByLoad   *int // set when the load asks for it: the count that this was decided on
}

func (c ScaleDeployment) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	if err := d.mustLive(); err != nil {
		return nil, err
	}
	var v Violations
	v.Require(c.Replicas >= d.MinReplicaCount && c.Replicas <= *d.MaxReplicaCount, "replicaCount",
		"must be from minReplicaCount (%d) to maxReplicaCount (%d): choose another number, or change those first", d.MinReplicaCount, *d.MaxReplicaCount)
	if err := v.Err(); err != nil {
		return nil, err
	}
	switch {
	case d.DesiredReplicas == c.Replicas:
		return nil, nil
	case c.ByLoad != nil && d.DesiredReplicas != *c.ByLoad:
		return nil, precondition("STALE_PLAN", "somebody else has scaled the deployment since this was planned")
	}
	return DeploymentScaled{c.Replicas, c.Reason, c.ByLoad != nil, now}, nil
}

// WakeDeployment wants at least one replica, because a request waits for it.
type WakeDeployment struct{}

func (WakeDeployment) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	switch err := d.mustLive(); {
	case err != nil:
		return nil, err
	case d.DesiredReplicas > 0:
		return nil, nil
	case *d.MaxReplicaCount == 0:
		return nil, precondition("SCALED_TO_ZERO", "the deployment's maxReplicaCount is 0: raise it to let it answer")
	}
	return DeploymentScaled{1, "a request waits", false, now}, nil
}

// DeleteDeployment ends the deployment. LastServed is when it last answered a
// request, zero if never.
type DeleteDeployment struct {
	Hard         bool
	IgnoreChecks bool
	LastServed   time.Time
	Reason       string
}

// Unchecked tells that the delete need not be reserved.
func (c DeleteDeployment) Unchecked() bool { return c.IgnoreChecks }

// RecentUse is how long after its last request a deployment is protected.
const RecentUse = time.Hour

func (c DeleteDeployment) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	switch {
	case !d.Exists():
		return nil, gone("deployment")
	case d.State == DeploymentDeletedState && c.Hard:
		return DeploymentPurged{}, nil
	case d.State == DeploymentDeletedState, d.State == DeploymentDeletingState && (d.Hard || !c.Hard):
		return nil, nil
	case !c.IgnoreChecks && !c.LastServed.IsZero() && now.Sub(c.LastServed) < RecentUse:
		return nil, precondition("RECENTLY_USED", "the deployment answered a request within the last hour: set ignoreChecks to delete it all the same")
	case !c.IgnoreChecks && d.mayDelete(now) != nil:
		return nil, d.mayDelete(now)
	}
	return DeploymentDeleting{c.Hard, c.Reason, now}, nil
}

// FinishDeletion records that no replica is left. Keep is how long the
// deployment can be undeleted.
type FinishDeletion struct{ Keep time.Duration }

func (c FinishDeletion) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	switch {
	case d.State == DeploymentDeletedState || !d.Exists():
		return nil, nil
	case len(d.Replicas) > 0:
		return nil, precondition("REPLICAS_LEFT", "%d replicas are still running", len(d.Replicas))
	case d.Hard:
		return DeploymentPurged{}, d.must(DeploymentDeletingState)
	}
	return DeploymentDeleted{now, now.Add(c.Keep)}, d.must(DeploymentDeletingState)
}

// UndeleteDeployment brings a deleted deployment back.
type UndeleteDeployment struct{}

func (UndeleteDeployment) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	if d.Due(now) {
		return nil, precondition("PURGE_DUE", "the deployment could be undeleted until %s: create another one", d.PurgeTime.Format(time.RFC3339))
	}
	undeleted := DeploymentUndeleted{Time: now}
	if d.ExpireTime != nil && d.ExpireTime.After(now) {
		undeleted.Expires = d.ExpireTime
	}
	return undeleted, d.must(DeploymentDeletedState)
}

// PurgeDeployment forgets a deleted deployment once its purgeTime has come.
type PurgeDeployment struct{}

func (PurgeDeployment) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	if d.State == DeploymentDeletedState && !d.Due(now) {
		return nil, precondition("NOT_DUE", "the deployment can be undeleted until %s", d.PurgeTime.Format(time.RFC3339))
	}
	return DeploymentPurged{}, d.must(DeploymentDeletedState)
}

// PlaceReplica gives the next replica to a node on which it is allocated
// already: it commits what the allocation reserved.
type PlaceReplica struct {
	ID         string // NextReplica of the deployment
	Node       Name
	Generation int
}

func (c PlaceReplica) Decide(d Deployment, _ time.Time) (Event[Deployment], error) {
	if r, placed := d.Replicas[c.ID]; placed && r.Node == c.Node {
		return nil, nil
	}
	switch err := d.mustLive(); {
	case err != nil:
		return nil, err
	case c.ID != d.NextReplica() || c.Generation != d.Generation:
		return nil, precondition("STALE_PLAN", "the deployment has changed since this was planned")
	}
	return ReplicaPlaced(c), nil
}

// AbandonReplica gives up a replica that has an allocation and was not placed.
// From then on it cannot be placed, so its allocation may be released.
type AbandonReplica struct {
	ID     string
	Reason string
}

func (c AbandonReplica) Decide(d Deployment, _ time.Time) (Event[Deployment], error) {
	_, placed := d.Replicas[c.ID]
	switch {
	case !d.Exists():
		return nil, gone("deployment")
	case placed:
		return nil, precondition("REPLICA_PLACED", "replica %s is in service", c.ID)
	case ReplicaNumber(c.ID) <= d.ReplicaSeq:
		return nil, nil
	}
	return ReplicaAbandoned(c), nil
}

// AdvanceReplica records how far a replica is, as its node reports it.
type AdvanceReplica struct {
	ID    string
	State string
	Node  Name
}

func (c AdvanceReplica) Decide(d Deployment, _ time.Time) (Event[Deployment], error) {
	r, ok := d.Replicas[c.ID]
	switch {
	case !d.Exists():
		return nil, gone("deployment")
	case !ok || r.Node != c.Node:
		return nil, precondition("STALE_REPLICA", "replica %s is no longer on that node", c.ID)
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

// RemoveReplica takes a replica out of service. Failed marks one that broke.
type RemoveReplica struct {
	ID     string
	Reason string
	Failed bool
}

func (c RemoveReplica) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	if _, ok := d.Replicas[c.ID]; !ok {
		return nil, nil
	}
	return ReplicaRemoved{c.ID, c.Reason, c.Failed, now}, nil
}
