package routing

import (
	"github.com/prometheus/client_golang/prometheus"

	"anneal/api/request"
	"anneal/api/routing/balance"
	"anneal/domain"
)

// balancerMetrics count the choices of replicas. The zero value counts nothing.
type balancerMetrics struct {
	choices *prometheus.CounterVec // by reason
	tokens  *prometheus.CounterVec // prompt tokens, by whether a replica was predicted to have them cached
	loads   prometheus.Counter
	breaks  prometheus.Counter
}

func newBalancerMetrics(registerer prometheus.Registerer) balancerMetrics {
	m := balancerMetrics{
		choices: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "anneal_route_choices_total",
			Help: "Choices of a replica for a request, by reason: tokens (fewest prompt tokens to process before the " +
				"answer) or session."}, []string{"reason"}),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "anneal_route_prompt_tokens_total",
			Help: "Estimated prompt tokens of requests, by whether the chosen replica was predicted to have them " +
				"cached: true or false."}, []string{"cached"}),
	}
	m.loads = prometheus.NewCounter(prometheus.CounterOpts{Name: "anneal_route_addon_loads_total",
		Help: "Requests sent to a replica that was predicted to load their addon before the answer."})
	m.breaks = prometheus.NewCounter(prometheus.CounterOpts{Name: "anneal_route_breakers_opened_total",
		Help: "Times that the circuit breaker of a replica opened, after consecutive failures before the first token."})
	registerer.MustRegister(m.choices, m.tokens, m.loads, m.breaks)
	return m
}

// opened records that the circuit breaker of a replica opened.
func (m balancerMetrics) opened(c *request.Call, deployment domain.Name, r domain.Replica, err error) {
	if m.breaks != nil {
		m.breaks.Inc()
	}
	c.Logger.Warn("circuit breaker of a replica opened: other replicas get its requests", "deployment",
		deployment, "replica", r.ID, "error", err)
}

func (m balancerMetrics) count(c balance.Choice) {
	if m.choices == nil {
		return
	}
	m.choices.WithLabelValues(c.Reason).Inc()
	if c.Load > 0 {
		m.loads.Inc()
	}
	m.tokens.WithLabelValues("true").Add(float64(c.Cached))
	m.tokens.WithLabelValues("false").Add(float64(c.Uncached))
}
