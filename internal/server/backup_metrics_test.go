package server

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"anneal/eventlog"
	"anneal/internal/backup"
)

func TestBackupMetrics(t *testing.T) {
	noon := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	all := []backup.Status{{Target: "/mnt/new"},
		{Target: "s3://b", Last: &backup.Summary{Checkpoint: eventlog.Checkpoint{Position: 40}, Time: noon.Add(-time.Hour)}}}
	registry := prometheus.NewRegistry()
	registry.MustRegister(newBackupMetrics(func() []backup.Status { return all }, func() uint64 { return 42 },
		func() time.Time { return noon }))
	values := func() map[string]float64 {
		families, err := registry.Gather()
		require.NoError(t, err)
		found := map[string]float64{}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				found[family.GetName()+" "+m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
		return found
	}
	require.Equal(t, map[string]float64{"anneal_backup_age_seconds s3://b": 3600,
		"anneal_backup_missing_events /mnt/new": 42, "anneal_backup_missing_events s3://b": 2}, values())
	all[1].Last.Position = 43 // the log was restored to an earlier position
	require.Zero(t, values()["anneal_backup_missing_events s3://b"])
}
