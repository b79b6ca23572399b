package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// TestBatchInferenceJobIsCreated creates and cancels a job of the added kind.
func TestBatchInferenceJobIsCreated(t *testing.T) {
	require.Contains(t, domain.Kinds, domain.AnyKind(domain.BatchInferenceJobs))
	var job domain.BatchInferenceJob
	_, err := domain.CreateBatchInferenceJob{}.Decide(job, noon)
	require.ErrorContains(t, err, "model: is required")
	event, err := domain.CreateBatchInferenceJob{
		BatchInferenceSpec: domain.BatchInferenceSpec{Dataset: "accounts/acme/datasets/d", Model: "accounts/acme/models/m"},
	}.Decide(job, noon)
	require.NoError(t, err)
	event.Evolve(&job)
	cancelled, err := domain.CancelJob{}.Decide(job.JobLife, noon)
	require.NoError(t, err)
	cancelled.Evolve(&job.JobLife)
	require.Equal(t, "JOB_STATE_CANCELLING", job.StateName())
}
