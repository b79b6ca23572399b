package coordinator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

// TestProbesReachEveryNode checks that all nodes with replicas are probed in turn, those without
// replicas never, and those whose heartbeat is overdue each time.
func TestProbesReachEveryNode(t *testing.T) {
	log, world, now := eventlog.NewMemory(), projections.NewWorld(), time.Now()
	do := func(name domain.Name, command domain.Command[domain.Node]) {
		change, err := eventlog.Do(t.Context(), log, world, eventlog.Request{Time: now},
			domain.Intend(domain.Nodes, name, command))
		require.NoError(t, err)
		require.NoError(t, world.WaitFor(t.Context(), change.Position()))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = world.Run(ctx, log) }()
	const nodes = maxProbes + 30
	for i := range nodes {
		name := nodeName(fmt.Sprintf("n%03d", i))
		do(name, domain.RegisterNode{NodeSpec: domain.NodeSpec{Engines: []string{"complete"},
			Capacity: domain.Resources{CPUMilli: 1000, MemoryMiB: 1000}}})
		if i >= 10 {
			do(name, domain.PlaceAllocation{Allocation: domain.Allocation{ID: "d#r1", For: deploymentOf("d"), Replica: "r1",
				Resources: domain.Resources{CPUMilli: 100, MemoryMiB: 10}}})
		}
		if i != 11 { // the heartbeat of this node is overdue
			world.Live().Heartbeat(name, now)
		}
	}
	p, counts := prober{world: world}, map[string]int{}
	for range 3 {
		chosen := p.next(world.View(), now)
		require.Len(t, chosen, maxProbes)
		for _, name := range chosen {
			counts[name.ID()]++
		}
	}
	require.Len(t, counts, nodes-10)
	require.Equal(t, 3, counts["n011"])
	require.NotContains(t, counts, "n009")
}

func deploymentOf(id string) domain.Name {
	return domain.NewName("acme", domain.Deployments.Collection, id)
}
