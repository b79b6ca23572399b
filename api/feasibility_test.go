package api

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
)

// TestInfeasibleDeployment checks that the status of a deployment reports, before the first
// request, that no node can run the deployment, that a request to the deployment does not wait,
// that nodes can run a deployment without an accelerator type, and that the status of a job reports
// what the nodes lack.
func TestInfeasibleDeployment(t *testing.T) {
	s := newHarness(t, request.Limits{})
	const n1 = domain.Name("accounts/system/nodes/n1")
	executeAction(s, []string{"node", string(n1)})
	made := s.call("POST", acme+"/deploymentShapes", "user",
		`{"deploymentShapeId":"s","deploymentShape":{"baseModel":"accounts/default/models/anneal-base"}}`)
	require.Equal(t, domain.NoAccelerator, made.json(t)["acceleratorType"], "%s", made.body)
	a := s.call("POST", acme+"/deployments?deploymentId=large", "user",
		`{"baseModel":"accounts/default/models/anneal-base","acceleratorType":"VENDOR_A_A100_80GB"}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	s.deployment("accounts/acme/deployments/large", domain.MarkDeploymentReady{Generation: 1})
	status := s.call("GET", acme+"/deployments/large", "user", "").json(t)["status"].(map[string]any)
	require.Equal(t, "UNAVAILABLE", status["code"])
	require.Contains(t, status["message"],
		"a request cannot start a replica: a replica needs 100m CPU, 128 MiB, 1 x VENDOR_A_A100_80GB")
	require.Contains(t, status["message"],
		"but only 0 of 1 nodes could run it (has no VENDOR_A_A100_80GB: 1 node): start an agent on a machine with "+
			"these accelerators, or choose an acceleratorType of the fleet")
	require.NotContains(t, status["message"], "n1", "node names are the operator's")
	response := s.call("POST", "/inference/v1/completions", "user",
		`{"model":"accounts/acme/deployments/large","prompt":"x"}`)
	require.Equal(t, 503, response.status, "%s", response.body)
	require.Contains(t, string(response.body), "DEPLOYMENT_HAS_NO_PLACE")
	require.Contains(t, string(response.body), "has no VENDOR_A_A100_80GB: 1 node")
	require.NotContains(t, string(response.body), "n1", "node names are the operator's")

	s.do(domain.Intend(domain.Nodes, n1,
		domain.RegisterNode{NodeSpec: domain.NodeSpec{Engines: []string{"train", "complete"},
			Capacity: domain.Resources{CPUMilli: 500, MemoryMiB: 4096,
				Accelerators: map[string]int{"VENDOR_A_A100_80GB": 1}}}}))
	require.Equal(t, map[string]any{"code": "OK", "message": ""},
		s.call("GET", acme+"/deployments/large", "user", "").json(t)["status"])
	small := s.call("POST", acme+"/deployments?deploymentId=small", "user",
		`{"baseModel":"accounts/default/models/anneal-base","minReplicaCount":1}`)
	require.Equal(t, "OK", small.json(t)["status"].(map[string]any)["code"], "there is capacity for it: %s", small.body)

	s.makeDataset("rows")
	j := s.call("POST", acme+"/supervisedFineTuningJobs?supervisedFineTuningJobId=j", "user",
		`{"dataset":"accounts/acme/datasets/rows"}`)
	require.Equal(t, 200, j.status, "%s", j.body)
	const name = domain.Name("accounts/acme/supervisedFineTuningJobs/j")
	s.do(domain.IntendJob(name, domain.StartValidation{}))
	s.do(domain.IntendJob(name, domain.QueueJob{}))
	s.do(domain.IntendJob(name, domain.HoldJob{For: domain.HeldForCapacity + ": much"}))
	status = s.call("GET", "/v1/"+string(name), "user", "").json(t)["status"].(map[string]any)
	require.Contains(t, status["message"],
		"waiting for capacity: the job needs 1000m CPU, 512 MiB, 1 x VENDOR_A_A100_80GB on a node of pool training that can "+
			"train, but only 0 of 1 nodes could run it (has 500m of 500m CPU free: 1 node): start an agent on a machine with "+
			"these accelerators")
	require.NotContains(t, status["message"], "n1", "node names are the operator's")
	require.NotContains(t, status["message"], "acceleratorType", "the user of a job cannot choose it")
}

// TestDeploymentOnLostNodes checks that the status of a deployment reports that all of its nodes
// are lost, that a request to the deployment does not wait, and that a lost node shows the time of
// its last heartbeat.
func TestDeploymentOnLostNodes(t *testing.T) {
	s := newHarness(t, request.Limits{})
	const n1 = domain.Name("accounts/system/nodes/n1")
	executeAction(s, []string{"node", string(n1)})
	name := s.deploy("d", 1)
	seen := epoch.Add(time.Hour)
	s.world.Live().Heartbeat(n1, seen)
	s.do(domain.Intend(domain.Nodes, n1, domain.LoseNode{Reason: "silent", Seen: seen}))
	require.Equal(t, seen.Format(time.RFC3339), s.call("GET", "/v1/"+string(n1), "operator", "").json(t)["seenTime"])
	s.world.Live().Forget(n1) // the live status is empty after a restart
	require.Equal(t, seen.Format(time.RFC3339), s.call("GET", "/v1/"+string(n1), "operator", "").json(t)["seenTime"])
	gone := func() {
		d := s.ok("GET", "/v1/"+string(name), "").json(t)
		require.Equal(t, 0.0, d["replicaCount"])
		require.Equal(t, map[string]any{"pendingSchedulingReplicaCount": 1.0, "downloadingModelReplicaCount": 0.0,
			"initializingReplicaCount": 0.0, "readyReplicaCount": 0.0}, d["replicaStats"])
		require.Equal(t, "UNAVAILABLE", d["status"].(map[string]any)["code"])
		require.Contains(t, d["status"].(map[string]any)["message"],
			"1 of the 1 nodes that could run it are lost (is LOST: 1 node): restart their agents, or start another agent")
		response := s.call("POST", "/inference/v1/completions", "user", `{"model":"`+string(name)+`","prompt":"x"}`)
		require.Equal(t, 503, response.status, "%s", response.body)
		require.Contains(t, string(response.body), "DEPLOYMENT_HAS_NO_PLACE")
		require.Contains(t, string(response.body), "is LOST: 1 node")
	}
	gone()
	s.deployment(name, domain.RemoveReplica{ID: "r1", Reason: "node n1 was lost"})
	gone()
	require.Empty(t, s.replicas.requestIDs())
}
