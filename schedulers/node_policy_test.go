package schedulers_test

import (
	"testing"

	"anneal/domain"
	"anneal/schedulers"
)

// TestPlacementObeysLabelsAndTaints checks that jobs, gangs and replicas are placed only on nodes
// with the labels that their account requires, and not on nodes with taints that it does not
// tolerate; what is running stays.
func TestPlacementObeysLabelsAndTaints(t *testing.T) {
	s := newHarnessWithInputs(t)
	taint := domain.Taint{Key: "dedicated", Value: "acme", Effect: domain.NoSchedule}
	s.given(onNode("n1", domain.RegisterNode{NodeSpec: domain.NodeSpec{Engines: []string{"train", "complete"},
		Capacity: domain.Resources{CPUMilli: 4000, MemoryMiB: 4096}, Labels: map[string]string{"tier": "spot"}}}))
	s.given(onNode("n1", domain.TaintNode{Taint: taint}))
	s.pending(1, "single")
	s.given(deployment("d1", 1, 1, nil))
	s.comment("the only node has a taint")
	s.execute(schedulers.Jobs{}, schedulers.Replicas{})
	s.given(onAccount(domain.SetAccountNodes{NodePolicy: domain.NodePolicy{Tolerations: []domain.Taint{taint}}}))
	s.execute(schedulers.Jobs{}, schedulers.Replicas{})
	s.comment("the account's next work needs a label that only n2 has; what is running stays")
	s.given(onAccount(domain.SetAccountNodes{NodePolicy: domain.NodePolicy{
		Selector: map[string]string{"tier": "on-demand"}}}))
	s.pending(1, "next")
	s.execute(schedulers.Jobs{}, schedulers.Replicas{}, schedulers.Nodes{})
	s.given(onNode("n2", domain.RegisterNode{NodeSpec: domain.NodeSpec{Engines: []string{"train", "complete"},
		Capacity: domain.Resources{CPUMilli: 4000, MemoryMiB: 4096}, Labels: map[string]string{"tier": "on-demand"}}}))
	s.execute(schedulers.Jobs{})
	s.compare("nodes_policy")
}
