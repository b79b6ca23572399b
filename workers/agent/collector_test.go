package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

// gathered returns the metrics of an agent as lines NAME LABELS VALUE.
func gathered(t *testing.T, a *Agent) string {
	t.Helper()
	registry := prometheus.NewRegistry()
	a.Register(registry)
	families, err := registry.Gather()
	require.NoError(t, err)
	var all strings.Builder
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, label := range m.GetLabel() {
				labels = append(labels, label.GetValue())
			}
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			fmt.Fprintln(&all, family.GetName(), strings.Join(labels, " "), value)
		}
	}
	return all.String()
}

// TestMetricsOfAgent checks the metrics of devices, work, the cache and the connection.
func TestMetricsOfAgent(t *testing.T) {
	a, _ := watched(t)
	celsius, used, total := 61, 512, 23034
	a.devices.all = append(a.devices.all, engines.Device{Type: "other", Index: 3})
	a.devices.state[a.devices.all[3]] = &deviceState{}
	a.devices.state[a.devices.all[0]].reading = &reading{temperature: &celsius, usedMiB: &used, memoryMiB: &total}
	a.devices.state[a.devices.all[1]].failure = "ECC errors"
	a.devices.state[a.devices.all[2]].used = true
	a.cache.entries = map[string]*entry{"a": {size: 5, users: 1}, "b": {size: 7}, "c": {size: 8}}
	a.attempts = map[string]*attempt{"a": {phase: protocol.Training}, "b": {phase: protocol.Lost}}
	a.replicas = map[string]*replica{"a": {phase: domain.ReplicaReady}}
	a.meters.heartbeat(nil)
	a.meters.heartbeat(errors.New("no reply"))
	a.meters.heartbeat(domain.Errorf(domain.PermissionDenied, "revoked"))
	got := gathered(t, a)
	for _, line := range []string{"anneal_agent_info n1  1", "anneal_agent_devices free VENDOR_A_L4_24GB 1",
		"anneal_agent_devices failed VENDOR_A_L4_24GB 1", "anneal_agent_devices allocated VENDOR_A_L4_24GB 1",
		"anneal_agent_devices free other 1", "anneal_agent_devices failed other 0",
		"anneal_agent_device_temperature_celsius 0 VENDOR_A_L4_24GB 61",
		"anneal_agent_device_memory_used_bytes 0 VENDOR_A_L4_24GB 5.36870912e+08",
		"anneal_agent_device_memory_bytes 0 VENDOR_A_L4_24GB 2.4152899584e+10",
		"anneal_agent_attempts training 1", "anneal_agent_attempts preparing 0", "anneal_agent_replicas READY 1",
		"anneal_agent_cache_bytes used 5", "anneal_agent_cache_bytes idle 15",
		"anneal_agent_cache_limit_bytes  6.8719476736e+10",
		"anneal_agent_heartbeats_total accepted 1", "anneal_agent_heartbeats_total failed 1",
		"anneal_agent_heartbeats_total refused 1"} {
		require.Contains(t, strings.ToLower(got), strings.ToLower(line)+"\n")
	}
	require.Error(t, a.Connected())
}

// TestDeploymentsInMetricsAreLimited checks that the number of time series does not grow with the
// number of deployments that an agent has served.
func TestDeploymentsInMetricsAreLimited(t *testing.T) {
	a, _ := watched(t)
	for i := range 3 * maxNamed {
		a.meters.request(domain.NewName("acme", "deployments", fmt.Sprint("d", i)), time.Second,
			engines.Usage{PromptTokens: 2, CompletionTokens: 3}, nil)
	}
	got := gathered(t, a)
	require.Equal(t, maxNamed+1, strings.Count(got, "anneal_agent_requests_total "))
	require.Contains(t, got, "anneal_agent_requests_total acme d0 ok 1\n")
	require.Contains(t, got, fmt.Sprintf("anneal_agent_tokens_total _other _other completion %d\n", 3*2*maxNamed))
}
