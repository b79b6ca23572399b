package batches

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
)

// TestRetries checks that a request is retried without a limit while capacity is missing, and only
// a few times while the server fails.
func TestRetries(t *testing.T) {
	b := newHarness(t)
	b.gateway.respond = func(ctx context.Context, prompt string) Response {
		switch {
		case prompt == "r0" && b.gateway.times("r0") < 2:
			return Response{Status: 429, Waits: true}
		case prompt == "r2" && b.gateway.times("r2") < 2:
			return Response{Status: 503, Unreachable: true}
		case prompt == "r1":
			return Response{Status: 500, Failed: true, Body: []byte(`{}`)}
		}
		return echo(ctx, prompt)
	}
	b.create(time.Now(), requests(3))
	b.start()
	end := b.until(domain.BatchCompletedState)
	require.Equal(t, domain.BatchCounts{Total: 3, Completed: 2, Failed: 1}, end.Counts)
	require.Equal(t, 2, b.gateway.times("r0"))
	require.Equal(t, 2, b.gateway.times("r2"))
	require.Equal(t, maxFailures, b.gateway.times("r1"))
	require.Equal(t, 500, b.file(end.Results.Errors)["r1"].Response.StatusCode)
}

// TestInteractiveRequestsFirst checks the number of requests in progress, with and without clients
// that wait for responses of the deployment.
func TestInteractiveRequestsFirst(t *testing.T) {
	for interactive, limit := range map[bool]int{true: maxBesideOthers, false: maxOfBatch} {
		b := newHarness(t)
		b.gateway.interactive = interactive
		b.gateway.respond = func(ctx context.Context, prompt string) Response {
			if !interactive { // wait until the other requests of the batch have arrived
				for b.inside() < maxOfBatch && ctx.Err() == nil {
					eventlog.Sleep(ctx, time.Millisecond)
				}
			}
			return echo(ctx, prompt)
		}
		b.create(time.Now(), requests(maxOfBatch))
		b.start()
		b.until(domain.BatchCompletedState)
		require.Equal(t, limit, b.gateway.highest)
	}
}

func (b *harness) inside() int {
	b.gateway.mu.Lock()
	defer b.gateway.mu.Unlock()
	return b.gateway.highest
}

// TestGates checks that each refusal closes the gate of its account for longer than the previous
// one.
func TestGates(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	gateway := &fakeGateway{slots: 2*maxOfDeployment + 2}
	g := newGates(gateway, func() time.Time { return now })
	one, other := route{"acme", deployment}, route{"globex", deployment}
	for _, length := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		require.True(t, g.tryEnter(one))
		require.True(t, g.tryEnter(one))
		g.leave(one, true)
		g.leave(one, true)
		require.True(t, g.tryEnter(other), "another account")
		g.leave(other, false)
		now = now.Add(length*time.Second - 1)
		require.False(t, g.tryEnter(one))
		now = now.Add(1)
	}
	require.True(t, g.tryEnter(one))
	g.leave(one, false)
	require.True(t, g.tryEnter(one))
	g.leave(one, false)
	require.Empty(t, g.inside)
	require.Empty(t, g.pauses)
	for slots, limit := range map[int]int{0: 1, 1: 1, 8: 4, 100: maxOfDeployment} {
		gateway.slots = slots
		for range limit {
			require.True(t, g.tryEnter(one))
		}
		require.False(t, g.tryEnter(other), "the limit of the deployment")
		for range limit {
			g.leave(one, false)
		}
	}
}
