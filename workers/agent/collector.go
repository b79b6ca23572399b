package agent

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"anneal/domain"
	"anneal/workers/protocol"
)

var (
	info = prometheus.NewDesc("anneal_agent_info", "The agent of this process: always 1.", []string{"node", "version"},
		nil)
	attemptsDesc = prometheus.NewDesc("anneal_agent_attempts", "Attempts of jobs on this node, by phase: preparing, "+
		"training, writing or stopping.", []string{"phase"}, nil)
	replicasDesc = prometheus.NewDesc("anneal_agent_replicas", "Replicas on this node, by state.", []string{"state"}, nil)
	devicesDesc  = prometheus.NewDesc("anneal_agent_devices", "Accelerators of this node, by type and state: free, "+
		"allocated or failed.", []string{"type", "state"}, nil)
	deviceTemperature = prometheus.NewDesc("anneal_agent_device_temperature_celsius", "Temperature of an accelerator, "+
		"if its driver reports it.", []string{"type", "index"}, nil)
	deviceUtilization = prometheus.NewDesc("anneal_agent_device_utilization_ratio", "Utilization of an accelerator, from "+
		"0 to 1, if its driver reports it.", []string{"type", "index"}, nil)
	deviceUsed = prometheus.NewDesc("anneal_agent_device_memory_used_bytes", "Used memory of an accelerator, if its "+
		"driver reports it.", []string{"type", "index"}, nil)
	deviceMemory = prometheus.NewDesc("anneal_agent_device_memory_bytes", "Memory of an accelerator, if its driver "+
		"reports it.", []string{"type", "index"}, nil)
	cacheBytes = prometheus.NewDesc("anneal_agent_cache_bytes", "Bytes of the file sets in the cache, by state: used or "+
		"idle.", []string{"state"}, nil)
	cacheLimit = prometheus.NewDesc("anneal_agent_cache_limit_bytes", "Maximum bytes of idle file sets in the cache.",
		nil, nil)
)

// Register registers the metrics of the agent.
func (a *Agent) Register(registry prometheus.Registerer) {
	registry.MustRegister(append(a.meters.collectors(), collector{a})...)
}

// collector collects the metrics of the agent's state.
type collector struct{ a *Agent }

// Describe implements prometheus.Collector.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{info, attemptsDesc, replicasDesc, devicesDesc, deviceTemperature,
		deviceUtilization, deviceUsed, deviceMemory, cacheBytes, cacheLimit} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	emit := func(desc *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	emit(info, 1, c.a.options.Node, c.a.options.Version)
	c.work(emit)
	for key, n := range c.a.devices.counts() {
		emit(devicesDesc, float64(n), key[0], key[1])
	}
	for _, device := range c.a.devices.status() {
		index := strconv.Itoa(device.Index)
		for _, one := range []struct {
			desc  *prometheus.Desc
			value *int
			scale float64
		}{{deviceTemperature, device.TemperatureC, 1}, {deviceUtilization, device.UtilizationPercent, 0.01},
			{deviceUsed, device.MemoryUsedMiB, 1 << 20}, {deviceMemory, device.MemoryMiB, 1 << 20}} {
			if one.value != nil {
				emit(one.desc, float64(*one.value)*one.scale, device.Type, index)
			}
		}
	}
	used, idle := c.a.cache.sizes()
	emit(cacheBytes, float64(used), "used")
	emit(cacheBytes, float64(idle), "idle")
	emit(cacheLimit, float64(c.a.cache.limit))
}

// work emits the numbers of attempts and replicas.
func (c collector) work(emit func(*prometheus.Desc, float64, ...string)) {
	attempts := map[string]int{protocol.Preparing: 0, protocol.Training: 0, protocol.Writing: 0, protocol.Stopping: 0}
	replicas := map[string]int{domain.ReplicaDownloading: 0, domain.ReplicaInitializing: 0, domain.ReplicaReady: 0,
		protocol.ReplicaFailed: 0}
	c.a.mu.Lock()
	for _, t := range c.a.attempts {
		t.mu.Lock()
		if t.phase != protocol.Lost { // the attempt has ended
			attempts[t.phase]++
		}
		t.mu.Unlock()
	}
	for _, r := range c.a.replicas {
		r.mu.Lock()
		replicas[r.phase]++
		r.mu.Unlock()
	}
	c.a.mu.Unlock()
	for phase, n := range attempts {
		emit(attemptsDesc, float64(n), phase)
	}
	for state, n := range replicas {
		emit(replicasDesc, float64(n), state)
	}
}

// counts returns the number of devices by type and state.
func (d *devices) counts() map[[2]string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	counts := map[[2]string]int{}
	for _, one := range d.all {
		for _, state := range []string{"free", "allocated", "failed"} {
			counts[[2]string{one.Type, state}] += 0
		}
		switch s := d.state[one]; {
		case s.failure != "":
			counts[[2]string{one.Type, "failed"}]++
		case s.used || len(s.users) > 0:
			counts[[2]string{one.Type, "allocated"}]++
		default:
			counts[[2]string{one.Type, "free"}]++
		}
	}
	return counts
}

// sizes returns the bytes of the file sets in the cache that are in use, and of those that are not.
func (c *cache) sizes() (used, idle int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries {
		if e.users > 0 {
			used += e.size
		} else {
			idle += e.size
		}
	}
	return used, idle
}

// Connected returns an error while the agent is not connected to NATS.
func (a *Agent) Connected() error {
	if conn := a.link.Load(); conn == nil || !conn.IsConnected() {
		return domain.Errorf(domain.Unavailable, "the agent is not connected to NATS")
	}
	return nil
}
