package schedulers_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/schedulers"
)

// TestEndedBatchesAreRemoved checks that a batch is removed domain.EndedBatchesStay after its end,
// and that a batch whose input file does not exist fails.
func TestEndedBatchesAreRemoved(t *testing.T) {
	s := newHarness(t)
	const name, file = domain.Name("accounts/acme/batches/b"), domain.Name("accounts/acme/batchFiles/f")
	s.do(domain.Intend(domain.Batches, name, domain.CreateBatch{BatchSpec: domain.BatchSpec{Input: file,
		Endpoint: "/v1/embeddings", Window: domain.BatchWindow}}))
	s.do(schedulers.Batches{}.Plan(s.world.View(), s.now).Steps[0].Intents()...)
	row, ok := s.world.View().Batches.Get(name)
	require.True(t, ok)
	require.Equal(t, domain.BatchFailedState, row.State.State)
	require.Contains(t, row.State.Failures[0].Message, file)

	due := row.State.EndTime.Add(domain.EndedBatchesStay)
	plan := schedulers.Batches{}.Plan(s.world.View(), due.Add(-time.Nanosecond))
	require.Empty(t, plan.Steps)
	require.Equal(t, due, plan.Again)
	s.do(schedulers.Batches{}.Plan(s.world.View(), due).Steps[0].Intents()...)
	_, ok = s.world.View().Batches.Get(name)
	require.False(t, ok)
}
