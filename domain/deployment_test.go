package domain_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func TestDeployment(t *testing.T) {
	type D = decision[domain.Deployment]
	f := events[domain.Deployment]
	spec := domain.DeploymentSpec{BaseModel: "accounts/a/models/m", MinReplicaCount: 1, MaxReplicaCount: ptr(3),
		Placement: &domain.Placement{MultiRegion: "GLOBAL"}}
	created := domain.DeploymentCreated{DeploymentSpec: spec, CreatedBy: "ann", Time: noon}
	node := domain.Name("accounts/system/nodes/n1")
	placed := domain.ReplicaPlaced{ID: "r1", Node: node, Generation: 1}
	readied := domain.ReplicaAdvanced{ID: "r1", State: domain.ReplicaReady}
	making := f(created)
	loaded := f(created, placed, readied)
	ready := also(loaded, domain.DeploymentBecameReady{Generation: 1, Time: noon})
	zero := spec
	zero.MinReplicaCount, zero.MaxReplicaCount = 0, ptr(0)
	asleep := f(domain.DeploymentCreated{DeploymentSpec: zero, Time: noon},
		domain.DeploymentBecameReady{Generation: 1, Time: noon})
	failed := f(created, domain.DeploymentFailed{Status: domain.Status{Code: "RESOURCE_EXHAUSTED", Message: "no place"},
		Time: noon})
	deleting := also(ready, domain.DeploymentDeleting{Time: noon})
	removed := domain.ReplicaRemoved{ID: "r1", Reason: "deleted", Time: noon}
	deleted := also(deleting, removed, domain.DeploymentDeleted{DeleteTime: noon, PurgeTime: *later(time.Hour)})
	expiring := spec
	expiring.ExpireTime = later(2 * time.Hour)
	expires := f(domain.DeploymentCreated{DeploymentSpec: expiring, Time: noon}, placed, readied,
		domain.DeploymentBecameReady{Generation: 1, Time: noon},
		domain.DeploymentDeleting{Time: noon}, removed,
		domain.DeploymentDeleted{DeleteTime: noon, PurgeTime: *later(time.Hour)})
	due := also(deleting, removed, domain.DeploymentDeleted{DeleteTime: *later(-time.Hour), PurgeTime: noon})
	hard := also(ready, domain.DeploymentDeleting{Hard: true, Time: noon}, removed)

	renamed := spec
	renamed.DisplayName = "chat"
	precise := spec
	precise.Precision = "FP8"
	elsewhere := spec
	elsewhere.BaseModel, elsewhere.Placement = "accounts/a/models/other", &domain.Placement{Region: "EU_PARIS_1"}
	wrong := domain.DeploymentSpec{MinReplicaCount: 2, MaxReplicaCount: ptr(1), AcceleratorCount: 1, ExpireTime: later(0),
		AutoscalingPolicy: &domain.AutoscalingPolicy{ScaleUpWindow: "soon", ScaleDownWindow: "2h",
			LoadTargets: map[string]float64{"speed": 1, "default": 2}}}

	decide(t, domain.Deployments, []D{
		{name: "create with defaults",
			when: domain.CreateDeployment{DeploymentSpec: domain.DeploymentSpec{BaseModel: spec.BaseModel, MinReplicaCount: 1,
				MaxReplicaCount: ptr(3)}, CreatedBy: "ann"}, then: created},
		{name: "create twice", given: making, when: domain.CreateDeployment{DeploymentSpec: spec}, fault: "ALREADY_EXISTS"},
		{name: "create with several violations, in a fixed order", when: domain.CreateDeployment{DeploymentSpec: wrong},
			fault: "INVALID_FIELDS",
			says: "expireTime: must be in the future; baseModel: is required; maxReplicaCount: must be at least " +
				"minReplicaCount (2), is 1; " +
				"autoscalingPolicy.scaleUpWindow: must be a duration from 0s to 3600s, such as \"30s\"; " +
				"autoscalingPolicy.scaleDownWindow: must be a duration from 0s to 3600s, such as \"30s\"; " +
				"autoscalingPolicy.loadTargets: the target of \"default\" must be above 0 and at most 1, " +
				"not 2; " +
				"autoscalingPolicy.loadTargets: has the key \"speed\", but keys must be among default,"},
		{name: "place", given: making, when: domain.PlaceReplica(placed), then: placed},
		{name: "place twice", given: f(created, placed), when: domain.PlaceReplica(placed)},
		{name: "place a replica that is not the next one", given: f(created, placed),
			when: domain.PlaceReplica{ID: "r1", Node: "accounts/system/nodes/n2", Generation: 1}, fault: "STALE_PLAN"},
		{name: "place an old generation",
			given: also(ready, domain.DeploymentUpdated{DeploymentSpec: precise, Rollout: true, Time: noon}),
			when:  domain.PlaceReplica{ID: "r2", Node: node, Generation: 1}, fault: "STALE_PLAN"},
		{name: "place while deleting", given: deleting,
			when: domain.PlaceReplica{ID: "r2", Node: node, Generation: 1}, fault: "DEPLOYMENT_STATE"},
		{name: "advance", given: f(created, placed),
			when: domain.AdvanceReplica{ID: "r1", State: domain.ReplicaInitializing, Node: node},
			then: domain.ReplicaAdvanced{ID: "r1", State: domain.ReplicaInitializing}},
		{name: "advance twice", given: loaded, when: domain.AdvanceReplica{ID: "r1", State: domain.ReplicaReady, Node: node}},
		{name: "advance to an earlier state", given: loaded,
			when: domain.AdvanceReplica{ID: "r1", State: domain.ReplicaInitializing, Node: node}},
		{name: "advance from another node", given: loaded,
			when: domain.AdvanceReplica{ID: "r1", State: domain.ReplicaReady, Node: "n2"}, fault: "STALE_REPLICA"},
		{name: "advance a removed replica", given: f(created, placed, removed),
			when: domain.AdvanceReplica{ID: "r1", State: domain.ReplicaReady, Node: node}, fault: "STALE_REPLICA"},
		{name: "mark ready", given: loaded, when: domain.MarkDeploymentReady{Generation: 1},
			then: domain.DeploymentBecameReady{Generation: 1, Time: noon}},
		{name: "mark ready twice", given: ready, when: domain.MarkDeploymentReady{Generation: 1}},
		{name: "mark ready too early", given: making, when: domain.MarkDeploymentReady{Generation: 1}, fault: "NOT_READY",
			says: "only 0 of the required 1 replicas are ready"},
		{name: "mark another generation ready", given: loaded, when: domain.MarkDeploymentReady{Generation: 2},
			fault: "STALE_GENERATION"},
		{name: "mark a missing deployment ready", when: domain.MarkDeploymentReady{Generation: 1}, fault: "NOT_FOUND"},
		{name: "fail", given: making, when: domain.FailDeployment{Status: domain.Status{Message: "no place"}},
			then: domain.DeploymentFailed{Status: domain.Status{Message: "no place"}, Time: noon}},
		{name: "fail twice", given: failed, when: domain.FailDeployment{}},
		{name: "fail a READY deployment", given: ready, when: domain.FailDeployment{}, fault: "DEPLOYMENT_STATE"},
		{name: "update in place", given: ready, when: domain.UpdateDeployment{DeploymentSpec: renamed},
			then: domain.DeploymentUpdated{DeploymentSpec: renamed, Time: noon}},
		{name: "update with a rollout", given: ready, when: domain.UpdateDeployment{DeploymentSpec: precise},
			then: domain.DeploymentUpdated{DeploymentSpec: precise, Rollout: true, Time: noon}},
		{name: "update to the same", given: ready, when: domain.UpdateDeployment{DeploymentSpec: spec}},
		{name: "update immutable fields", given: ready, when: domain.UpdateDeployment{DeploymentSpec: elsewhere},
			fault: "INVALID_FIELDS", says: "baseModel: cannot change: create another deployment; placement: cannot change: " +
				"create another deployment"},
		{name: "update a FAILED deployment", given: failed, when: domain.UpdateDeployment{DeploymentSpec: renamed},
			fault: "DEPLOYMENT_STATE"},
		{name: "scale", given: ready, when: domain.ScaleDeployment{Replicas: 3, Reason: "busy"},
			then: domain.DeploymentScaled{Replicas: 3, Reason: "busy", Time: noon}},
		{name: "scale to the same", given: ready, when: domain.ScaleDeployment{Replicas: 1}},
		{name: "scale above the maximum", given: ready, when: domain.ScaleDeployment{Replicas: 4}, fault: "INVALID_FIELDS",
			says: "replicaCount: must be from minReplicaCount (1) to maxReplicaCount (3)"},
		{name: "wake with a maximum of 0", given: asleep, when: domain.WakeDeployment{}, fault: "SCALED_TO_ZERO"},
		{name: "wake with a replica", given: ready, when: domain.WakeDeployment{}},
		{name: "delete", given: ready, when: domain.DeleteDeployment{IgnoreChecks: true, Reason: "asked"},
			then: domain.DeploymentDeleting{Reason: "asked", Time: noon}},
		{name: "delete twice", given: deleting, when: domain.DeleteDeployment{}},
		{name: "delete hard after soft", given: reserved(domain.Deployments, deleting),
			when: domain.DeleteDeployment{Hard: true}, then: domain.DeploymentDeleting{Hard: true, Time: noon}},
		{name: "delete without a deletion request", given: ready, when: domain.DeleteDeployment{},
			fault: domain.ReasonNotRequested, says: "try again"},
		{name: "delete soft after hard", given: hard, when: domain.DeleteDeployment{}},
		{name: "delete soon after use", given: ready, when: domain.DeleteDeployment{LastServed: *later(-time.Minute)},
			fault: "RECENTLY_USED", says: "set ignoreChecks"},
		{name: "delete with ignoreChecks", given: ready,
			when: domain.DeleteDeployment{LastServed: *later(-time.Minute), IgnoreChecks: true},
			then: domain.DeploymentDeleting{Time: noon}},
		{name: "delete long after use", given: reserved(domain.Deployments, ready),
			when: domain.DeleteDeployment{LastServed: *later(-domain.RecentUse)}, then: domain.DeploymentDeleting{Time: noon}},
		{name: "delete a DELETED deployment hard", given: deleted,
			when: domain.DeleteDeployment{Hard: true}, then: domain.DeploymentPurged{}},
		{name: "finish", given: also(deleting, removed), when: domain.FinishDeletion{Keep: time.Hour},
			then: domain.DeploymentDeleted{DeleteTime: noon, PurgeTime: *later(time.Hour)}},
		{name: "finish twice", given: deleted, when: domain.FinishDeletion{Keep: time.Hour}},
		{name: "finish hard", given: hard, when: domain.FinishDeletion{Keep: time.Hour}, then: domain.DeploymentPurged{}},
		{name: "finish too early", given: deleting, when: domain.FinishDeletion{Keep: time.Hour}, fault: "REPLICAS_LEFT"},
		{name: "undelete", given: deleted, when: domain.UndeleteDeployment{}, then: domain.DeploymentUndeleted{Time: noon}},
		{name: "undelete before expireTime", given: expires, when: domain.UndeleteDeployment{},
			then: domain.DeploymentUndeleted{Time: noon, Expires: expiring.ExpireTime}},
		{name: "undelete too late",
			given: also(deleting, removed, domain.DeploymentDeleted{DeleteTime: noon, PurgeTime: noon}),
			when:  domain.UndeleteDeployment{}, fault: "PURGE_DUE", says: "create another deployment"},
		{name: "scale by load", given: ready, when: domain.ScaleDeployment{Replicas: 3, Reason: "busy", ByLoad: ptr(1)},
			then: domain.DeploymentScaled{Replicas: 3, Reason: "busy", ByLoad: true, Time: noon}},
		{name: "scale by load after another change of the count", given: ready,
			when: domain.ScaleDeployment{Replicas: 3, ByLoad: ptr(2)}, fault: "STALE_PLAN"},
		{name: "undelete a READY deployment", given: ready, when: domain.UndeleteDeployment{}, fault: "DEPLOYMENT_STATE"},
		{name: "purge too early", given: deleted, when: domain.PurgeDeployment{}, fault: "NOT_DUE"},
		{name: "purge", given: due, when: domain.PurgeDeployment{}, then: domain.DeploymentPurged{}},
		{name: "remove", given: ready, when: domain.RemoveReplica{ID: "r1", Reason: "deleted"}, then: removed},
		{name: "remove twice", given: deleting[:0:0], when: domain.RemoveReplica{ID: "r1"}},
	})
}

