package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// MaxAge is the age up to which Cached metrics are reused.
const MaxAge = time.Second

// Cached is a collector whose metrics are collected at most once in MaxAge. Collecting the metrics
// of the cluster walks all deployments, jobs and nodes, and anyone may read these metrics. Cached
// bounds the CPU time of the reads, however many there are.
type Cached struct {
	prometheus.Collector
	Now func() time.Time

	mu      sync.Mutex // also held while the metrics are collected, so that concurrent reads wait for one collection
	at      time.Time
	metrics []prometheus.Metric
}

// Collect implements prometheus.Collector.
func (c *Cached) Collect(ch chan<- prometheus.Metric) {
	for _, metric := range c.recent() {
		ch <- metric
	}
}

func (c *Cached) recent() []prometheus.Metric {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.Now(); c.at.IsZero() || now.Sub(c.at) >= MaxAge || now.Before(c.at) {
		collected := make(chan prometheus.Metric)
		go func() {
			defer close(collected)
			c.Collector.Collect(collected)
		}()
		c.metrics = make([]prometheus.Metric, 0, len(c.metrics))
		for metric := range collected {
			c.metrics = append(c.metrics, metric)
		}
		c.at = now
	}
	return c.metrics
}
