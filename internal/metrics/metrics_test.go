package metrics_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/internal/metrics"
	"anneal/projections"
	"anneal/projections/live"
)

const l4 = "NVIDIA_L4_24GB"

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// A cluster is a world that follows a log in memory.
type cluster struct {
	*testing.T
	log   *eventlog.Memory
	world *projections.World
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{t, eventlog.NewMemory(), projections.NewWorld()}
	go func() { _ = c.world.Run(t.Context(), c.log) }()
	return c
}

func (c *cluster) do(intent domain.Intent) {
	c.Helper()
	result, err := eventlog.Do(c.Context(), c.log, c.world, eventlog.Request{Time: noon, Actor: "test"}, intent)
	require.NoError(c, err)
	require.NoError(c, c.world.WaitFor(c.Context(), result.Position()))
}

func (c *cluster) node(id string, commands ...domain.Command[domain.Node]) domain.Name {
	name := domain.NewName(domain.System, domain.Nodes.Collection, id)
	for _, command := range append([]domain.Command[domain.Node]{
		domain.RegisterNode{NodeSpec: domain.NodeSpec{Engines: []string{"train"}, Capacity: domain.Resources{CPUMilli: 8000,
			MemoryMiB: 8192, Accelerators: map[string]int{l4: 4}},
			FailedDevices: []domain.FailedDevice{{Type: l4, Index: 4, Reason: "ECC errors"}}}}}, commands...) {
		c.do(domain.Intend(domain.Nodes, name, command))
	}
	return name
}

func (c *cluster) job(account, id string) {
	name := domain.NewName(account, domain.SupervisedJobs.Collection, id)
	c.do(domain.Intend(domain.SupervisedJobs, name, domain.CreateSupervisedJob{ID: id,
		SupervisedSpec: domain.SupervisedSpec{Dataset: "accounts/acme/datasets/rows"}}))
	c.do(domain.IntendJob(name, domain.StartValidation{}))
	c.do(domain.IntendJob(name, domain.QueueJob{}))
}

func (c *cluster) gathered(collector prometheus.Collector) string {
	c.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	families, err := registry.Gather()
	require.NoError(c, err)
	var all strings.Builder
	for _, family := range families {
		for _, m := range family.GetMetric() {
			labels := []string{}
			for _, label := range m.GetLabel() {
				labels = append(labels, label.GetValue())
			}
			fmt.Fprintln(&all, family.GetName(), strings.Join(labels, " "), m.GetGauge().GetValue()+m.GetCounter().GetValue())
		}
	}
	return all.String()
}

func (c *cluster) now() time.Time { return noon.Add(time.Minute) }

// TestClusterMetrics checks the metrics of jobs, nodes, accelerators, replicas and events.
func TestClusterMetrics(t *testing.T) {
	c := newCluster(t)
	c.node("a", domain.PlaceAllocation{Allocation: domain.Allocation{ID: "x", Resources: domain.Resources{CPUMilli: 1000,
		Accelerators: map[string]int{l4: 3}}}})
	c.node("b", domain.CordonNode{})
	c.node("c", domain.LoseNode{Reason: "silent"})
	c.job("acme", "one")
	c.job("acme", "two")
	got := c.gathered(metrics.Cluster{World: c.world, Now: c.now})
	for _, line := range []string{
		"anneal_jobs supervisedFineTuningJobs JOB_STATE_PENDING 2", "anneal_jobs dpoJobs JOB_STATE_RUNNING 0",
		"anneal_job_wait_seconds supervisedFineTuningJobs 60", "anneal_job_wait_seconds dpoJobs 0",
		"anneal_nodes READY 2", "anneal_nodes LOST 1",
		"anneal_accelerators allocated NVIDIA_L4_24GB 3", "anneal_accelerators free NVIDIA_L4_24GB 1",
		"anneal_accelerators cordoned NVIDIA_L4_24GB 4", "anneal_accelerators lost NVIDIA_L4_24GB 4",
		"anneal_accelerators failed NVIDIA_L4_24GB 3",
		"anneal_replicas desired 0", "anneal_deployments_waiting  0",
		"anneal_deployment_wait_seconds  0", "anneal_events_total node.registered.v1 3",
	} {
		require.Contains(t, got, line+"\n")
	}
}

// TestAppendsAreMeasured checks the result of each append.
func TestAppendsAreMeasured(t *testing.T) {
	registry := prometheus.NewRegistry()
	measure := metrics.Appends(registry)
	measure(time.Millisecond, nil)
	measure(time.Millisecond, fmt.Errorf("account a: %w", eventlog.ErrConflict))
	measure(time.Second, eventlog.ErrUncertain)
	measure(time.Second, context.Canceled)
	families, err := registry.Gather()
	require.NoError(t, err)
	counts := map[string]uint64{}
	for _, m := range families[0].GetMetric() {
		counts[m.GetLabel()[0].GetValue()] = m.GetHistogram().GetSampleCount()
	}
	require.Equal(t, map[string]uint64{"appended": 1, "conflict": 1, "failed": 2}, counts)
}

// TestNamedMetricsAreLimited checks that the names with the most jobs are exported, and the sum of
// the others.
func TestNamedMetricsAreLimited(t *testing.T) {
	c := newCluster(t)
	for i := range 501 {
		c.job(fmt.Sprintf("account-%03d", i), "one")
	}
	for id := range 2 {
		c.job("account-500", fmt.Sprint("more", id))
	}
	node := c.node("a")
	celsius, percent := 60, 75
	c.world.Live().SetDevices(node, []live.Device{{Type: l4, TemperatureC: &celsius, UtilizationPercent: &percent},
		{Type: l4, TemperatureC: &celsius}}, noon)
	named := metrics.Named{World: c.world, Now: c.now}
	got := c.gathered(named)
	require.Equal(t, 501, strings.Count(got, "anneal_account_jobs "))
	for _, line := range []string{"anneal_account_jobs account-500 JOB_STATE_PENDING 3",
		"anneal_account_jobs _other JOB_STATE_PENDING 1", "anneal_node_accelerators a free NVIDIA_L4_24GB 4",
		"anneal_accelerator_temperature_celsius 0 a NVIDIA_L4_24GB 60",
		"anneal_accelerator_utilization_ratio 0 a NVIDIA_L4_24GB 0.75"} {
		require.Contains(t, got, line+"\n")
	}
	require.NotContains(t, got, "account-499")
}
