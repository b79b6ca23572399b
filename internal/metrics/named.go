package metrics

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"anneal/domain"
	"anneal/projections"
	"anneal/projections/live"
)

// maxNamed is the maximum number of accounts, of nodes and of deployments with metrics of their
// own: those with the most jobs, accelerators and desired replicas. The metrics of all others are
// summed under the name _other.
const (
	maxNamed = 500
	other    = "_other" // name of the sums of all others; cannot be an ID, because no ID begins with an underscore

	// maxLoadAge is the maximum age of a deployment's reported load. An older one is not exported.
	maxLoadAge = 30 * time.Second
)

var (
	accountJobs = prometheus.NewDesc("anneal_account_jobs", "Unfinished jobs, by account and state.",
		[]string{"account", "state"}, nil)
	nodeAccelerators = prometheus.NewDesc("anneal_node_accelerators", "Accelerators, by node, type and state: see "+
		"anneal_accelerators.", []string{"node", "type", "state"}, nil)
	temperature = prometheus.NewDesc("anneal_accelerator_temperature_celsius", "Temperature of an accelerator, as its "+
		"agent reported it.", []string{"node", "type", "index"}, nil)
	utilization = prometheus.NewDesc("anneal_accelerator_utilization_ratio", "Utilization of an accelerator, from 0 to 1.",
		[]string{"node", "type", "index"}, nil)
	deviceMemory = prometheus.NewDesc("anneal_accelerator_memory_used_bytes", "Used memory of an accelerator.",
		[]string{"node", "type", "index"}, nil)
	deploymentReplicas = prometheus.NewDesc("anneal_deployment_replicas", "Replicas, by deployment and state: see "+
		"anneal_replicas.", []string{"account", "deployment", "state"}, nil)
	inFlight = prometheus.NewDesc("anneal_deployment_requests_in_flight", "Running and waiting requests, on average "+
		"over the last 5 seconds: an input of the autoscaler.", []string{"account", "deployment"}, nil)
	requestRate = prometheus.NewDesc("anneal_deployment_requests_per_second", "Requests per second over the last 5 "+
		"seconds: an input of the autoscaler.", []string{"account", "deployment"}, nil)
	tokenRate = prometheus.NewDesc("anneal_deployment_tokens_per_second", "Tokens per second over the last 5 "+
		"seconds, by kind (prompt, completion): inputs of the autoscaler.", []string{"account", "deployment",
		"kind"}, nil)
	slots = prometheus.NewDesc("anneal_deployment_slots", "Requests that one ready replica serves concurrently.",
		[]string{"account", "deployment"}, nil)
)

// Named collects metrics that contain names of accounts, nodes and deployments. Only the operator
// may read them.
type Named struct {
	World *projections.World
	Now   func() time.Time
}

// Describe implements prometheus.Collector.
func (Named) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{accountJobs, nodeAccelerators, temperature, utilization, deviceMemory,
		deploymentReplicas, inFlight, requestRate, tokenRate, slots} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (c Named) Collect(ch chan<- prometheus.Metric) {
	v := c.World.View()
	collectAccounts(ch, v)
	collectEachNode(ch, v)
	collectDeployments(ch, v, c.Now())
}

// A ranking has counts by name and state, and a weight for each name.
type ranking struct {
	counts map[string]map[string]int
	weight map[string]int
}

func newRanking() *ranking { return &ranking{map[string]map[string]int{}, map[string]int{}} }

func (r *ranking) add(name, state string, n, weight int) {
	if r.counts[name] == nil {
		r.counts[name] = map[string]int{}
	}
	r.counts[name][state] += n
	r.weight[name] += weight
}

// top returns the names with the highest weights, at most maxNamed.
func (r *ranking) top() map[string]bool {
	names := slices.SortedFunc(maps.Keys(r.counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.weight[b], r.weight[a]), cmp.Compare(a, b))
	})
	first := map[string]bool{}
	for _, name := range names[:min(len(names), maxNamed)] {
		first[name] = true
	}
	return first
}

