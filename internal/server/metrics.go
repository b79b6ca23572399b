package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"anneal/disk"
	"anneal/internal/metrics"
)

// namedMetrics registers the metrics of the cluster and of the process with the public registry. It
// returns the metrics with names of accounts, nodes and deployments, which only the operator may
// read.
func namedMetrics(s *Server) prometheus.Gatherer {
	metrics.Process(s.metrics, disk.On(s.flags.Data), s.events.Connected)
	s.metrics.MustRegister(&metrics.Cached{Collector: metrics.Cluster{World: s.world, Now: time.Now}, Now: time.Now})
	s.metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "anneal_usage_records_waiting",
		Help: "Usage records on the disk of this process that the stream USAGE has not acknowledged yet."},
		func() float64 { return float64(s.meter.Waiting()) }))
	s.named.MustRegister(&metrics.Cached{Collector: metrics.Named{World: s.world, Now: time.Now}, Now: time.Now})
	return s.named
}
