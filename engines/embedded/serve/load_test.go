package serve

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
)

// TestLoadIsExact checks the reported load of a model step by step.
func TestLoadIsExact(t *testing.T) {
	m, s := unstarted(t, weights(), Options{Slots: 2, ChunkTokens: 32, CacheBytes: 1 << 24, Parallelism: 1})
	report := func() engines.ModelLoad {
		reply := make(chan engines.ModelLoad, 1)
		m.loadCalls = append(m.loadCalls, reply)
		s.reportLoad()
		return <-reply
	}
	size := int64(s.pool.maxBlocks) * blockTokens
	require.Equal(t, engines.ModelLoad{CacheTokens: size}, report())
	send := func(prompt []int) *request {
		r, err := m.newRequest(t.Context(), engines.CompletionRequest{PromptTokens: prompt, MaxTokens: 3, IgnoreEOS: true})
		require.NoError(t, err)
		require.NoError(t, m.enqueue(r))
		return r
	}
	first := send(ids(100, 1))
	send(ids(60, 2))
	send(ids(50, 3))
	require.Equal(t, engines.ModelLoad{PendingTokens: 210, Waiting: 3, CacheTokens: size}, report())
	require.True(t, s.admit())
	require.Equal(t, engines.ModelLoad{PendingTokens: 210, Running: 2, Waiting: 1, CacheTokens: size}, report())
	s.step()
	load := report()
	require.Equal(t, engines.ModelLoad{PendingTokens: 178, Running: 2, Waiting: 1, CacheTokens: size,
		CacheUsed: 64}, load)
	for !first.ended {
		s.step()
	}
	s.removeEnded()
	ctx, cancel := context.WithCancel(t.Context())
	again, err := m.newRequest(ctx, engines.CompletionRequest{PromptTokens: ids(100, 1), MaxTokens: 3})
	require.NoError(t, err)
	before := report()
	require.NoError(t, m.enqueue(again))
	require.Equal(t, before.PendingTokens+100-96, report().PendingTokens, "three blocks are cached")
	cancel()
	require.Equal(t, before.PendingTokens, report().PendingTokens, "the client has disconnected")
}

// TestLoadOfServedModel checks that Load replies while the model is idle, and ends with the context and
// with the model.
func TestLoadOfServedModel(t *testing.T) {
	m := open(t, weights(), Options{}).(engines.LoadReporter)
	load, err := m.Load(t.Context())
	require.NoError(t, err)
	require.Positive(t, load.CacheTokens)
	require.Zero(t, load.PendingTokens)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _ = m.Load(ctx) // returns, although the reply may come first
	require.NoError(t, m.Close())
	_, err = m.Load(t.Context())
	require.Error(t, err)
}
