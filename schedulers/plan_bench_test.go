package schedulers_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/schedulers"
)

// processTime returns the CPU time of this process in seconds.
func processTime(b *testing.B) float64 {
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

// BenchmarkPlan measures one plan of each of the main schedulers for 1,000 nodes, 1,000 deployments
// and 10,000 jobs, of which 4,000 run and 6,000 wait. The first plan is made while all jobs wait.
func BenchmarkPlan(b *testing.B) { benchmarkPlans(b, nil) }

// BenchmarkPlanWithAccelerators is BenchmarkPlan on nodes with four accelerators each. Each job and
// each replica takes one.
func BenchmarkPlanWithAccelerators(b *testing.B) { benchmarkPlans(b, map[string]int{h100: 4}) }

func benchmarkPlans(b *testing.B, accelerators map[string]int) {
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
		do(node(fmt.Sprintf("n%d", i), "", 4, accelerators))
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
			placed, start := 0, processTime(b)
			for b.Loop() {
				for _, step := range s.Plan(view, noon).Steps {
					placed += len(step.Reserve)
				}
			}
			seconds := processTime(b) - start
			b.ReportMetric(1000*seconds/float64(b.N), "CPU-ms/op")
			if placed > 0 {
				b.ReportMetric(float64(placed)/seconds, "placements/CPU-s")
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

// BenchmarkPlanOfStrategies measures a plan that places 1 or 100 replicas with one accelerator
// each, for each placement strategy, on nodes with eight accelerators in 16 zones.
func BenchmarkPlanOfStrategies(b *testing.B) {
	for _, nodes := range []int{100, 1_000, 10_000} {
		for _, strategy := range domain.PlacementStrategies {
			for _, replicas := range []int{1, 100} {
				b.Run(fmt.Sprintf("%d nodes/%s/%d replicas", nodes, strategy, replicas), func(b *testing.B) {
					world, position := projections.NewWorld(), uint64(0)
					apply := func(name domain.Name, record domain.Record, err error) {
						require.NoError(b, err)
						position++
						require.NoError(b, world.Apply(eventlog.Event{Record: record, Name: name, Position: position, Time: noon}))
					}
					for i := range nodes {
						record, err := domain.Nodes.Encode(domain.NodeRegistered{NodeSpec: domain.NodeSpec{Engines: []string{"complete"},
							Capacity: domain.Resources{CPUMilli: 64_000, MemoryMiB: 1 << 20, Accelerators: map[string]int{l4: 8}},
							Labels:   map[string]string{domain.ZoneLabel: fmt.Sprint(i % 16)}}})
						apply(nodeName(fmt.Sprintf("n%d", i)), record, err)
					}
					record, err := domain.Models.Encode(domain.ModelRegistered{ModelSpec: domain.ModelSpec{Kind: domain.BaseModel}})
					apply(modelName("base"), record, err)
					spec := domain.DeploymentSpec{BaseModel: string(modelName("base")), MinReplicaCount: replicas,
						PlacementStrategy: strategy, AcceleratorType: l4, AcceleratorCount: 1}
					record, err = domain.Deployments.Encode(domain.DeploymentCreated{DeploymentSpec: spec, Time: noon})
					apply(deploymentName("d1"), record, err)
					view := world.View()
					for b.Loop() {
						require.Len(b, schedulers.Replicas{}.Plan(view, noon).Steps, replicas)
					}
				})
			}
		}
	}
}

// BenchmarkPlanOfDefragmentation measures a plan of the first move, on nodes with eight
// accelerators, each of which has a replica with one, while 0, 1 or 20 replicas wait that need all
// eight.
func BenchmarkPlanOfDefragmentation(b *testing.B) {
	for _, nodes := range []int{100, 1_000, 10_000} {
		for _, waits := range []int{0, 1, 20} {
			b.Run(fmt.Sprintf("%d nodes/%d wait", nodes, waits), func(b *testing.B) {
				world, position := projections.NewWorld(), uint64(0)
				apply := func(name domain.Name, record domain.Record, err error) {
					require.NoError(b, err)
					position++
					require.NoError(b, world.Apply(eventlog.Event{Record: record, Name: name, Position: position, Time: noon}))
				}
				deploy := func(id string, devices, minimum int, at time.Time) {
					spec := domain.DeploymentSpec{BaseModel: string(modelName("base")), MinReplicaCount: minimum, AcceleratorType: l4,
						AcceleratorCount: devices}
					record, err := domain.Deployments.Encode(domain.DeploymentCreated{DeploymentSpec: spec, Time: at})
					apply(deploymentName(id), record, err)
				}
				record, err := domain.Models.Encode(domain.ModelRegistered{ModelSpec: domain.ModelSpec{Kind: domain.BaseModel}})
				apply(modelName("base"), record, err)
				deploy("small", 1, nodes, noon)
				for i := range nodes {
					name, id := nodeName(fmt.Sprintf("n%d", i)), fmt.Sprintf("r%d", i+1)
					record, err := domain.Nodes.Encode(domain.NodeRegistered{NodeSpec: domain.NodeSpec{Engines: []string{"complete"},
						Capacity: domain.Resources{CPUMilli: 64_000, MemoryMiB: 1 << 20, Accelerators: map[string]int{l4: 8}}}})
					apply(name, record, err)
					record, err = domain.Nodes.Encode(domain.AllocationPlaced{Allocation: domain.Allocation{
						ID: domain.ReplicaAllocationID(deploymentName("small"), id), For: deploymentName("small"), Replica: id,
						Resources: domain.Resources{Accelerators: map[string]int{l4: 1}}, Since: noon}})
					apply(name, record, err)
					record, err = domain.Deployments.Encode(domain.ReplicaPlaced{ID: id, Node: name, Generation: 1})
					apply(deploymentName("small"), record, err)
					record, err = domain.Deployments.Encode(domain.ReplicaAdvanced{ID: id, State: domain.ReplicaReady})
					apply(deploymentName("small"), record, err)
				}
				record, err = domain.Deployments.Encode(domain.DeploymentBecameReady{Generation: 1})
				apply(deploymentName("small"), record, err)
				for i := range waits {
					deploy(fmt.Sprintf("large%d", i), 8, 1, noon.Add(time.Duration(i)))
				}
				view, scheduler := world.View(), schedulers.Replicas{PlaceWithin: 24 * time.Hour}
				for b.Loop() {
					require.Len(b, scheduler.Plan(view, noon.Add(time.Hour)).Steps, min(1, waits))
				}
			})
		}
	}
}
