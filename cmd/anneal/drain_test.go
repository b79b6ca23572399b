package main_test

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// operate runs a command on a node as the operator.
func (f *fleet) operate(verb, node string, args ...string) string {
	f.t.Helper()
	return f.run(append([]string{"node", verb, node, "--data", f.dir}, args...)...).ok(f.t)
}

// TestDrainFailsNoRequest drains, under a steady load, the node of the only replica of a deployment,
// and then the node of one of two replicas: no request fails and no stream is cut.
func TestDrainFailsNoRequest(t *testing.T) {
	f := newFleet(t)
	user, recorder := f.user(), f.tail()
	const device, name = "VENDOR_A_L4_24GB", "accounts/default/deployments/d"
	f.work("one", "--accelerators", device+"=1")
	user.must(http.MethodPost, "/deployments?deploymentId=d", object{"baseModel": baseModel, "minReplicaCount": 1,
		"maxReplicaCount": 2, "acceleratorType": device, "acceleratorCount": 1})
	ready := func(n float64) {
		t.Helper()
		eventually(t, "the replicas are ready", func() bool {
			return at(user.get("/deployments/d"), "replicaStats.readyReplicaCount") == n
		})
	}
	ready(1)
	load := loadCompletions(user, "d", 4)
	defer load.end()
	load.more(10)
	f.operate("drain", "one", "--reason", "new driver")
	load.more(10)
	require.Zero(t, count(kinds(recorder.all(), name), "replica.removed.v1"), "it stays until another node has capacity")
	f.work("two", "--accelerators", device+"=1")
	f.operate("drain", "one", "--reason", "new driver", "--wait")
	removed := recorder.awaitEvent(t, name, "replica.removed.v1", 1)
	require.Equal(t, "node accounts/system/nodes/one is being drained (new driver)", removed.data["reason"])
	recorder.awaitEvent(t, "accounts/system/nodes/one", "node.drained.v1", 1)
	require.Contains(t, f.operate("get", "one"), "DRAINED")
	load.more(10)

	f.operate("uncordon", "one")
	user.must(http.MethodPatch, "/deployments/d:scale", object{"replicaCount": 2})
	ready(2)
	f.work("three", "--accelerators", device+"=1")
	f.operate("drain", "two", "--wait")
	load.more(10)
	ready(2)
	load.end()
	require.Zero(t, load.cut.Load(), "streams that were cut")
	for _, worker := range []string{"one", "two", "three"} {
		require.Zero(t, f.workers[worker].end())
	}
	require.Zero(t, f.end())
}

// TestRolloutFailsNoRequest changes settings of a deployment under a steady load, first while the
// nodes can hold one replica more than desired, then while they cannot. No request fails and no
// stream is cut.
func TestRolloutFailsNoRequest(t *testing.T) {
	f := newFleet(t)
	user, recorder := f.user(), f.tail()
	const device, name = "VENDOR_A_L4_24GB", "accounts/default/deployments/d"
	f.work("one", "--accelerators", device+"=1")
	f.work("two", "--accelerators", device+"=1")
	user.must(http.MethodPost, "/deployments?deploymentId=d", object{"baseModel": baseModel, "minReplicaCount": 1,
		"maxReplicaCount": 2, "acceleratorType": device, "acceleratorCount": 1})
	awaitReplicas := func(replicas float64, replaced int) {
		t.Helper()
		recorder.awaitEvent(t, name, "replica.removed.v1", replaced)
		eventually(t, "the replicas are ready", func() bool {
			d := user.get("/deployments/d")
			return d["state"] == "READY" && at(d, "replicaStats.readyReplicaCount") == replicas
		})
	}
	eventually(t, "the replica is ready", func() bool {
		return at(user.get("/deployments/d"), "replicaStats.readyReplicaCount") == 1.0
	})
	load := loadCompletions(user, "d", 4)
	defer load.end()
	load.more(10)
	user.must(http.MethodPatch, "/deployments/d?updateMask=ngramSpeculationLength",
		object{"ngramSpeculationLength": 3})
	awaitReplicas(1, 1)
	load.more(10)

	user.must(http.MethodPatch, "/deployments/d:scale", object{"replicaCount": 2})
	awaitReplicas(2, 1)
	load.more(10)
	user.must(http.MethodPatch, "/deployments/d?updateMask=ngramSpeculationLength",
		object{"ngramSpeculationLength": 4})
	awaitReplicas(2, 3)
	load.more(10)
	load.end()
	require.Zero(t, load.cut.Load(), "streams that were cut")
	require.Zero(t, f.end())
}

// TestDrainMovesJobs drains the node that trains a job: the job saves a checkpoint and continues on
// another node, and the drain does not count as a failure.
func TestDrainMovesJobs(t *testing.T) {
	f := newFleet(t)
	user, recorder := f.user(), f.tail()
	f.work("one")
	user.dataset("codes", 100)
	const epochs, steps, name = 24, 24 * 25, "accounts/default/supervisedFineTuningJobs/long"
	user.job("long", "codes", epochs)
	recorder.awaitEvent(t, name, "supervisedFineTuningJob.checkpointed.v1", 1)
	f.work("two")
	f.operate("drain", "one", "--wait")
	requeued := recorder.awaitEvent(t, name, "supervisedFineTuningJob.requeued.v1", 1)
	require.Equal(t, false, requeued.data["counted"], "a drain is not a failure")
	require.Equal(t, "two", nodeOf(t, recorder.awaitEvent(t, name, "supervisedFineTuningJob.started.v1", 2)))
	happened := kinds(recorder.all(), name)
	preempting := slices.Index(happened, "supervisedFineTuningJob.preempting.v1")
	require.Contains(t, happened[preempting:slices.Index(happened, "supervisedFineTuningJob.requeued.v1")],
		"supervisedFineTuningJob.checkpointed.v1", "the attempt saves a checkpoint before it stops")
	user.until("/supervisedFineTuningJobs/long", "state", "JOB_STATE_COMPLETED")
	requireCompleteCurve(t, user.lossCurve("long"), steps)
	require.Zero(t, f.end())
}

// TestSuspensionPausesAndContinuesJobs suspends the account of a running job: the attempt saves a
// checkpoint before it stops, and the job continues from its step when the account is restored.
func TestSuspensionPausesAndContinuesJobs(t *testing.T) {
	f := newFleet(t)
	user, recorder := f.user(), f.tail()
	f.work("one")
	user.dataset("codes", 100)
	const epochs, steps, name = 24, 24 * 25, "accounts/default/supervisedFineTuningJobs/long"
	user.job("long", "codes", epochs)
	recorder.awaitEvent(t, name, "supervisedFineTuningJob.checkpointed.v1", 1)
	f.run("account", "suspend", "default", "--reason", "CREDIT_DEPLETED", "--data", f.dir).ok(t)
	user.until("/supervisedFineTuningJobs/long", "state", "JOB_STATE_PAUSED")
	happened := kinds(recorder.all(), name)
	pausing := slices.Index(happened, "supervisedFineTuningJob.pausing.v1")
	require.GreaterOrEqual(t, pausing, 0, "%v", happened)
	require.Contains(t, happened[pausing:], "supervisedFineTuningJob.checkpointed.v1")
	f.run("account", "restore", "default", "--data", f.dir).ok(t)
	recorder.awaitEvent(t, name, "supervisedFineTuningJob.started.v1", 2)
	user.until("/supervisedFineTuningJobs/long", "state", "JOB_STATE_COMPLETED")
	requireCompleteCurve(t, user.lossCurve("long"), steps)
	require.Zero(t, f.end())
}
