package domain_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func TestNodeIsTainted(t *testing.T) {
	type D = decision[domain.Node]
	f := events[domain.Node]
	here := domain.NodeRegistered{Time: noon, NodeSpec: domain.NodeSpec{Capacity: domain.Resources{CPUMilli: 2000}}}
	taint := domain.Taint{Key: "dedicated", Value: "acme", Effect: domain.NoSchedule}
	other := domain.Taint{Key: "dedicated", Value: "other", Effect: domain.NoSchedule}
	decide(t, domain.Nodes, []D{
		{name: "taint", given: f(here), when: domain.TaintNode{Taint: taint},
			then: domain.NodeTainted{Taint: taint}},
		{name: "taint twice", given: f(here, domain.NodeTainted{Taint: taint}), when: domain.TaintNode{Taint: taint}},
		{name: "taint with another value", given: f(here, domain.NodeTainted{Taint: taint}),
			when: domain.TaintNode{Taint: other}, then: domain.NodeTainted{Taint: other}},
		{name: "taint after a loss",
			given: f(here, domain.NodeTainted{Taint: taint}, domain.NodeLost{Reason: "silent"}, here),
			when:  domain.TaintNode{Taint: taint}},
		{name: "taint with another effect", given: f(here), fault: "INVALID_FIELDS",
			when: domain.TaintNode{Taint: domain.Taint{Key: "a", Effect: "NoExecute"}}, says: "the only effect is NoSchedule"},
		{name: "taint with an invalid value", given: f(here), fault: "INVALID_FIELDS",
			when: domain.TaintNode{Taint: domain.Taint{Key: "a b", Effect: domain.NoSchedule}}},
		{name: "taint a missing node", when: domain.TaintNode{Taint: taint}, fault: "NOT_FOUND"},
		{name: "untaint", given: f(here, domain.NodeTainted{Taint: taint}), when: domain.UntaintNode{Key: "dedicated"},
			then: domain.NodeUntainted{Key: "dedicated"}},
		{name: "untaint twice", given: f(here), when: domain.UntaintNode{Key: "dedicated"}},
		{name: "register with invalid labels", fault: "INVALID_FIELDS", says: "labels",
			when: domain.RegisterNode{NodeSpec: domain.NodeSpec{Capacity: domain.Resources{CPUMilli: 1},
				Labels: map[string]string{strings.Repeat("x", 64): ""}}}},
	})
}

func TestAccountNodesAreSet(t *testing.T) {
	type D = decision[domain.Account]
	f := events[domain.Account]
	policy := domain.NodePolicy{Selector: map[string]string{"tier": "spot"},
		Tolerations: []domain.Taint{{Key: "dedicated", Value: "acme", Effect: domain.NoSchedule}}}
	made, set := domain.AccountCreated{}, domain.AccountNodesSet{NodePolicy: policy}
	decide(t, domain.Accounts, []D{
		{name: "set", given: f(made), when: domain.SetAccountNodes{NodePolicy: policy}, then: set},
		{name: "set twice", given: f(made, set), when: domain.SetAccountNodes{NodePolicy: policy}},
		{name: "remove", given: f(made, set), when: domain.SetAccountNodes{}, then: domain.AccountNodesSet{}},
		{name: "set for a missing account", when: domain.SetAccountNodes{}, fault: "NOT_FOUND"},
		{name: "set an invalid effect", given: f(made), fault: "INVALID_FIELDS",
			when: domain.SetAccountNodes{NodePolicy: domain.NodePolicy{Tolerations: []domain.Taint{{Key: "a"}}}},
			says: "tolerations[0]: has the effect"},
	})
}

// TestFeasibilityOfPolicies checks that feasibility obeys labels and taints and names what excludes
// a node.
func TestFeasibilityOfPolicies(t *testing.T) {
	taint := domain.Taint{Key: "dedicated", Value: "acme", Effect: domain.NoSchedule}
	node := domain.Node{State: domain.NodeReady, NodeSpec: domain.NodeSpec{Engines: []string{"train"},
		Capacity: domain.Resources{CPUMilli: 4000, MemoryMiB: 4096}, Labels: map[string]string{"tier": "spot"}}}
	tainted := node
	tainted.Taints = []domain.Taint{taint}
	for _, c := range []struct {
		name       string
		policy     domain.NodePolicy
		node       domain.Node
		infeasible bool
		says       string
	}{
		{"a label", domain.NodePolicy{Selector: map[string]string{"tier": "spot"}}, node, false,
			"with label tier=spot that can train, and 1 of 1 nodes have capacity now"},
		{"another label", domain.NodePolicy{Selector: map[string]string{"tier": "on-demand"}}, node, true,
			"(n1 lacks the label tier=on-demand): start an agent on such a node, or let the account use other nodes"},
		{"a taint", domain.NodePolicy{}, tainted, true, "(n1 has the taint dedicated=acme:NoSchedule)"},
		{"a tolerated taint", domain.NodePolicy{Tolerations: []domain.Taint{taint}}, tainted, false,
			"tolerating dedicated=acme:NoSchedule that can train, and 1 of 1"},
	} {
		need := domain.JobSpec{Method: domain.MethodSupervised}.Need()
		need.Policy = c.policy
		f := domain.FeasibilityOf(need, fleet(c.node))
		require.Equal(t, c.infeasible, f.Infeasible(), c.name)
		require.Contains(t, f.String(), c.says, c.name)
	}
}

// TestTaintsAreHiddenFromAccounts checks that a reason without names of nodes does not show the
// taints of nodes either: an operator writes names of other accounts in them.
func TestTaintsAreHiddenFromAccounts(t *testing.T) {
	var nodes []domain.Node
	for _, account := range []string{"acme", "umbrella"} {
		nodes = append(nodes, domain.Node{State: domain.NodeReady, NodeSpec: domain.NodeSpec{
			Engines: []string{"train"}, Capacity: domain.Resources{CPUMilli: 4000, MemoryMiB: 4096}},
			Taints: []domain.Taint{{Key: "dedicated", Value: account, Effect: domain.NoSchedule}}})
	}
	need := domain.JobSpec{Method: domain.MethodSupervised}.Need()
	text := domain.FeasibilityOf(need, fleet(nodes...)).WithoutNodeNames().String()
	require.Contains(t, text, "(has a taint that the account does not tolerate: 2 nodes)")
	for _, hidden := range []string{"dedicated", "acme", "umbrella"} {
		require.NotContains(t, text, hidden)
	}
}
