package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"anneal/domain"
	"anneal/engines"
)

// maxNamed is the maximum number of deployments with metrics of their own since the agent started. The
// metrics of all further deployments are added up under the labels otherNames.
const (
	maxNamed   = 200
	otherNames = "_other" // cannot be an ID, because no ID begins with an underscore
)

// meters are the metrics that the agent counts. A collector computes those of its state. A nil *meters
// counts nothing.
type meters struct {
	heartbeats, attempts, downloads, requests, tokens *prometheus.CounterVec
	bytes                                             prometheus.Counter
	loads, latency                                    *prometheus.HistogramVec

	mu    sync.Mutex
	named map[domain.Name]bool // deployments with metrics of their own
}

func newMeters() *meters {
	return &meters{named: map[domain.Name]bool{},
		heartbeats: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "anneal_agent_heartbeats_total",
			Help: "Heartbeats of the agent, by result: accepted, refused by the control plane, or failed (no reply)."},
			[]string{"result"}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "anneal_agent_attempts_ended_total",
			Help: "Attempts of jobs that have ended on the agent's node, by result: ok, failed or interrupted."},
			[]string{"result"}),
		downloads: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "anneal_agent_downloads_total",
			Help: "Downloads of models, datasets and other file sets, by result: ok, failed or canceled."},
			[]string{"result"}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{Name: "anneal_agent_download_bytes_total",
			Help: "Bytes of the file sets that the agent has downloaded."}),
		loads: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "anneal_agent_load_seconds",
			Help:    "Time that the engine took to load a model, by result: ok, failed or canceled.",
			Buckets: prometheus.ExponentialBuckets(0.1, 3, 9)}, []string{"result"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "anneal_agent_requests_total",
			Help: "Requests that the engine has served, by deployment and result: ok, failed or canceled."},
			[]string{"account", "deployment", "result"}),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "anneal_agent_tokens_total",
			Help: "Tokens that the engine has processed, by deployment and kind: prompt or completion."},
			[]string{"account", "deployment", "kind"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "anneal_agent_request_seconds",
			Help:    "Time that the engine took for a request, by deployment.",
			Buckets: prometheus.ExponentialBuckets(0.005, 4, 9)}, []string{"account", "deployment"}),
	}
}

func (m *meters) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.heartbeats, m.attempts, m.downloads, m.bytes, m.loads, m.requests, m.tokens, m.latency}
}

// outcomeOf returns the value of the label result for an operation that ended with err.
func outcomeOf(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	return "failed"
}

func (m *meters) heartbeat(err error) {
	if m == nil {
		return
	}
	result := "accepted"
	var refused *domain.Error
	switch {
	case errors.As(err, &refused):
		result = "refused"
	case err != nil:
		result = "failed"
	}
	m.heartbeats.WithLabelValues(result).Inc()
}

func (m *meters) attempt(result string) {
	if m != nil {
		m.attempts.WithLabelValues(result).Inc()
	}
}

func (m *meters) load(took time.Duration, err error) {
	if m != nil {
		m.loads.WithLabelValues(outcomeOf(err)).Observe(took.Seconds())
	}
}

func (m *meters) downloaded(bytes int64, err error) {
	if m == nil {
		return
	}
	m.downloads.WithLabelValues(outcomeOf(err)).Inc()
	if err == nil {
		m.bytes.Add(float64(bytes))
	}
}

func (m *meters) request(deployment domain.Name, took time.Duration, usage engines.Usage, err error) {
	if m == nil {
		return
	}
	account, id := m.labels(deployment)
	m.requests.WithLabelValues(account, id, outcomeOf(err)).Inc()
	m.tokens.WithLabelValues(account, id, "prompt").Add(float64(usage.PromptTokens))
	m.tokens.WithLabelValues(account, id, "completion").Add(float64(usage.CompletionTokens))
	m.latency.WithLabelValues(account, id).Observe(took.Seconds())
}

// labels returns the labels of a deployment, at most maxNamed different ones besides otherNames.
func (m *meters) labels(deployment domain.Name) (account, id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.named[deployment] && len(m.named) >= maxNamed {
		return otherNames, otherNames
	}
	m.named[deployment] = true
	return deployment.Account(), deployment.ID()
}