func TestDeploymentCountsFailures(t *testing.T) {
	spec := domain.DeploymentSpec{BaseModel: "accounts/a/models/m", MinReplicaCount: 1, MaxReplicaCount: ptr(1)}
	broken := func(id string, at time.Duration) domain.Event[domain.Deployment] {
		return domain.ReplicaRemoved{ID: id, Reason: "out of memory", Failed: true, Time: *later(at)}
	}
	history := events[domain.Deployment](domain.DeploymentCreated{DeploymentSpec: spec, Time: noon},
		domain.ReplicaPlaced{ID: "r1", Node: "n1", Generation: 1}, broken("r1", time.Minute),
		domain.ReplicaPlaced{ID: "r2", Node: "n1", Generation: 1}, broken("r2", 2*time.Minute))
	state := fold(t, domain.Deployments, history...)
	require.Equal(t, 2, state.Failures)
	require.Equal(t, *later(2 * time.Minute), state.FailedTime)
	require.Equal(t, "out of memory", state.Status.Message)
	require.Equal(t, "r3", state.NextReplica())

	state = fold(t, domain.Deployments, also(history, domain.ReplicaPlaced{ID: "r3", Node: "n1", Generation: 1},
		domain.ReplicaAdvanced{ID: "r3", State: domain.ReplicaReady})...)
	require.Zero(t, state.Failures)
}

