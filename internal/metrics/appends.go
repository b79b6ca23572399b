package metrics

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"anneal/eventlog"
)

// Appends registers the metric of appends to the log. It returns the function that
// eventlog.JetStream.Measure calls after each append.
func Appends(registry prometheus.Registerer) func(time.Duration, error) {
	took := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "anneal_log_append_seconds",
		Help: "Time until an event was durable, by result: appended, conflict (another event of the resource came first) " +
			"or failed.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15)}, []string{"result"})
	registry.MustRegister(took)
	return func(d time.Duration, err error) {
		result := "appended"
		switch {
		case errors.Is(err, eventlog.ErrConflict):
			result = "conflict"
		case err != nil:
			result = "failed"
		}
		took.WithLabelValues(result).Observe(d.Seconds())
	}
}
