// Package metrics exports metrics of the cluster to Prometheus: jobs, nodes, accelerators, replicas
// and events, as they are in the world when Prometheus reads the metrics.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"anneal/domain"
	"anneal/projections"
)

// Values of the label state in anneal_accelerators.
const (
	deviceFree      = "free"
	deviceAllocated = "allocated"
	deviceFailed    = "failed"
	deviceCordoned  = "cordoned" // device without an allocation on a cordoned node
	deviceLost      = "lost"     // device on a lost node, with or without an allocation
)

var (
	jobs = prometheus.NewDesc("anneal_jobs", "Unfinished jobs, by kind and state.", []string{"kind", "state"}, nil)
	wait = prometheus.NewDesc("anneal_job_wait_seconds", "Time since the job that has waited longest for nodes was "+
		"queued, by kind; 0 when none waits.", []string{"kind"}, nil)
	nodes        = prometheus.NewDesc("anneal_nodes", "Registered nodes, by state.", []string{"state"}, nil)
	accelerators = prometheus.NewDesc("anneal_accelerators", "Accelerators of the registered nodes, by type and state: "+
		"free, allocated, failed, cordoned (free, on a cordoned node) or lost (on a lost node). A shared accelerator "+
		"is allocated.",
		[]string{"type", "state"}, nil)
	replicas = prometheus.NewDesc("anneal_replicas", "Replicas of all deployments: desired, starting or ready.",
		[]string{"state"}, nil)
	waiting = prometheus.NewDesc("anneal_deployments_waiting", "Deployments that have fewer replicas than desired, "+
		"because no node can hold another one.", nil, nil)
	lacking = prometheus.NewDesc("anneal_deployment_wait_seconds", "Time since the deployment that has waited longest "+
		"for replicas lacks them; 0 when none waits.", nil, nil)
	events = prometheus.NewDesc("anneal_events_total", "Events that this process has applied since it started, by type.",
		[]string{"type"}, nil)
)

// Cluster collects metrics that contain no names of accounts, resources or nodes.
type Cluster struct {
	World *projections.World
	Now   func() time.Time
}

// Describe implements prometheus.Collector.
func (Cluster) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{jobs, wait, nodes, accelerators, replicas, waiting, lacking, events} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (c Cluster) Collect(ch chan<- prometheus.Metric) {
	v := c.World.View()
	collectJobs(ch, v, c.Now())
	collectNodes(ch, v)
	collectReplicas(ch, v, c.Now())
	for kind, n := range projections.Applied(c.World) {
		ch <- prometheus.MustNewConstMetric(events, prometheus.CounterValue, float64(n), kind)
	}
}

func collectJobs(ch chan<- prometheus.Metric, v *projections.View, now time.Time) {
	counts, waits := map[[2]string]int{}, map[string]time.Duration{}
	for kind := range domain.JobKinds() {
		waits[kind.CollectionID()] = 0
		for _, state := range []string{domain.JobPendingState, domain.JobRunningState} {
			counts[[2]string{kind.CollectionID(), state}] = 0
		}
	}
	for row := range projections.UnfinishedJobs(v) {
		kind, life := row.Name.Collection(), row.State.Life()
		counts[[2]string{kind, life.State}]++
		if life.State == domain.JobPendingState && life.QueueTime != nil {
			waits[kind] = max(waits[kind], now.Sub(*life.QueueTime))
		}
	}
	for key, n := range counts {
		ch <- gauge(jobs, float64(n), key[:]...)
	}
	for kind, longest := range waits {
		ch <- gauge(wait, longest.Seconds(), kind)
	}
}

func collectNodes(ch chan<- prometheus.Metric, v *projections.View) {
	states, devices := map[string]int{domain.NodeReady: 0, domain.NodeLostState: 0}, map[[2]string]int{}
	for row := range v.Nodes.All() {
		if !row.State.Registered() {
			continue
		}
		states[row.State.State]++
		for kind, byState := range devicesOf(row.State) {
			for state, n := range byState {
				devices[[2]string{kind, state}] += n
			}
		}
	}
	for state, n := range states {
		ch <- gauge(nodes, float64(n), state)
	}
	for key, n := range devices {
		ch <- gauge(accelerators, float64(n), key[:]...)
	}
}

// devicesOf returns the numbers of a node's accelerators, by type and state.
func devicesOf(node domain.Node) map[string]map[string]int {
	counts := map[string]map[string]int{}
	used, free := node.Used(), deviceFree
	if node.Cordon != nil {
		free = deviceCordoned
	}
	of := func(kind string) map[string]int {
		if counts[kind] == nil {
			counts[kind] = map[string]int{free: 0, deviceAllocated: 0, deviceFailed: 0}
		}
		return counts[kind]
	}
	for kind, n := range node.Capacity.Accelerators {
		if node.State != domain.NodeReady {
			of(kind)[deviceLost] += n
			continue
		}
		allocated := min(n, used.Accelerators[kind])
		of(kind)[deviceAllocated] += allocated
		of(kind)[free] += n - allocated
	}
	for _, failed := range node.FailedDevices {
		of(failed.Type)[deviceFailed]++
	}
	return counts
}

func collectReplicas(ch chan<- prometheus.Metric, v *projections.View, now time.Time) {
	states, short, longest := map[string]int{}, 0, time.Duration(0)
	for row := range v.Deployments.All() {
		for state, n := range replicasOf(row.State) {
			states[state] += n
		}
		if row.State.Live() && !row.State.Short.Desired.IsZero() {
			short++
			longest = max(longest, now.Sub(row.State.Short.Since()))
		}
	}
	for _, state := range replicaStates {
		ch <- gauge(replicas, float64(states[state]), state)
	}
	ch <- gauge(waiting, float64(short))
	ch <- gauge(lacking, longest.Seconds())
}

// Values of the label state in metrics of replicas. desired also counts replicas that are not
// placed yet.
const (
	replicasDesired  = "desired"
	replicasStarting = "starting"
	replicasReady    = "ready"
)

var replicaStates = []string{replicasDesired, replicasStarting, replicasReady}

func replicasOf(d domain.Deployment) map[string]int {
	counts := map[string]int{}
	if d.Live() {
		counts[replicasDesired] = d.DesiredReplicas
	}
	for _, r := range d.Replicas {
		if r.State == domain.ReplicaReady {
			counts[replicasReady]++
		} else {
			counts[replicasStarting]++
		}
	}
	return counts
}

func gauge(desc *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}