func TestDeploymentKeepsItsBoundsWhenUpdated(t *testing.T) {
	spec := domain.DeploymentSpec{MinReplicaCount: 1, MaxReplicaCount: ptr(5)}
	smaller := domain.DeploymentSpec{MinReplicaCount: 0, MaxReplicaCount: ptr(2)}
	state := fold(t, domain.Deployments,
		events[domain.Deployment](domain.DeploymentCreated{DeploymentSpec: spec, Time: noon},
			domain.DeploymentScaled{Replicas: 5},
			domain.DeploymentUpdated{DeploymentSpec: smaller, Rollout: true, Time: noon})...)
	require.Equal(t, 2, state.DesiredReplicas)
	require.Equal(t, 2, state.Generation)
	require.Equal(t, domain.DeploymentCreatingState, state.State, "no replica is ready yet")
}

// TestAReadyReplicaClearsAnOldFailure checks that the status of a deployment does not keep the
// error of a failed replica once another replica is ready.
func TestAReadyReplicaClearsAnOldFailure(t *testing.T) {
	var d domain.Deployment
	for _, e := range []domain.Event[domain.Deployment]{
		domain.DeploymentCreated{Time: noon},
		domain.ReplicaPlaced{ID: "r1", Node: "accounts/system/nodes/n1", Generation: 1},
		domain.ReplicaRemoved{ID: "r1", Reason: "out of memory", Failed: true, Time: noon},
		domain.ReplicaPlaced{ID: "r2", Node: "accounts/system/nodes/n1", Generation: 1},
	} {
		e.Evolve(&d)
	}
	require.Equal(t, "out of memory", d.Status.Message)
	domain.ReplicaAdvanced{ID: "r2", State: domain.ReplicaReady}.Evolve(&d)
	require.Equal(t, domain.StatusOf(nil), d.Status)
}