// each calls use with the counts of the top names, and with the sums of all other names under the
// name other.
func (r *ranking) each(use func(name, state string, n int)) {
	first, rest := r.top(), map[string]int{}
	for name, counts := range r.counts {
		for state, n := range counts {
			if first[name] {
				use(name, state, n)
			} else {
				rest[state] += n
			}
		}
	}
	for state, n := range rest {
		use(other, state, n)
	}
}

func collectAccounts(ch chan<- prometheus.Metric, v *projections.View) {
	accounts := newRanking()
	for row := range projections.UnfinishedJobs(v) {
		accounts.add(row.Name.Account(), row.State.Life().State, 1, 1)
	}
	accounts.each(func(account, state string, n int) { ch <- gauge(accountJobs, float64(n), account, state) })
}

func collectEachNode(ch chan<- prometheus.Metric, v *projections.View) {
	byType := map[string]*ranking{}
	named := newRanking()
	for row := range v.Nodes.All() {
		if !row.State.Registered() {
			continue
		}
		for kind, counts := range devicesOf(row.State) {
			if byType[kind] == nil {
				byType[kind] = newRanking()
			}
			for state, n := range counts {
				byType[kind].add(row.Name.ID(), state, n, n)
				named.add(row.Name.ID(), state, n, n)
			}
		}
	}
	for kind, nodes := range byType {
		nodes.each(func(node, state string, n int) { ch <- gauge(nodeAccelerators, float64(n), node, kind, state) })
	}
	for node := range named.top() {
		seen := map[string]bool{} // an agent can report the same device twice
		for _, d := range v.Live.Devices(domain.NewName(domain.System, domain.Nodes.Collection, node)) {
			if key := fmt.Sprint(d.Type, " ", d.Index); !seen[key] {
				seen[key] = true
				collectDevice(ch, node, d)
			}
		}
	}
}

func collectDevice(ch chan<- prometheus.Metric, node string, d live.Device) {
	labels := []string{node, d.Type, fmt.Sprint(d.Index)}
	if d.TemperatureC != nil {
		ch <- gauge(temperature, float64(*d.TemperatureC), labels...)
	}
	if d.UtilizationPercent != nil {
		ch <- gauge(utilization, float64(*d.UtilizationPercent)/100, labels...)
	}
	if d.MemoryUsedMiB != nil {
		ch <- gauge(deviceMemory, float64(*d.MemoryUsedMiB)*(1<<20), labels...)
	}
}

func collectDeployments(ch chan<- prometheus.Metric, v *projections.View, now time.Time) {
	all := newRanking()
	for row := range v.Deployments.All() {
		for state, n := range replicasOf(row.State) {
			all.add(string(row.Name), state, n, n)
		}
	}
	all.each(func(name, state string, n int) {
		account, id := labelsOf(name)
		ch <- gauge(deploymentReplicas, float64(n), account, id, state)
	})
	for name := range all.top() {
		if steps := v.Live.Loads(domain.Name(name)).Steps; len(steps) > 0 {
			if newest := steps[len(steps)-1]; now.Sub(newest.End) < maxLoadAge {
				collectLoad(ch, name, newest)
			}
		}
	}
}

func collectLoad(ch chan<- prometheus.Metric, name string, sample live.LoadSample) {
	account, id := labelsOf(name)
	ch <- gauge(inFlight, sample.InFlight, account, id)
	ch <- gauge(requestRate, sample.RequestsPerSecond, account, id)
	ch <- gauge(tokenRate, sample.PromptTokensPerSecond, account, id, "prompt")
	ch <- gauge(tokenRate, sample.TokensPerSecond, account, id, "completion")
	ch <- gauge(slots, sample.Slots, account, id)
}

// labelsOf returns the values of the labels account and deployment for the resource name of a
// deployment.
func labelsOf(name string) (account, id string) {
	if name == other {
		return other, other
	}
	return domain.Name(name).Account(), domain.Name(name).ID()
}
