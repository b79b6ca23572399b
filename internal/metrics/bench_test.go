package metrics_test

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/internal/metrics"
	"anneal/projections"
)

// BenchmarkScrape measures how long the metrics of the cluster (/metrics) and those with names
// (/metrics/detailed) are collected with 10,000 deployments, 10,000 jobs and 1000 nodes.
func BenchmarkScrape(b *testing.B) {
	log, world := eventlog.NewMemory(), projections.NewWorld()
	go func() { _ = world.Run(b.Context(), log) }()
	var last uint64
	do := func(intent domain.Intent) {
		change, err := eventlog.Do(b.Context(), log, world, eventlog.Request{Time: noon, Actor: "test"}, intent)
		require.NoError(b, err)
		last = change.Position()
		require.NoError(b, world.WaitFor(b.Context(), last))
	}
	for i := range 10_000 {
		account := fmt.Sprintf("account-%03d", i%1000)
		do(domain.Intend(domain.Deployments, domain.NewName(account, "deployments", fmt.Sprint("d", i)),
			domain.CreateDeployment{DeploymentSpec: domain.DeploymentSpec{BaseModel: "accounts/system/models/m",
				MinReplicaCount: 1}}))
		job := domain.NewName(account, domain.SupervisedJobs.Collection, fmt.Sprint("j", i))
		do(domain.Intend(domain.SupervisedJobs, job, domain.CreateSupervisedJob{ID: job.ID(),
			SupervisedSpec: domain.SupervisedSpec{Dataset: "accounts/acme/datasets/rows"}}))
	}
	for i := range 1000 {
		do(domain.Intend(domain.Nodes, domain.NewName(domain.System, "nodes", fmt.Sprint("n", i)), domain.RegisterNode{
			NodeSpec: domain.NodeSpec{Engines: []string{"train"}, Capacity: domain.Resources{CPUMilli: 8000,
				MemoryMiB: 8192, Accelerators: map[string]int{l4: 8}}}}))
	}
	for name, collector := range map[string]prometheus.Collector{
		"cached":  &metrics.Cached{Collector: metrics.Cluster{World: world, Now: (&cluster{}).now}, Now: (&cluster{}).now},
		"cluster": metrics.Cluster{World: world, Now: (&cluster{}).now},
		"named":   metrics.Named{World: world, Now: (&cluster{}).now},
	} {
		b.Run(name, func(b *testing.B) {
			registry := prometheus.NewRegistry()
			registry.MustRegister(collector)
			b.ReportAllocs()
			for b.Loop() {
				_, err := registry.Gather()
				require.NoError(b, err)
			}
		})
	}
}
