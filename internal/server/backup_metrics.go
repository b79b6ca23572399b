package server

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"anneal/internal/backup"
)

// backupMetrics are metrics of the backups to each target: their age, and the events that a restore
// would lack now.
type backupMetrics struct {
	all      func() []backup.Status
	position func() uint64
	now      func() time.Time

	mu      sync.Mutex // serializes calls of Collect, which set the fields age and missing
	age     *prometheus.GaugeVec
	missing *prometheus.GaugeVec
}

func newBackupMetrics(all func() []backup.Status, position func() uint64, now func() time.Time) *backupMetrics {
	return &backupMetrics{all: all, position: position, now: now,
		age: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "anneal_backup_age_seconds",
			Help: "Age of the state in the last complete backup to a target; absent before the first backup."},
			[]string{"target"}),
		missing: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "anneal_backup_missing_events",
			Help: "Number of events in the log that the last complete backup to a target lacks."}, []string{"target"})}
}

// Describe implements prometheus.Collector.
func (m *backupMetrics) Describe(out chan<- *prometheus.Desc) {
	m.age.Describe(out)
	m.missing.Describe(out)
}

// Collect implements prometheus.Collector.
func (m *backupMetrics) Collect(out chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.age.Reset()
	m.missing.Reset()
	position := m.position()
	for _, one := range m.all() {
		var last uint64
		if one.Last != nil {
			last = one.Last.Position
			m.age.WithLabelValues(one.Target).Set(m.now().Sub(one.Last.Time).Seconds())
		}
		m.missing.WithLabelValues(one.Target).Set(float64(position - min(last, position)))
	}
	m.age.Collect(out)
	m.missing.Collect(out)
}
