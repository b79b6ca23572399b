package routing

import (
	"github.com/prometheus/client_golang/prometheus"

	"anneal/api/routing/balance"
)

// balancerMetrics count the choices of replicas. The zero value counts nothing.
type balancerMetrics struct {
	choices *prometheus.CounterVec // by reason
	tokens  *prometheus.CounterVec // prompt tokens, by whether a replica was predicted to have them cached
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
	registerer.MustRegister(m.choices, m.tokens)
	return m
}

func (m balancerMetrics) count(c balance.Choice) {
	if m.choices == nil {
		return
	}
	m.choices.WithLabelValues(c.Reason).Inc()
	m.tokens.WithLabelValues("true").Add(float64(c.Cached))
	m.tokens.WithLabelValues("false").Add(float64(c.Uncached))
}
