package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// fleet returns the nodes with the names n1, n2 …
func fleet(nodes ...domain.Node) domain.Fleet {
	return domain.FleetOf(func(yield func(domain.Name, domain.Node) bool) {
		for i, node := range nodes {
			if !yield(domain.NewName("system", domain.Nodes.Collection, "n"+string(rune('1'+i))), node) {
				return
			}
		}
	})
}

// machine returns a READY node with this many H100 devices, of which used are allocated.
func machine(has, used int, change ...func(*domain.Node)) domain.Node {
	n := domain.Node{State: domain.NodeReady, NodeSpec: domain.NodeSpec{
		Engines:  []string{"complete", "train", domain.GangAbility},
		Capacity: domain.Resources{CPUMilli: 4000, MemoryMiB: 4096, Accelerators: map[string]int{"VENDOR_A_H100_80GB": has}}}}
	n.Allocations = map[string]domain.Allocation{
		"a": {Resources: domain.Resources{Accelerators: map[string]int{"VENDOR_A_H100_80GB": used}}}}
	for _, one := range change {
		one(&n)
	}
	return n
}

func TestFeasibilityNamesWhatIsLacking(t *testing.T) {
	replica := func(accelerator string, count int) domain.Need {
		return domain.DeploymentSpec{AcceleratorType: accelerator, AcceleratorCount: count}.Need(domain.Hosted{})
	}
	const h100, l4 = "VENDOR_A_H100_80GB", "VENDOR_A_L4_24GB"
	anywhere := func(p domain.Placement) domain.Need {
		return domain.DeploymentSpec{Placement: &p}.Need(domain.Hosted{})
	}
	in := func(region string) func(*domain.Node) { return func(n *domain.Node) { n.Region = region } }
	lost := func(n *domain.Node) { n.State = domain.NodeLostState }
	for _, c := range []struct {
		name       string
		need       domain.Need
		nodes      []domain.Node
		infeasible bool
		says       string
	}{
		{"no node", replica(h100, 1), nil, false,
			"a replica needs 100m CPU, 128 MiB, 1 x VENDOR_A_H100_80GB on a node of pool inference that can complete, but no " +
				"node is registered: start an agent"},
		{"capacity", replica(h100, 2), []domain.Node{machine(2, 0)}, false, "1 of 1 nodes have capacity now"},
		{"none of these devices", replica(l4, 1), []domain.Node{machine(2, 0), machine(0, 0)}, true,
			"but only 0 of 2 nodes could run it (n1 has no VENDOR_A_L4_24GB, n2 has no VENDOR_A_L4_24GB): start an age" +
				"nt on a " +
				"machine with these accelerators, or choose an acceleratorType of the fleet"},
		{"too few", replica(h100, 4), []domain.Node{machine(2, 0)}, true, "n1 has 2 x VENDOR_A_H100_80GB)"},
		{"taken", replica(h100, 2), []domain.Node{machine(2, 1)}, false,
			"1 of 1 nodes could run it, but only 0 have capacity now (n1 has 1 of 2 x VENDOR_A_H100_80GB free): wait, " +
				"scale down"},
		{"lost", replica(h100, 2), []domain.Node{machine(2, 0, lost)}, false,
			"1 of the 1 nodes that could run it are lost (n1 is LOST): restart their agents, or start another agent"},
		{"one lost", replica(h100, 2), []domain.Node{machine(2, 0, lost), machine(2, 1)}, false,
			"0 have capacity now (n1 is LOST, n2 has 1 of 2 x VENDOR_A_H100_80GB free): wait"},
		{"shutting down", replica("", 0), []domain.Node{machine(0, 0, func(n *domain.Node) { n.Engines = nil })}, false,
			"0 have capacity now (n1 is shutting down)"},
		{"another pool", replica("", 0), []domain.Node{machine(0, 0, func(n *domain.Node) { n.Pool = domain.PoolTraining })},
			true, "n1 is of pool training): start an agent on such a node"},
		{"no engine", replica("", 0), []domain.Node{machine(0, 0, func(n *domain.Node) { n.Engines = []string{"train"} })},
			true, "n1 cannot complete"},
		{"little memory", replica("", 0), []domain.Node{machine(0, 0, func(n *domain.Node) { n.Capacity.MemoryMiB = 64 })},
			true, "n1 has 64 of 64 MiB free"},
		{"regions of a fleet without regions", anywhere(domain.Placement{Region: "EU_PARIS_1"}),
			[]domain.Node{machine(0, 0)}, false,
			"a replica needs 100m CPU, 128 MiB on a node of pool inference in EU_PARIS_1 that can " +
				"complete, and 1 of 1 nodes have capacity now"},
		{"another region", anywhere(domain.Placement{Region: "EU_PARIS_1"}),
			[]domain.Node{machine(0, 0, in("EU_LONDON_1")), machine(0, 0)}, true,
			"(n1 is in EU_LONDON_1, n2 is in no region): " +
				"start an agent with --region in one of its regions, or name a region of the fleet"},
		{"one of two regions", anywhere(domain.Placement{Regions: []string{"US_IOWA_1", "EU_PARIS_1"}}),
			[]domain.Node{machine(0, 0, in("EU_PARIS_1"))}, false, "in US_IOWA_1 or EU_PARIS_1 that can complete, and 1 of 1"},
		{"a group of regions", anywhere(domain.Placement{MultiRegion: "APAC"}),
			[]domain.Node{machine(0, 0, in("EU_PARIS_1")), machine(0, 0, in("AP_TOKYO_2"))}, false, "and 1 of 2 nodes"},
		{"another group of regions", anywhere(domain.Placement{MultiRegion: "US"}),
			[]domain.Node{machine(0, 0, in("NA_BRITISHCOLUMBIA_1"))}, true, "other regions that can complete, but only 0 of 1"},
		{"every region", anywhere(domain.Placement{MultiRegion: "GLOBAL"}),
			[]domain.Node{machine(0, 0, in("EU_PARIS_1"))}, false, "and 1 of 1 nodes"},
		{"the region of a job", domain.JobSpec{Config: domain.TrainingConfig{Region: "US_UTAH_1"},
			Method: domain.MethodSupervised}.Need(), []domain.Node{machine(0, 0, in("EU_PARIS_1"))}, true,
			"in US_UTAH_1 that can train, but only 0 of 1"},
		{"a turbo job", domain.JobSpec{Method: domain.MethodSupervised, Turbo: true}.Need(),
			[]domain.Node{machine(0, 0, func(n *domain.Node) { n.Capacity.CPUMilli = 1500 })}, true,
			"the job needs 2000m CPU, 512 MiB on a node of pool training that can train, but only 0 of 1 nodes could run it"},
		{"a gang", domain.JobSpec{Method: domain.MethodSupervised, Nodes: 2}.Need(),
			[]domain.Node{machine(0, 0), machine(0, 0, func(n *domain.Node) { n.Capacity.CPUMilli = 500 })}, true,
			"on each of 2 nodes of pool training that can train, but only 1 of 2 nodes could run it (n2 has 500m of 500m " +
				"CPU free)"},
		{"a gang on a node with capacity", domain.JobSpec{Method: domain.MethodSupervised, Nodes: 3}.Need(),
			[]domain.Node{machine(0, 0)}, true, "but only 1 of 1 nodes could run it: start agents on 2 more such nodes, " +
				"or request fewer nodes"},
		{"more nodes than reasons", replica(l4, 1), []domain.Node{{}, {}, {}, {}, {}, {}, {}}, true,
			"n5 has no VENDOR_A_L4_24GB, and 2 more)"},
	} {
		f := domain.FeasibilityOf(c.need, fleet(c.nodes...))
		require.Equal(t, c.infeasible, f.Infeasible(), c.name)
		require.Equal(t, c.name == "lost", f.AllLost(), c.name)
		require.Contains(t, f.String(), c.says, c.name)
		require.NotContains(t, f.String(), "()", "%s: no reason is empty", c.name)
	}
}

