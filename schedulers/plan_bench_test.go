package schedulers_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/schedulers"
)

// BenchmarkPlan measures one plan of each of the main schedulers for 1,000 nodes, 1,000 deployments
// and 10,000 jobs, of which 4,000 run and 6,000 wait. The first plan is made while all jobs wait.
func BenchmarkPlan(b *testing.B) {
	log, world := eventlog.NewMemory(), projections.NewWorld()
	do := func(intents ...domain.Intent) {
		for _, intent := range intents {
			_, err := eventlog.Do(b.Context(), log, world, eventlog.Request{Time: noon}, intent)
			require.NoError(b, err)
			for e, err := range log.Read(b.Context(), "events.>", world.Position()) {
				require.NoError(b, err)
				require.NoError(b, world.Apply(e))
			}
		}
	}
	do(account())
	do(baseModel("base"))
	for _, intent := range dataset("rows", domain.ShapeChat, 3) {
		do(intent)
	}
	for i := range 1000 {
		do(node(fmt.Sprintf("n%d", i), "", 4, nil))
	}
	for i := range 10000 {
		id := fmt.Sprintf("j%d", i)
		do(job(id, nil))
		do(onJob(id, domain.StartValidation{}))
		do(onJob(id, domain.QueueJob{}))
	}
	for i := range 1000 {
		do(deployment(fmt.Sprintf("d%d", i), 0, 1, nil))
	}
	measure := func(name string, s schedulers.Scheduler) {
		view := world.View()
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.Plan(view, noon)
			}
		})
	}
	measure("jobs, all waiting", schedulers.Jobs{})
	for world.View().Nodes.Len() > 0 {
		steps := schedulers.Jobs{}.Plan(world.View(), noon).Steps
		for _, step := range steps {
			do(step.Intents()...)
		}
		if len(steps) == 0 {
			break
		}
	}
	measure("jobs, all full", schedulers.Jobs{})
	measure("replicas", schedulers.Replicas{})
	measure("nodes", schedulers.Nodes{})
	measure("allocations", schedulers.Allocations{})
	measure("expiry", schedulers.Expiry{})
}
