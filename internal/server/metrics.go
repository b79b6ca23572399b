package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"anneal/disk"
	"anneal/internal/metrics"
)

// namedMetrics registers the metrics of the cluster and of the process, and returns those with the names
// of accounts, nodes and deployments.
func (s *Server) namedMetrics() prometheus.Gatherer {
	metrics.Process(s.metrics, disk.On(s.flags.Data), s.events.Connected)
	s.metrics.MustRegister(metrics.Cluster{World: s.world, Now: time.Now})
	named := prometheus.NewRegistry()
	named.MustRegister(metrics.Named{World: s.world, Now: time.Now})
	return named
}
