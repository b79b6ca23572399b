package routing

import (
	"cmp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"anneal/api/routing/admission"
	"anneal/domain"
)

// queueMetrics has the metrics of all admission queues together. The zero value counts nothing.
type queueMetrics struct {
	wait *prometheus.HistogramVec // by class
}

func newQueueMetrics(registerer prometheus.Registerer) queueMetrics {
	m := queueMetrics{wait: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "anneal_admission_wait_seconds",
		Help: "Time that requests waited in the admission queue of a deployment, by class: interactive or batch. " +
			"Requests that did not wait are not counted.",
		Buckets: []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}}, []string{"class"})}
	registerer.MustRegister(m.wait)
	return m
}

func (m *queueMetrics) waited(class admission.Class, d time.Duration) {
	if m != nil && m.wait != nil {
		m.wait.WithLabelValues(Priorities[class]).Observe(d.Seconds())
	}
}

// maxQueueSeries is the maximum number of deployments with metrics of their queues: those with the
// most waiting requests, and of these those that were used last.
const maxQueueSeries = 200

// The metrics of each queue.
var (
	queueLabels   = []string{"deployment", "class"}
	queueRequests = prometheus.NewDesc("anneal_admission_waiting_requests",
		"Requests that wait in the admission queue of a deployment, by class. The next request of an account is sent after "+
			"at most these.", queueLabels, nil)
	queueTokens = prometheus.NewDesc("anneal_admission_waiting_tokens",
		"Estimated prompt tokens of the requests that wait in the admission queue of a deployment, by class.",
		queueLabels, nil)
	queueAdmitted = prometheus.NewDesc("anneal_admission_admitted_total",
		"Requests that the admission queue of a deployment sent to a replica, by class.", queueLabels, nil)
	queueRefused = prometheus.NewDesc("anneal_admission_refused_total",
		"Requests that the admission queue of a deployment refused with 429, by class.", queueLabels, nil)
	queueHonoured = prometheus.NewDesc("anneal_admission_tickets_honoured_total",
		"Refused requests that returned in time and were admitted, by deployment and class.", queueLabels, nil)
)

// queueCollector collects the metrics of the admission queues.
type queueCollector struct{ balancers *balancers }

// Describe implements prometheus.Collector.
func (queueCollector) Describe(out chan<- *prometheus.Desc) {
	for _, one := range []*prometheus.Desc{queueRequests, queueTokens, queueAdmitted, queueRefused, queueHonoured} {
		out <- one
	}
}

// Collect implements prometheus.Collector.
func (c queueCollector) Collect(out chan<- prometheus.Metric) {
	type row struct {
		deployment domain.Name
		used       time.Time
		count      int
		waiting    [2]int
		tokens     [2]int64
		counts     queueCounts
	}
	var rows []row
	for _, found := range c.balancers.all() {
		q := found.queue
		one := row{deployment: q.deployment, used: found.used}
		q.mu.Lock()
		one.counts, one.count = q.counts, len(q.waiting)
		for _, w := range q.waiting {
			one.waiting[w.request.Class]++
			one.tokens[w.request.Class] += w.request.Prompt
		}
		q.mu.Unlock()
		rows = append(rows, one)
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.count, a.count), b.used.Compare(a.used), cmp.Compare(a.deployment, b.deployment))
	})
	for _, one := range rows[:min(len(rows), maxQueueSeries)] {
		for class, name := range Priorities {
			send := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64) {
				out <- prometheus.MustNewConstMetric(desc, kind, value, string(one.deployment), name)
			}
			send(queueRequests, prometheus.GaugeValue, float64(one.waiting[class]))
			send(queueTokens, prometheus.GaugeValue, float64(one.tokens[class]))
			send(queueAdmitted, prometheus.CounterValue, float64(one.counts.admitted[class]))
			send(queueRefused, prometheus.CounterValue, float64(one.counts.refused[class]))
			send(queueHonoured, prometheus.CounterValue, float64(one.counts.honoured[class]))
		}
	}
}

// all returns copies of the entries of all deployments.
func (b *balancers) all() []deploymentBalancer {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []deploymentBalancer
	for _, found := range b.byDeployment {
		out = append(out, *found)
	}
	return out
}
