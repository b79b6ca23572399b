package api

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/domain"
	"anneal/projections"
)

// A job that is made again under a deleted ID shows nothing of the one before,
// not even when the files of that, or what was heard of it, are still there.
func TestJobsShowNothingOfANamesake(t *testing.T) {
	s := newStage(t, Limits{})
	const path = "/v1/accounts/acme/dpoJobs"
	name := domain.Name("accounts/acme/dpoJobs/again")
	create := func() {
		a := s.call("POST", path+"?dpoJobId=again", "user", `{"dataset": "accounts/acme/datasets/rows"}`)
		require.Equal(t, 200, a.status, "%s", a.body)
	}
	a := s.call("POST", "/v1/accounts/acme/datasets", "user", `{"datasetId": "rows", "dataset": {}}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	create()
	made := madeAt(s, name)
	s.world.Pulse().Report(name, projections.Progress{Made: made, Attempt: 1, Step: 5, Steps: 10}, projections.MetricRow{Step: 5, Values: map[string]float64{"train/loss": 1}})
	_, err := s.store.Put(s.Context(), blobs.MetricsFile(name, made), strings.NewReader("{}\n"))
	require.NoError(t, err)
	a = s.call("GET", path+"/again", "user", "")
	require.Contains(t, string(a.body), `"percent":50`)
	a = s.call("GET", path+"/again:getMetricsFileEndpoint", "user", "")
	require.Equal(t, 200, a.status, "%s", a.body)

	s.do(domain.IntendJob(name, domain.DeleteJob{}))
	s.do(domain.IntendJob(name, domain.CleanJob{}))
	s.do(domain.IntendJob(name, domain.PurgeJob{}))
	create()
	a = s.call("GET", path+"/again", "user", "")
	require.Equal(t, 200, a.status, "%s", a.body)
	require.NotContains(t, string(a.body), "jobProgress")
	a = s.call("GET", path+"/again:getMetricsFileEndpoint", "user", "")
	require.Equal(t, 400, a.status, "%s", a.body)
	require.Contains(t, string(a.body), "NO_METRICS")
}
