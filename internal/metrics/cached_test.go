package metrics_test

import (
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"anneal/internal/metrics"
)

// counted counts how often it is collected.
type counted struct {
	prometheus.Collector
	times int
}

// Collect implements prometheus.Collector.
func (c *counted) Collect(ch chan<- prometheus.Metric) {
	c.times++
	c.Collector.Collect(ch)
}

// TestCachedMetrics checks that concurrent and frequent reads collect the metrics once, and that
// later reads collect them again.
func TestCachedMetrics(t *testing.T) {
	now, gauge := noon, prometheus.NewGauge(prometheus.GaugeOpts{Name: "g", Help: "g"})
	inner := &counted{Collector: gauge}
	registry := prometheus.NewRegistry()
	registry.MustRegister(&metrics.Cached{Collector: inner, Now: func() time.Time { return now }})
	read := func() float64 {
		families, err := registry.Gather()
		require.NoError(t, err)
		return families[0].GetMetric()[0].GetGauge().GetValue()
	}
	gauge.Set(1)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { require.InDelta(t, 1.0, read(), 0) })
	}
	all.Wait()
	require.Equal(t, 1, inner.times)
	now = now.Add(metrics.MaxAge)
	gauge.Set(2)
	require.InDelta(t, 2.0, read(), 0)
	now = noon // the clock is set back
	gauge.Set(3)
	require.InDelta(t, 3.0, read(), 0)
	require.Equal(t, 3, inner.times)
}
