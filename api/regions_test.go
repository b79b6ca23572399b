package api

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
)

// TestRegions checks that a deployment shows the region of its replicas, and that a request that
// names regions gets a warning while no node has a region.
func TestRegions(t *testing.T) {
	s := newHarness(t, request.Limits{})
	register := func(region string) {
		s.do(domain.Intend(domain.Nodes, "accounts/system/nodes/n1", domain.RegisterNode{
			NodeSpec: domain.NodeSpec{Region: region, Engines: []string{"train", "complete"},
				Capacity: domain.Resources{CPUMilli: 4000, MemoryMiB: 8192}}}))
	}
	register("")
	body := `{"baseModel": "` + publicBase + `", "minReplicaCount": 1, "placement": {"region": "EU_PARIS_1"}}`
	before := s.ok("POST", acme+"/deployments?deploymentId=before", body)
	require.Equal(t, "placement.region: accepted, but has no effect while no node has a region: nodes have "+
		"a region only if the operator starts their agents with --region", before.header.Get("anneal-warning"))
	require.Equal(t, "REGION_UNSPECIFIED", before.json(t)["region"])

	register("EU_LONDON_1")
	after := s.ok("POST", acme+"/deployments?deploymentId=after", body)
	require.Empty(t, after.header.Values("anneal-warning"))
	require.Equal(t, "EU_PARIS_1", after.json(t)["region"])
	require.Contains(t, after.json(t)["status"].(map[string]any)["message"], "is in EU_LONDON_1: 1 node")
	s.ok("POST", acme+"/deployments?deploymentId=global", `{"baseModel": "`+publicBase+`", "minReplicaCount": 1}`)
	s.serve("accounts/acme/deployments/global")
	require.Equal(t, "EU_LONDON_1", s.ok("GET", acme+"/deployments/global", "").json(t)["region"])
	require.Equal(t, "EU_LONDON_1", s.call("GET", "/v1/accounts/system/nodes/n1", "operator", "").json(t)["region"])

	s.makeDataset("rows")
	for region, status := range map[string]int{"EU_PARIS_1": 200, "REGION_UNSPECIFIED": 200, "MARS_1": 400} {
		a := s.call("POST", acme+"/supervisedFineTuningJobs", "user",
			`{"dataset": "accounts/acme/datasets/rows", "region": "`+region+`"}`)
		require.Equal(t, status, a.status, "%s", a.body)
		require.Empty(t, a.header.Values("anneal-warning"))
	}
}
