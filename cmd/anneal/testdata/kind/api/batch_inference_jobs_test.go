package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
)

// TestBatchInferenceJobs creates, gets, lists, cancels and deletes a job of the added kind. No
// engine offers its method, so it waits. The reconciler, which does not run here,
// removes deleted jobs.
func TestBatchInferenceJobs(t *testing.T) {
	const jobs, job = "/v1/accounts/acme/batchInferenceJobs", "/v1/accounts/acme/batchInferenceJobs/b1"
	s := newHarness(t, request.Limits{})
	rejected := s.call(http.MethodPost, jobs, "user", `{"dataset": "accounts/acme/datasets/d"}`)
	require.Equal(t, 400, rejected.status)
	require.Contains(t, string(rejected.body), "model")
	created := s.ok(http.MethodPost, jobs+"?batchInferenceJobId=b1",
		`{"dataset": "accounts/acme/datasets/d", "model": "accounts/acme/models/m"}`).json(t)
	require.Equal(t, "JOB_STATE_CREATING", created["state"])
	require.Equal(t, "accounts/acme/batchInferenceJobs/b1", s.ok(http.MethodGet, job, "").json(t)["name"])
	require.EqualValues(t, 1, s.ok(http.MethodGet, jobs, "").json(t)["totalSize"])
	s.ok(http.MethodPost, job+":cancel", "")
	s.runPlans()
	require.Equal(t, "JOB_STATE_CANCELLED", s.ok(http.MethodGet, job, "").json(t)["state"])
	s.ok(http.MethodDelete, job, "")
	require.Equal(t, "JOB_STATE_DELETING", s.ok(http.MethodGet, job, "").json(t)["state"])
}