// TestFleetAccelerators checks that work without an accelerator type gets the type of which the nodes
// that can do the work have the most devices.
func TestFleetAccelerators(t *testing.T) {
	serving := domain.DeploymentSpec{}.Need(domain.Hosted{})
	with := func(accelerators map[string]int, changes ...func(*domain.Node)) domain.Node {
		node := domain.Node{NodeSpec: domain.NodeSpec{Capacity: domain.Resources{Accelerators: accelerators}}}
		for _, change := range changes {
			change(&node)
		}
		return node
	}
	const h100, l4 = "VENDOR_A_H100_80GB", "VENDOR_A_L4_24GB"
	training := func(n *domain.Node) { n.Pool = domain.PoolTraining }
	trains := func(n *domain.Node) { n.Engines = []string{"train"} }
	joining := func(n *domain.Node) { n.State = domain.NodeJoining }
	for _, c := range []struct {
		name  string
		nodes []domain.Node
		want  string
	}{
		{"no node", nil, domain.DefaultAccelerator},
		{"no registered node", []domain.Node{with(map[string]int{h100: 8}, joining)}, domain.DefaultAccelerator},
		{"CPUs", []domain.Node{with(nil)}, domain.NoAccelerator},
		{"the most devices, not the default type",
			[]domain.Node{with(nil), with(map[string]int{domain.DefaultAccelerator: 1, h100: 8})}, h100},
		{"devices of all nodes", []domain.Node{with(map[string]int{h100: 5}), with(map[string]int{l4: 3}),
			with(map[string]int{l4: 3})}, l4},
		{"the same number of two types", []domain.Node{with(map[string]int{h100: 2, domain.DefaultAccelerator: 2})},
			domain.DefaultAccelerator},
		{"another pool", []domain.Node{with(map[string]int{h100: 8}, training), with(map[string]int{l4: 1})}, l4},
		{"CPUs of this pool", []domain.Node{with(map[string]int{h100: 8}, training), with(nil)}, domain.NoAccelerator},
		{"another engine", []domain.Node{with(map[string]int{h100: 8}, trains), with(map[string]int{l4: 1})}, l4},
		{"no node can serve", []domain.Node{with(map[string]int{h100: 8}, training)}, h100},
		{"an unknown type", []domain.Node{with(map[string]int{"SOMETHING": 4})}, domain.NoAccelerator},
	} {
		require.Equal(t, c.want, domain.FleetAccelerator(fleet(c.nodes...), serving), c.name)
	}
}

