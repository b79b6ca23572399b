package schedulers_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/schedulers"
)

const h100 = "VENDOR_A_H100_80GB"

// devicesOf requests accelerators for each replica of a deployment.
func devicesOf(n int) func(*domain.DeploymentSpec) {
	return func(spec *domain.DeploymentSpec) { spec.AcceleratorType, spec.AcceleratorCount = h100, n }
}

// replicasOn returns the number of replicas of a deployment on each node.
func (s *harness) replicasOn(id string) map[domain.Name]int {
	row, ok := s.world.View().Deployments.Get(deploymentName(id))
	require.True(s.t, ok)
	nodes := map[domain.Name]int{}
	for _, r := range row.State.Replicas {
		nodes[r.Node]++
	}
	return nodes
}

// TestSmallReplicasLeaveWholeNodesFree places twenty replicas with one device on twenty nodes with
// eight, and then one with eight devices.
func TestSmallReplicasLeaveWholeNodesFree(t *testing.T) {
	s := newHarnessWithInputs(t)
	for i := range 20 {
		s.given(node(fmt.Sprintf("n%d", i), "", 64, map[string]int{h100: 8}))
	}
	for i := range 20 {
		s.given(deployment(fmt.Sprintf("small%d", i), 1, 1, devicesOf(1)))
	}
	s.execute(schedulers.Replicas{})
	s.given(deployment("more", 20, 20, devicesOf(1)))
	s.execute(schedulers.Replicas{})
	require.Len(t, s.replicasOn("more"), 3, "20 devices beside the first 20")
	s.given(deployment("large", 15, 15, devicesOf(8)))
	s.execute(schedulers.Replicas{})
	require.Len(t, s.replicasOn("large"), 15, "five nodes hold the small replicas")

	for row := range s.world.View().Nodes.All() {
		for _, a := range row.State.Allocated() {
			require.NotNil(t, a.Reason)
			require.Positive(t, a.Reason.Feasible)
		}
	}
}

// TestReplicasSpreadWhereItCostsNothing checks that the replicas of a deployment are placed on
// different nodes if these nodes have the same score.
func TestReplicasSpreadWhereItCostsNothing(t *testing.T) {
	s := newHarnessWithInputs(t)
	for i := range 6 {
		s.given(node(fmt.Sprintf("n%d", i), "", 64, map[string]int{h100: 4}))
	}
	s.given(deployment("threes", 4, 4, devicesOf(3)))
	s.execute(schedulers.Replicas{})
	require.Len(t, s.replicasOn("threes"), 4)
	s.given(deployment("d1", 4, 4, devicesOf(1)))
	s.execute(schedulers.Replicas{})
	require.Len(t, s.replicasOn("d1"), 4, "each fills a node that has three devices in use")
	require.Equal(t, s.replicasOn("threes"), s.replicasOn("d1"))
}

func TestWorkIsPlacedOnSuitableNodes(t *testing.T) {
	with := func(n int) domain.Resources {
		return domain.Resources{CPUMilli: 4000, MemoryMiB: 4096, Accelerators: map[string]int{"L4": n}}
	}
	for _, line := range []struct {
		name   string
		nodes  int
		region string
		want   []string
	}{
		{"nodes without accelerators first", 1, "", []string{"b"}},
		{"a gang on different nodes", 2, "", []string{"a", "b"}},
		{"a gang is whole or absent", 3, "", nil},
		{"a region", 1, "EU_PARIS_1", []string{"a"}},
		{"a region without nodes", 1, "EU_LONDON_1", nil},
	} {
		t.Run(line.name, func(t *testing.T) {
			s := newHarnessWithInputs(t)
			engines := []string{"train", domain.GangAbility}
			for _, spec := range []struct {
				id string
				domain.NodeSpec
			}{
				{"a", domain.NodeSpec{Region: "EU_PARIS_1", Engines: engines, Capacity: with(2)}},
				{"b", domain.NodeSpec{Region: "EU_FRANKFURT_1", Engines: engines, Capacity: with(0)}},
				{"c", domain.NodeSpec{Pool: domain.PoolInference, Engines: engines, Capacity: with(0)}},
				{"d", domain.NodeSpec{Engines: []string{"complete"}, Capacity: with(0)}},
			} {
				s.given(onNode(spec.id, domain.RegisterNode{NodeSpec: spec.NodeSpec}))
			}
			got := schedulers.PlaceForTest(s.world.View(), domain.Need{Count: line.nodes, Pool: domain.PoolTraining,
				Engine: "train", Resources: domain.Resources{CPUMilli: 1000}, Regions: regions(line.region)})
			var want []domain.Name
			for _, id := range line.want {
				want = append(want, nodeName(id))
			}
			require.ElementsMatch(t, want, got)
		})
	}
}

func regions(region string) []string {
	if region == "" {
		return nil
	}
	return []string{region}
}
