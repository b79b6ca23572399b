package batches

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs/reconcile/faults"
	"anneal/domain"
	"anneal/eventlog/secrets"
)

// TestFaultsAtEveryEffect injects a fault at each effect of a batch: the files with its results, its
// output files and its events. After a restart and a reconciliation, the world and the files must
// agree, and the batch must complete with one result for each request.
func TestFaultsAtEveryEffect(t *testing.T) {
	faults.AtEveryEffect(t, 7, runWithFault)
}

// runWithFault runs a batch until the effect with the number at has been attempted, and restarts the
// runner without the plan. With 0 the batch runs to its end.
func runWithFault(t *testing.T, plan *faults.Plan, at int) {
	b := newHarness(t)
	b.gateway.respond = func(ctx context.Context, prompt string) Response {
		if prompt == "r1" {
			return Response{Status: 400, Body: []byte(`{}`)}
		}
		return echo(ctx, prompt)
	}
	b.create(time.Now(), requests(3))
	b.plan.Store(plan)
	stop := b.start()
	if at == 0 {
		b.until(domain.BatchCompletedState)
	} else {
		require.Eventually(t, func() bool { return len(plan.Steps()) >= at }, time.Minute, time.Millisecond)
	}
	stop()
	b.plan.Store(nil)
	agree := func() {
		t.Helper()
		vault := secrets.NewMemoryVault()
		world, err := faults.Restart(t.Context(), b.log, b.blobs, vault)
		require.NoError(t, err)
		require.NoError(t, faults.Agree(t.Context(), world.View(), b.blobs, vault))
	}
	agree()
	b.start()
	end := b.until(domain.BatchCompletedState)
	require.Equal(t, domain.BatchCounts{Total: 3, Completed: 2, Failed: 1}, end.Counts)
	require.Len(t, b.file(end.Results.Output), 2)
	require.Len(t, b.file(end.Results.Errors), 1)
	agree()
}
