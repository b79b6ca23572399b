package main_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReplicasShareADevice checks, with two workers of which one shares its device, that replicas of
// several deployments share it, that a share without capacity waits and says so, and that the shares survive
// a restart.
func TestReplicasShareADevice(t *testing.T) {
	t.Parallel()
	const device = "VENDOR_A_L4_24GB"
	f := newFleet(t)
	user, recorder := f.user(), f.tail()
	f.work("one", "--accelerators", device+"=1", "--share-accelerators")
	deploy := func(id string, share int) {
		user.must(http.MethodPost, "/deployments?deploymentId="+id, object{"baseModel": baseModel, "minReplicaCount": 1,
			"acceleratorType": device, "acceleratorShare": share})
	}
	for id, share := range map[string]int{"a": 400, "b": 500} {
		deploy(id, share)
		user.until("/deployments/"+id, "state", "READY")
		require.EqualValues(t, share, user.get("/deployments/" + id)["acceleratorShare"])
	}
	placed := recorder.awaitEvent(t, "accounts/system/nodes/one", "allocation.placed.v1", 2)
	require.EqualValues(t, 1, at(placed.data, "takes.share.slot"))
	require.Positive(t, at(placed.data, "reason.deviceMilli"))

	f.work("two", "--accelerators", device+"=1")
	deploy("c", 200)
	answer := f.run("node", "top", "--data", f.dir).ok(t)
	require.Regexp(t, `one +READY +accounts/default/deployments/a#r1 +0 `+device+` 400/1000`, answer)
	require.Regexp(t, `one +READY +accounts/default/deployments/b#r1 +0 `+device+` 500/1000`, answer)
	require.Regexp(t, `two +READY +- +0 `+device, answer)
	require.Equal(t, 1.0, at(f.top("one"), "used.accelerators."+device), "a shared device counts once")
	require.NotEqual(t, "READY", user.get("/deployments/c")["state"], "node two does not share its device")

	user.must(http.MethodDelete, "/deployments/a?hard=true&ignoreChecks=true", nil)
	user.until("/deployments/c", "state", "READY")
	require.Zero(t, f.end())
	f.start()
	user.until("/deployments/c", "state", "READY")
	for _, worker := range []string{"one", "two"} {
		f.workers[worker].end()
	}
	require.Zero(t, f.end())
	require.Contains(t, f.run("log", "verify", "--data", f.dir).ok(t), "equal")
}
