package main_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// replicasOn returns the number of replicas of a deployment on a node, and the reason of the last
// one's placement, as the operator reads them.
func (f *fleet) replicasOn(node, deployment string) (n int, reason object) {
	f.t.Helper()
	var found struct {
		Allocations []struct {
			For    string
			Reason object
		}
	}
	require.NoError(f.t, json.Unmarshal([]byte(f.operate("get", node, "-o", "json")), &found))
	for _, a := range found.Allocations {
		if a.For == "accounts/default/deployments/"+deployment {
			n, reason = n+1, a.Reason
		}
	}
	return n, reason
}

// TestAcceleratorsOfJobsAndStrategiesOfReplicas checks, with two workers in different zones, where the
// replicas of each placement strategy run, and that a job gets the accelerators of the operator's table,
// which survives a restart.
func TestAcceleratorsOfJobsAndStrategiesOfReplicas(t *testing.T) {
	t.Parallel()
	const device = "VENDOR_A_L4_24GB"
	f := newFleet(t)
	user, recorder := f.user(), f.tail()
	f.work("one", "--accelerators", device+"=8", "--label", "zone=a")
	f.work("two", "--accelerators", device+"=8", "--label", "zone=b")
	deploy := func(id, strategy string) {
		body := object{"baseModel": baseModel, "minReplicaCount": 2, "acceleratorType": device, "acceleratorCount": 1}
		if strategy != "" {
			body["placementStrategy"] = strategy
		}
		user.must(http.MethodPost, "/deployments?deploymentId="+id, body)
		user.until("/deployments/"+id, "state", "READY")
	}
	deploy("default", "")
	one, _ := f.replicasOn("one", "default")
	require.Contains(t, []int{0, 2}, one, "both use the node that is in use")
	deploy("spread", "SPREAD")
	require.Equal(t, "SPREAD", user.get("/deployments/spread")["placementStrategy"])
	for node, zone := range map[string]string{"one": "a", "two": "b"} {
		n, reason := f.replicasOn(node, "spread")
		require.Equal(t, 1, n, "replicas on node %s", node)
		require.Equal(t, "SPREAD", reason["strategy"])
		require.Equal(t, zone, reason["failureDomain"])
	}

	f.run("accelerators", "set", "1000=7", "1B=3", "dpo:1B=5", "--data", f.dir).ok(t)
	user.dataset("codes", 12)
	user.job("j", "codes", 1)
	started := recorder.awaitEvent(t, "accounts/default/supervisedFineTuningJobs/j", "supervisedFineTuningJob.started.v1",
		1)
	require.EqualValues(t, 3, at(started.data, "takes.accelerators."+device))
	user.until("/supervisedFineTuningJobs/j", "state", "JOB_STATE_COMPLETED")
	require.NotNil(t, at(user.get("/supervisedFineTuningJobs/j"), "acceleratorSeconds."+device))

	require.Zero(t, f.end())
	f.start()
	table := f.run("accelerators", "list", "--data", f.dir).ok(t)
	require.Regexp(t, `dpo +1B +5 +-\nevery method +1000 +7 +-\nevery method +1B +3 +-\n`, table)
	for _, worker := range []string{"one", "two"} {
		f.workers[worker].end()
	}
	require.Zero(t, f.end())
	require.Contains(t, f.run("log", "verify", "--data", f.dir).ok(t), "equal")
}
