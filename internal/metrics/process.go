package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"anneal/disk"
)

// Process registers metrics of this process: of the Go runtime, of the operating system, the free
// space on the disk of the data directory, and whether the process is connected to NATS. connected
// returns nil if it is.
func Process(registry prometheus.Registerer, space *disk.Space, connected func() error) {
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "anneal_disk_free_bytes",
			Help: "Free space on the disk of the data directory; -1 if unknown."}, func() float64 {
			if free, known := space.Free(); known {
				return float64(free)
			}
			return -1
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "anneal_nats_connected",
			Help: "1 if the process is connected to NATS, otherwise 0."}, func() float64 {
			if connected() != nil {
				return 0
			}
			return 1
		}))
}
