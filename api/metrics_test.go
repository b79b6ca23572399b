package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"anneal/api/request"
)

// TestMetricsWithNamesAreForTheOperator checks that only the operator reads metrics with names, and that
// --private-metrics closes all of them.
func TestMetricsWithNamesAreForTheOperator(t *testing.T) {
	named := prometheus.NewRegistry()
	jobs := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "anneal_account_jobs", Help: "Jobs."}, []string{"account"})
	jobs.WithLabelValues("acme").Set(3)
	named.MustRegister(jobs)
	for _, private := range []bool{false, true} {
		s := startHarness(t, epoch, request.Limits{}, func(o *Options) { o.Named, o.PrivateMetrics = named, private })
		s.createAccounts()
		for _, row := range []struct {
			path, key string
			private   int // status with PrivateMetrics
			public    int
		}{
			{"/metrics", "", http.StatusUnauthorized, http.StatusOK},
			{"/metrics", "admin", http.StatusForbidden, http.StatusOK},
			{"/metrics", "operator", http.StatusOK, http.StatusOK},
			{"/metrics/detailed", "", http.StatusUnauthorized, http.StatusUnauthorized},
			{"/metrics/detailed", "admin", http.StatusForbidden, http.StatusForbidden},
			{"/metrics/detailed", "operator", http.StatusOK, http.StatusOK},
		} {
			want := row.public
			if private {
				want = row.private
			}
			a := s.call("GET", row.path, row.key, "")
			require.Equal(t, want, a.status, "%s with key %q: %s", row.path, row.key, a.body)
			if a.status != http.StatusOK {
				continue
			}
			require.Contains(t, string(a.body), "anneal_world_position")
			require.Equal(t, row.path == "/metrics/detailed", strings.Contains(string(a.body),
				`anneal_account_jobs{account="acme"} 3`))
		}
	}
}
