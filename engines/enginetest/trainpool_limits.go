package enginetest

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
)

// longData checks the limit of tokens of a datum, and that a low limit changes no results of data
// within it, which several runs compute at the same time.
func (s *poolSuite) longData(t *testing.T) {
	const limit = 50
	low := s.request(t, engines.TrainPoolRequest{Parallelism: 3, MaxTokens: limit})
	require.Equal(t, limit, low.MaxTokens())
	require.GreaterOrEqual(t, s.open(t, 1).MaxTokens(), limit)
	pass := func(rng *rand.Rand, n int) (p engines.TrainPass) {
		for i := range 12 {
			d := engines.TrainDatum{}
			for range n - i%2 {
				d.Tokens, d.Targets = append(d.Tokens, int32(rng.IntN(s.vocab))), append(d.Targets, int32(rng.IntN(s.vocab)))
			}
			p.Data = append(p.Data, d)
		}
		return p
	}
	r := mustCreate(t, low, 2, 1)
	before := stateOf(t, r)
	_, err := r.ForwardBackward(t.Context(), pass(rand.New(rand.NewPCG(1, 1)), limit+1))
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), "%v", err)
	require.Contains(t, err.Error(), "at most 50")
	require.Equal(t, before, stateOf(t, r))

	script := func(p engines.TrainPool, seed uint64) string {
		r, rng := mustCreate(t, p, 2, seed), rand.New(rand.NewPCG(seed, 1))
		for range 2 {
			mustBackward(t, r, pass(rng, limit))
			mustStep(t, r, adam())
		}
		return stateOf(t, r)
	}
	var all sync.WaitGroup
	for seed := range uint64(4) {
		want := script(s.open(t, 1), seed)
		all.Go(func() { assert.Equal(t, want, script(low, seed)) })
	}
	all.Wait()
}

// runBytes checks that the memory of open runs is bounded, and freed by Close.
func (s *poolSuite) runBytes(t *testing.T) {
	config := engines.TrainRunConfig{Rank: 4, TrainMLP: true}
	exhausted := func(err error) {
		t.Helper()
		require.Equal(t, domain.ResourceExhausted, domain.CodeOf(err), "%v", err)
		requireReason(t, err, engines.TrainRunsTooLarge)
	}
	_, err := s.request(t, engines.TrainPoolRequest{Parallelism: 1, RunBytes: 1}).CreateRun(t.Context(), config)
	exhausted(err)

	p := s.request(t, engines.TrainPoolRequest{Parallelism: 1, RunBytes: 1 << 20})
	var runs []engines.TrainRun
	for err == nil || len(runs) == 0 {
		var r engines.TrainRun
		if r, err = p.CreateRun(t.Context(), config); err == nil {
			runs = append(runs, r)
		}
		require.Less(t, len(runs), 1<<20)
	}
	exhausted(err)
	state := stateOf(t, runs[0])
	restore := func(state string) (engines.TrainRun, error) {
		return p.RestoreRun(t.Context(), strings.NewReader(state), engines.TrainRestoreOptions{})
	}
	_, err = restore(state)
	exhausted(err)
	require.NoError(t, runs[0].Close())
	require.NoError(t, runs[0].Close(), "a second time")
	for range 3 {
		_, err = restore(state[:len(state)-1])
		require.Equal(t, domain.DataLoss, domain.CodeOf(err), "a run that is not restored needs no memory: %v", err)
	}
	restored, err := restore(state)
	require.NoError(t, err)
	_, err = p.CreateRun(t.Context(), config)
	exhausted(err)
	for _, r := range append(slices.Clone(runs[1:]), restored) {
		require.NoError(t, r.Close())
	}
}