// TestGroupsOfRegions checks that each region, but the one of North America, belongs to one group.
func TestGroupsOfRegions(t *testing.T) {
	groups := map[string]int{}
	for _, group := range domain.MultiRegions {
		for _, region := range (&domain.Placement{MultiRegion: group}).Allowed() {
			groups[region]++
		}
	}
	for _, region := range domain.Regions[1:] {
		want := 1
		if region == "NA_BRITISHCOLUMBIA_1" {
			want = 0
		}
		require.Equal(t, want, groups[region], region)
	}
}

// TestGangsNeedNodesThatTrainTogether checks that a job on several nodes fits only on nodes whose
// trainers use all of them: otherwise, all but one would be allocated for nothing.
func TestGangsNeedNodesThatTrainTogether(t *testing.T) {
	with := func(engines ...string) domain.Node {
		return machine(0, 0, func(n *domain.Node) { n.Engines = append(engines, "train") })
	}
	alone, embedded, torch := with(), with(domain.GangAbility), with(domain.TorchGangAbility)
	of := func(count int, nodes ...domain.Node) domain.Feasibility {
		job := domain.JobSpec{Method: domain.MethodSupervised, Nodes: count}
		return domain.FeasibilityOf(job.Need(), fleet(nodes...))
	}
	f := of(2, alone, alone, embedded)
	require.True(t, f.Infeasible())
	require.Contains(t, f.WithoutNodeNames().String(), "only 1 of 3 nodes could run it (cannot train together with "+
		"other nodes: 2 nodes): request fewer nodes, or start agents with a trainer that uses several nodes")
	require.Equal(t, 3, of(1, alone, alone, embedded).Available)
	require.True(t, of(2, embedded, embedded).Fits())
	require.True(t, of(2, torch, torch, embedded).Fits())
	require.True(t, of(2, torch, embedded).Infeasible(), "nodes with different trainers do not train together")
	require.Equal(t, domain.TorchGangAbility, of(2, torch, torch, embedded).Need.Gang)
	require.Equal(t, domain.GangAbility, of(2, torch, embedded).Need.Gang)
	require.False(t, of(2, with(), domain.Node{}).Fits())
}
