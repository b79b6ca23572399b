package twin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/api/routing/balance"
)

// TestSimulationsRepeat checks that equal options give equal results, for each policy.
func TestSimulationsRepeat(t *testing.T) {
	trace := mooncake(t)[:1500]
	for _, policy := range Policies {
		o := Options{Trace: trace, Speed: 2, Profile: profile(t, "h100", 300), Replicas: 3, Policy: policy, Gateways: 2,
			AnnounceDelay: 50 * time.Millisecond, Reports: true}
		first, err := Run(t.Context(), o)
		require.NoError(t, err)
		again, err := Run(t.Context(), o)
		require.NoError(t, err)
		assert.Equal(t, first, again, policy)
	}
}

// TestEngineTimes checks the cost model on requests whose times can be computed by hand.
func TestEngineTimes(t *testing.T) {
	p := Profile{Step: 10 * time.Millisecond, PromptToken: time.Millisecond, Token: 2 * time.Millisecond,
		ChunkTokens: 100, MaxRequests: 2, CacheBlocks: 100}
	blocks := []uint64{1}
	e := newEngine(p)
	a := &request{prompt: balance.Prompt{Tokens: 612, Blocks: blocks}, output: 3}
	now := time.Duration(0)
	steps := func(n int) {
		for range n {
			require.True(t, e.begin(now))
			now = e.stepEnd
			e.finish(now, func(*request) {}, func(*request) {})
		}
	}
	e.waiting = append(e.waiting, a)
	assert.EqualValues(t, 612, e.pending())
	steps(7) // 6 steps with 100 tokens, and one with 12
	assert.Equal(t, 7*p.Step+612*p.PromptToken, a.first)
	steps(2)
	assert.Equal(t, a.first+2*(p.Step+p.Token), a.end)
	b := &request{prompt: balance.Prompt{Tokens: 612, Blocks: blocks}, output: 1}
	e.waiting = append(e.waiting, b)
	assert.EqualValues(t, 100, e.pending(), "the first block is cached")
	begun := now
	steps(1)
	assert.EqualValues(t, 512, b.cached)
	assert.Equal(t, begun+p.Step+100*p.PromptToken, b.end)
	assert.False(t, e.begin(now), "nothing is left")
	assert.Zero(t, e.context)
	assert.Zero(t, e.cache.private)
	assert.EqualValues(t, 1, e.cache.evictable)
}

// TestCacheEvicts checks that only blocks of requests that ended are evicted, the oldest first.
func TestCacheEvicts(t *testing.T) {
	c := newCache(4)
	require.True(t, c.reserve([]uint64{1, 2}, 1))
	assert.False(t, c.reserve([]uint64{3, 4}, 0), "all blocks are pinned")
	require.True(t, c.reserve([]uint64{1, 3}, 0))
	c.release([]uint64{1, 2}, 1)
	c.release([]uint64{1, 3}, 0)
	require.True(t, c.reserve([]uint64{4, 5}, 0))
	assert.EqualValues(t, 1, c.leading([]uint64{1, 2}), "the block at the end was evicted")
	assert.EqualValues(t, 2, c.leading([]uint64{1, 3}))
}

func TestTracesAreChecked(t *testing.T) {
	for text, want := range map[string]string{
		`{"timestamp": 0, "input_length": 0, "output_length": 1}`: "line 1: input_length is 0",
		"\n" + `{"timestamp": -1, "input_length": 1, "output_length": 1}`: "line 2: input_length is 1, output_length 1 " +
			"and timestamp -1",
		"x": "line 1 is not a JSON object",
	} {
		_, err := DecodeTrace(strings.NewReader(text))
		assert.ErrorContains(t, err, want)
	}
	trace, err := DecodeTrace(strings.NewReader(
		`{"timestamp": 1500, "account": "a", "input_length": 1100, "output_length": 7, "hash_ids": [4, 5, 6]}`))
	require.NoError(t, err)
	assert.Equal(t, []TraceRequest{{Time: 1500 * time.Millisecond, Account: "a", Output: 7,
		Prompt: balance.Prompt{Tokens: 1100, Blocks: []uint64{5, 6}}}}, trace, "the incomplete block is not cached")
	_, ok := ProfileNamed("a100")
	assert.False(t, ok)
	assert.Equal(t, []string{"g8k", "h100"}, ProfileNames())
	for _, o := range []Options{{}, {Trace: trace, Speed: 1}, {Trace: trace, Replicas: 1}} {
		_, err = Run(t.Context(), o)
		assert.Error(t, err, fmt.Sprint(o))
	}
}
