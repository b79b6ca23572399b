package coordinator_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/workers/protocol"
)

// TestServedFromTheCopyInItsPrecision checks that a deployment serves the copy of its model in the
// deployment's precision, or the original model when there is no such copy.
func TestServedFromTheCopyInItsPrecision(t *testing.T) {
	c := startWithInputs(t)
	c.do(domain.Intend(domain.Models, modelName, domain.PrepareModel{Precision: "BF16"}))
	copied := domain.Files{Prefix: "prepared/acme/base/e/", Sizes: map[string]int64{"config.json": 1,
		"model.safetensors": 2}}
	c.do(domain.Intend(domain.Models, modelName, domain.FinishCopy{Precision: "BF16", Attempt: 1, Files: copied}))
	node := c.registerNode("n1", "a")
	number := uint64(2)
	for spec, fromCopy := range map[struct {
		precision string
		addons    bool // whether the deployment loads addons, which need the original model
	}]bool{{"BF16", false}: true, {"FP16", false}: false, {"", false}: false, {"BF16", true}: false} {
		c.do(domain.Intend(domain.Deployments, deploymentName,
			domain.CreateDeployment{
				DeploymentSpec: domain.DeploymentSpec{BaseModel: string(modelName), MinReplicaCount: 1,
					Precision: spec.precision, EnableAddons: spec.addons}}))
		replica := c.placeReplica("n1")
		var assignments protocol.Assignments
		require.NoError(t, c.send(node, protocol.HeartbeatSubject("n1"), heartbeatOf("a", number), &assignments))
		require.Len(t, assignments.Serve, 1)
		number++
		require.EqualValues(t, 16, assignments.Serve[0].MemoryMiB, "in the precision of its placement")
		base := assignments.Serve[0].Base
		if fromCopy {
			require.Contains(t, base.Key, copied.Prefix)
			require.Contains(t, base.Files[1].URL, copied.Prefix+"model.safetensors")
			require.EqualValues(t, 2, base.Files[1].Size)
		} else {
			require.NotContains(t, base.Key, copied.Prefix, "%v", spec)
		}
		c.do(domain.Intend(domain.Deployments, deploymentName, domain.DeleteDeployment{IgnoreChecks: true,
			Hard: true}))
		c.do(domain.Intend(domain.Deployments, deploymentName, domain.RemoveReplica{ID: replica.ID}))
		c.do(domain.Intend(domain.Nodes, nodeName("n1"), domain.ReleaseAllocation{ID: domain.ReplicaAllocationID(
			deploymentName, replica.ID)}))
		c.do(domain.Intend(domain.Deployments, deploymentName, domain.FinishDeletion{}))
	}
}
