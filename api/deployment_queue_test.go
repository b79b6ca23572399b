package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/rest"
	"anneal/domain"
)

// l4Server returns the intent that registers a node with one accelerator for replicas.
func l4Server(id string) domain.Intent {
	return domain.Intend(domain.Nodes, domain.NewName(domain.System, domain.Nodes.Collection, id),
		domain.RegisterNode{NodeSpec: domain.NodeSpec{Pool: domain.PoolInference, Engines: []string{"complete"},
			Capacity: domain.Resources{CPUMilli: 64_000, MemoryMiB: 65_536,
				Accelerators: map[string]int{"VENDOR_A_L4_24GB": 1}}}})
}

// lacking creates a deployment that needs one accelerator for its only replica.
func (s *harness) lacking(account, id string) domain.Name {
	s.Helper()
	name, one := domain.NewName(account, domain.Deployments.Collection, id), 1
	s.deployment(name, domain.CreateDeployment{Operator: true, DeploymentSpec: domain.DeploymentSpec{
		BaseModel: "accounts/default/models/anneal-base", MinReplicaCount: 1, MaxReplicaCount: &one, AcceleratorCount: 1,
		AcceleratorType: "VENDOR_A_L4_24GB"}})
	return name
}

// shown returns a deployment as a client of its account sees it.
func (s *harness) shown(name domain.Name) (d rest.Deployment) {
	s.Helper()
	a := s.call("GET", "/v1/"+string(name), map[string]string{"acme": "user", "other": "other"}[name.Account()], "")
	require.Equal(s, http.StatusOK, a.status, "%s", a.body)
	require.NoError(s, json.Unmarshal(a.body, &d))
	return d
}

// TestWaitingDeployments checks over HTTP what deployments that lack replicas show: position, what they
// wait for, since when, and, once enough deployments have waited, an estimate. It checks that the list
// and the status message have the same, and that nothing of other accounts and no node is named.
func TestWaitingDeployments(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.do(l4Server("machine-7"))
	first := s.lacking("acme", "first")
	s.deployment(first, domain.PlaceReplica{ID: "r1", Node: "accounts/system/nodes/machine-7", Generation: 1})
	s.do(domain.Intend(domain.Nodes, "accounts/system/nodes/machine-7",
		domain.PlaceAllocation{Allocation: domain.Allocation{ID: domain.ReplicaAllocationID(first, "r1"), For: first,
			Replica:   "r1",
			Resources: domain.Resources{CPUMilli: 100, MemoryMiB: 128, Accelerators: map[string]int{"VENDOR_A_L4_24GB": 1}}}}))
	require.Nil(t, s.shown(first).Queue)
	hidden := s.lacking("other", "hidden")
	mine := s.lacking("acme", "mine")
	begin := mustRow(s, mine).Since
	s.clock.add(time.Hour)
	d := s.shown(mine)
	require.Equal(t, 2, d.Queue.Position)
	require.Equal(t, 2, d.Queue.Length)
	require.Equal(t, 1, s.shown(hidden).Queue.Position)
	require.Equal(t, begin.UTC(), d.Queue.Since.UTC())
	require.Contains(t, d.Queue.WaitingFor, "capacity: ")
	require.Contains(t, d.Queue.WaitingFor, "1 x VENDOR_A_L4_24GB on a node")
	require.Nil(t, d.Queue.EstimatedStartTime)
	require.Equal(t, "an estimate needs 4 earlier deployments that have waited for longer than this one has until now, "+
		"and there are 0", d.Queue.NoEstimateReason)
	require.Equal(t, domain.Unavailable.String(), d.Status.Code)
	require.Contains(t, d.Status.Message, "; waiting since "+begin.Format(time.RFC3339)+", position 2 of 2 in the queue, "+
		"no estimate: an estimate needs 4 earlier deployments")
	list := string(s.call("GET", acme+"/deployments", "user", "").body)
	require.Contains(t, list, `"position":2`)
	for _, secret := range []string{"machine-7", "hidden", "accounts/other"} {
		require.NotContains(t, list, secret)
	}

	for i := range domain.MinWaits {
		earlier := s.lacking("other", fmt.Sprintf("earlier-%d", i))
		s.clock.add(time.Duration(2+i) * time.Hour)
		s.deployment(earlier, domain.PlaceReplica{ID: "r1", Node: "accounts/system/nodes/machine-8", Generation: 1})
	}
	later := s.lacking("acme", "later")
	begin = mustRow(s, later).Since
	s.clock.add(10 * time.Minute)
	d = s.shown(later)
	require.Empty(t, d.Queue.NoEstimateReason)
	require.WithinDuration(t, begin.Add(10*time.Minute), *d.Queue.EstimatedStartTime.Earliest, time.Minute)
	require.WithinDuration(t, begin.Add(4*time.Hour), *d.Queue.EstimatedStartTime.Median, time.Minute)
	require.WithinDuration(t, begin.Add(5*time.Hour), *d.Queue.EstimatedStartTime.Latest, time.Minute)
	require.Contains(t, d.Status.Message, "the missing replicas within minReplicaCount are placed between ")
	require.Contains(t, d.Status.Message, " with a probability of 80 %")

	s.clock.add(4 * time.Hour)
	require.Contains(t, s.shown(later).Queue.NoEstimateReason, "and there are 1")
	s.deployment(later, domain.RemoveReplica{ID: "r1"})
	past := s.call("GET", "/v1/"+string(mine)+"?asOf="+fmt.Sprint(s.last().Position), "user", "").json(t)
	require.NotContains(t, past["queue"], "position", "a place depends on the present")
	s.deployment(later, domain.DeleteDeployment{IgnoreChecks: true})
	require.Nil(t, s.shown(later).Queue)
}

// TestWhatDeploymentsWaitFor checks what deployments wait for other than capacity, and that there is no
// estimate if no node could hold a replica.
func TestWhatDeploymentsWaitFor(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.do(l4Server("machine-7"))
	name := s.lacking("acme", "d")
	require.Equal(t, "the scheduler", s.shown(name).Queue.WaitingFor)
	s.deployment(name, domain.PlaceReplica{ID: "r1", Node: "accounts/system/nodes/machine-7", Generation: 1})
	require.Nil(t, s.shown(name).Queue)
	s.deployment(name, domain.RemoveReplica{ID: "r1", Failed: true, Reason: "it crashed"})
	require.Equal(t, "the next attempt to start a replica, after the last one failed", s.shown(name).Queue.WaitingFor)
	require.Equal(t, "it crashed", s.shown(name).Status.Message)

	large, one := domain.Name("accounts/acme/deployments/large"), 1
	s.deployment(large, domain.CreateDeployment{Operator: true, DeploymentSpec: domain.DeploymentSpec{
		BaseModel: "accounts/default/models/anneal-base", MinReplicaCount: 1, MaxReplicaCount: &one, AcceleratorCount: 8,
		AcceleratorType: "VENDOR_A_L4_24GB"}})
	require.Contains(t, s.shown(large).Queue.NoEstimateReason, "even if they were empty")
}
