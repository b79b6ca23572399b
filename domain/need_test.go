package domain_test

import (
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// fleet yields nodes as n1, n2 …
func fleet(nodes ...domain.Node) iter.Seq2[domain.Name, domain.Node] {
	return func(yield func(domain.Name, domain.Node) bool) {
		for i, node := range nodes {
			if !yield(domain.NewName("system", domain.Nodes.Collection, "n"+string(rune('1'+i))), node) {
				return
			}
		}
	}
}

// machine is a READY node with some H100, of which others hold used.
func machine(has, used int, change ...func(*domain.Node)) domain.Node {
	n := domain.Node{State: domain.NodeReady, NodeSpec: domain.NodeSpec{Engines: []string{"complete", "train"},
		Capacity: domain.Resources{CPUMilli: 4000, MemoryMiB: 4096, Accelerators: map[string]int{"VENDOR_A_H100_80GB": has}}}}
	n.Allocations = map[string]domain.Allocation{"a": {Takes: domain.Resources{Accelerators: map[string]int{"VENDOR_A_H100_80GB": used}}}}
	for _, one := range change {
		one(&n)
	}
	return n
}

func TestProspectsSayWhatIsLacking(t *testing.T) {
	replica := func(accelerator string, count int) domain.Need {
		return domain.DeploymentSpec{AcceleratorType: accelerator, AcceleratorCount: count}.Need(domain.Hosted{})
	}
	const h100, l4 = "VENDOR_A_H100_80GB", "VENDOR_A_L4_24GB"
	lost := func(n *domain.Node) { n.State = domain.NodeGone }
	for _, c := range []struct {
		name     string
		need     domain.Need
		nodes    []domain.Node
		hopeless bool
		says     string
	}{
		{"no node", replica(h100, 1), nil, false, "it needs 100m CPU, 128 MiB, 1 x VENDOR_A_H100_80GB on a node of pool inference that can complete, and there is no node: start an agent"},
		{"room", replica(h100, 2), []domain.Node{machine(2, 0)}, false, "1 have room now"},
		{"none of them", replica(l4, 1), []domain.Node{machine(2, 0), machine(0, 0)}, true,
			"of 2 nodes 0 could hold it (n1 has no VENDOR_A_L4_24GB, n2 has no VENDOR_A_L4_24GB): start an agent on a machine that has them, or choose an acceleratorType that is there"},
		{"too few", replica(h100, 4), []domain.Node{machine(2, 0)}, true, "n1 has 2 x VENDOR_A_H100_80GB)"},
		{"taken", replica(h100, 2), []domain.Node{machine(2, 1)}, false, "of 1 nodes 1 could hold it, but 0 have room now (n1 has 1 of 2 x VENDOR_A_H100_80GB free): wait, scale down"},
		{"lost", replica(h100, 2), []domain.Node{machine(2, 0, lost)}, false, "of the 1 nodes that could hold it 1 are lost (n1 is LOST): start their agents again, or another"},
		{"one lost", replica(h100, 2), []domain.Node{machine(2, 0, lost), machine(2, 1)}, false, "0 have room now (n1 is LOST, n2 has 1 of 2 x VENDOR_A_H100_80GB free): wait"},
		{"leaving", replica("", 0), []domain.Node{machine(0, 0, func(n *domain.Node) { n.Engines = nil })}, false, "0 have room now (n1 is leaving)"},
		{"another pool", replica("", 0), []domain.Node{machine(0, 0, func(n *domain.Node) { n.Pool = domain.PoolTraining })}, true, "n1 is of pool training): start an agent that can"},
		{"no engine", replica("", 0), []domain.Node{machine(0, 0, func(n *domain.Node) { n.Engines = []string{"train"} })}, true, "n1 cannot complete"},
		{"little memory", replica("", 0), []domain.Node{machine(0, 0, func(n *domain.Node) { n.Capacity.MemoryMiB = 64 })}, true, "n1 has 64 of 64 MiB free"},
		{"a gang", domain.JobSpec{Method: domain.MethodSupervised, Nodes: 2}.Need(), []domain.Node{machine(0, 0), machine(0, 0, func(n *domain.Node) { n.Capacity.CPUMilli = 500 })}, true,
			"on each of 2 nodes of pool training that can train, and of 2 nodes 1 could hold it (n2 has 500m of 500m CPU free)"},
		{"many", replica(l4, 1), []domain.Node{{}, {}, {}, {}, {}, {}, {}}, true, "n5 has no VENDOR_A_L4_24GB, and so on for 2 more)"},
	} {
		p := domain.FeasibilityOf(c.need, fleet(c.nodes...))
		require.Equal(t, c.hopeless, p.Infeasible(), c.name)
		require.Equal(t, c.name == "lost", p.AllLost(), c.name)
		require.Contains(t, p.String(), c.says, c.name)
	}
}

func TestFleetAccelerators(t *testing.T) {
	with := func(accelerators map[string]int) domain.Node {
		return domain.Node{NodeSpec: domain.NodeSpec{Capacity: domain.Resources{Accelerators: accelerators}}}
	}
	for _, c := range []struct {
		nodes []domain.Node
		want  string
	}{
		{nil, domain.DefaultAccelerator},
		{[]domain.Node{with(nil)}, domain.NoAccelerator},
		{[]domain.Node{with(nil), with(map[string]int{domain.DefaultAccelerator: 1, "VENDOR_A_H100_80GB": 8})}, domain.DefaultAccelerator},
		{[]domain.Node{with(map[string]int{"VENDOR_A_L4_24GB": 4}), with(map[string]int{"VENDOR_A_H100_80GB": 8})}, "VENDOR_A_H100_80GB"},
		{[]domain.Node{with(map[string]int{"SOMETHING": 4})}, domain.NoAccelerator},
	} {
		require.Equal(t, c.want, domain.FleetAccelerator(fleet(c.nodes...)))
	}
}
