package subscriptions

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the Prometheus metrics of deliveries. A nil *Metrics records nothing.
type Metrics struct {
	deliveries *prometheus.CounterVec
	files      prometheus.Counter

	mu       sync.Mutex
	sessions map[*session]bool
}

// NewMetrics creates the metrics and registers them.
func NewMetrics(registry prometheus.Registerer, now func() time.Time) *Metrics {
	m := &Metrics{
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "anneal_subscription_deliveries_total",
			Help: "Attempts to send an event to a webhook, by result: delivered, failed or dead_letter."}, []string{"result"}),
		files: prometheus.NewCounter(prometheus.CounterOpts{Name: "anneal_subscription_files_total",
			Help: "Files with events that were written to object stores."}),
		sessions: map[*session]bool{},
	}
	lag := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "anneal_subscription_lag_seconds",
		Help: "Age of the oldest event that an active subscription has not delivered; 0 on a control plane that does not " +
			"deliver."}, func() float64 { return m.lag(now()).Seconds() })
	registry.MustRegister(m.deliveries, m.files, lag)
	return m
}

// lag returns the age of the oldest event that a session of this process has not delivered; 0 when
// there is none.
func (m *Metrics) lag(now time.Time) (lag time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for s := range m.sessions {
		if oldest := s.oldest.Load(); oldest > 0 {
			lag = max(lag, now.Sub(time.Unix(0, oldest)))
		}
	}
	return lag
}

func (m *Metrics) begin(s *session) {
	if m != nil {
		m.mu.Lock()
		m.sessions[s] = true
		m.mu.Unlock()
	}
}

func (m *Metrics) end(s *session) {
	if m != nil {
		m.mu.Lock()
		delete(m.sessions, s)
		m.mu.Unlock()
	}
}

func (m *Metrics) count(r outcome) {
	if m != nil {
		m.deliveries.WithLabelValues("delivered").Add(float64(r.delivered))
		m.deliveries.WithLabelValues("failed").Add(float64(r.failed))
		m.deliveries.WithLabelValues("dead_letter").Add(float64(len(r.dead)))
	}
}

func (m *Metrics) wrote() {
	if m != nil {
		m.files.Inc()
	}
}
