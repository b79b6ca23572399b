package twin

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/api/routing/balance"
)

// TestRequestsLargerThanTheCache checks that a simulation does not wait forever for a request that
// no replica can hold.
func TestRequestsLargerThanTheCache(t *testing.T) {
	trace := []TraceRequest{{Prompt: balance.Prompt{Tokens: 1600, Blocks: []uint64{1, 2, 3}}, Output: 100}}
	o := Options{Trace: trace, Speed: 1, Profile: profile(t, "h100", 3), Replicas: 1, Policy: PolicyTokens}
	_, err := Run(t.Context(), o)
	assert.ErrorContains(t, err, "request 1 of the trace needs 4 blocks of the cache, which has 3")
	o.Profile.CacheBlocks = 4
	_, err = Run(t.Context(), o)
	assert.NoError(t, err)
}

// TestSimulationsAreCancelled checks that a simulation ends with its context.
func TestSimulationsAreCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Run(ctx, Options{Trace: mooncake(t), Speed: 1, Profile: profile(t, "h100", 840), Replicas: 8,
		Policy: PolicyTokens})
	assert.ErrorIs(t, err, context.Canceled)
}

// TestTracesAreBounded checks that numbers with which a simulation would overflow are rejected.
func TestTracesAreBounded(t *testing.T) {
	for _, text := range []string{
		`{"timestamp": 0, "input_length": 100000001, "output_length": 1}`,
		`{"timestamp": 0, "input_length": 1, "output_length": 100000001}`,
		`{"timestamp": 31536000001, "input_length": 1, "output_length": 1}`,
	} {
		_, err := DecodeTrace(strings.NewReader(text))
		assert.ErrorContains(t, err, "line 1:", text)
	}
	_, err := DecodeTrace(strings.NewReader(`{"timestamp": 31536000000, "input_length": 100000000, "output_length": 1}`))
	require.NoError(t, err)
}
