package main_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestScaleToZero checks that a deployment without requests scales to zero, and that the next
// request starts a replica and is served.
func TestScaleToZero(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir(), "--scale-to-zero-floor", "10s")
	user := s.user()
	policy := object{"scaleToZeroWindow": "10s", "scaleDownWindow": "600s"}
	made := user.must(http.MethodPost, "/deployments?deploymentId=dozer",
		object{"baseModel": baseModel, "maxReplicaCount": 2, "autoscalingPolicy": policy})
	require.EqualValues(t, 0, made["desiredReplicaCount"])
	wake := func() {
		status, answer, err := user.complete("accounts/default/deployments/dozer", "hello")
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, status, "%v", answer)
		require.EqualValues(t, 1, user.get("/deployments/dozer")["desiredReplicaCount"])
	}
	wake()
	user.until("/deployments/dozer", "replicaCount", 0.0)
	wake()
	var reasons []any
	for _, event := range user.list("/deployments/dozer/events?filter=type=deployment.scaled.v1", "events") {
		reasons = append(reasons, at(event, "data.reason"))
	}
	require.Equal(t, []any{"a request is waiting for a replica", "no requests in the last 10s",
		"a request is waiting for a replica"}, reasons)
	status, answer, err := s.user().do(http.MethodPost, "/deployments",
		object{"baseModel": baseModel, "autoscalingPolicy": object{"scaleToZeroWindow": "9s"}})
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, status)
	require.Contains(t, at(answer, "message"), "autoscalingPolicy.scaleToZeroWindow: must be at least 10s on this server")
}
