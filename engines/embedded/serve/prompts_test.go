package serve

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/engines/embedded/llama"
)

// stepped returns a model whose scheduler does not run, and the scheduler, so that the test
// executes the steps.
func stepped(t *testing.T, w *llama.Weights, o Options) (*model, *scheduler) {
	m, s := unstarted(t, w, o)
	t.Cleanup(func() { close(m.done) })
	return m, s
}

// enqueue adds a request to the model's queue and returns it without waiting for its result.
func enqueue(t *testing.T, m *model, ctx context.Context, req engines.CompletionRequest) *request {
	r, err := m.newRequest(ctx, req)
	require.NoError(t, err)
	require.NoError(t, m.enqueue(r))
	return r
}

// TestChunkedPrefill checks that decoding requests get a token in each step of a long prefill,
// and that a short prompt does not wait for the end of the prefill.
func TestChunkedPrefill(t *testing.T) {
	w := weights(func(c *llama.Config) { c.MaxPositions = 2000 })
	m, s := stepped(t, w, Options{ChunkTokens: 64})
	running := enqueue(t, m, t.Context(),
		engines.CompletionRequest{PromptTokens: ids(3, 1), MaxTokens: 99, IgnoreEOS: true})
	s.admit()
	s.step()
	require.Equal(t, 1, running.generated)
	long := enqueue(t, m, t.Context(),
		engines.CompletionRequest{PromptTokens: ids(1000, 2), MaxTokens: 9, IgnoreEOS: true})
	s.admit()
	s.step()
	require.Equal(t, 64, long.read, "the only prompt gets all prompt tokens of a step")
	short := enqueue(t, m, t.Context(), engines.CompletionRequest{PromptTokens: ids(30, 3), MaxTokens: 9, IgnoreEOS: true})
	middle := enqueue(t, m, t.Context(),
		engines.CompletionRequest{PromptTokens: ids(90, 4), MaxTokens: 9, IgnoreEOS: true})
	s.admit()
	s.step()
	require.Equal(t, 1, short.generated, "the prompt with the fewest remaining tokens is first")
	require.Equal(t, 64+32, long.read, "the oldest prompt gets at least half of the tokens")
	for steps := 3; long.read < 1000; steps++ {
		require.Equal(t, steps, running.generated)
		before := long.read
		s.step()
		require.GreaterOrEqual(t, long.read-before, 32)
		tokens := 0
		for _, span := range s.spans {
			tokens += len(span.tokens)
		}
		require.LessOrEqual(t, tokens, 64+4, "a step is bounded")
	}
	require.Equal(t, len(middle.prompt), middle.read)
}

// TestDisconnectStopsTheRequest checks that the next step excludes a request whose client has
// disconnected.
func TestDisconnectStopsTheRequest(t *testing.T) {
	m, s := stepped(t, weights(), Options{ChunkTokens: 16})
	for name, steps := range map[string]int{"during the prefill": 2, "while decoding": 6} {
		t.Run(name, func(t *testing.T) {
			ctx, leave := context.WithCancel(t.Context())
			r := enqueue(t, m, ctx, engines.CompletionRequest{
				PromptTokens: ids(50, 1), MaxTokens: 90, IgnoreEOS: true, CacheScope: name,
			})
			other := enqueue(t, m, t.Context(),
				engines.CompletionRequest{PromptTokens: ids(5, 1), MaxTokens: 9, IgnoreEOS: true})
			s.admit()
			for range steps {
				s.step()
			}
			read, generated := r.read, r.generated
			leave()
			for range 9 {
				s.removeEnded()
				s.admit()
				s.step()
				require.NotContains(t, s.running, r)
			}
			require.Equal(t, read, r.read)
			require.Equal(t, generated, r.generated)
			require.True(t, other.ended)
			s.removeEnded()
			require.Zero(t, s.pool.reserved)
			require.Equal(t, s.pool.allocated, len(s.pool.free)+s.pool.lru.Len(), "the blocks of the request are free")
		})
	}
}

// TestConcurrentSamplesSharePrefill checks that concurrent requests with equal prompts prefill
// the prompt once.
func TestConcurrentSamplesSharePrefill(t *testing.T) {
	for _, length := range []int{1, 2, 64, 65, 80} {
		m, s := stepped(t, weights(), Options{ChunkTokens: 200})
		start := func(scope string, seed uint64) *request {
			return enqueue(t, m, t.Context(), engines.CompletionRequest{
				PromptTokens: ids(length, 1), MaxTokens: 3, Temperature: 1, Seed: &seed, CacheScope: scope,
			})
		}
		var samples []*request
		for i := range uint64(8) {
			samples = append(samples, start("acme", i))
		}
		otherScope := start("other", 0)
		s.admit()
		s.step()
		s.step()
		for i, r := range samples {
			require.Positive(t, r.generated)
			for j := range (length - 1) / blockTokens {
				require.Same(t, samples[0].cache.blocks[j], r.cache.blocks[j])
			}
			require.Equal(t, map[bool]int{true: 0, false: length - 1}[i == 0], r.usage.CachedTokens, "sample %d", i)
		}
		require.Zero(t, otherScope.usage.CachedTokens)
	}
}

// TestPrefixCacheChangesNothing checks that the completions and logprobs of requests with common
// prefixes, sequential and concurrent, are bit-identical to those with an empty cache.
func TestPrefixCacheChangesNothing(t *testing.T) {
	w := weights()
	adapter := adapters(w)["all"]
	seed := uint64(5)
	var questions []engines.CompletionRequest
	for i := range 24 {
		prompt := append(ids(20*(i%4), 1), ids(1+i*3, 1+i%2)...)
		q := engines.CompletionRequest{
			PromptTokens: prompt, MaxTokens: 12, IgnoreEOS: true, Logprobs: true, TopLogprobs: 3, CacheScope: "acme",
		}
		switch i % 5 {
		case 1:
			q.Temperature, q.Seed = 0.9, &seed
		case 2:
			q.Addon = "a"
		case 3:
			q.Echo = true
		case 4:
			q.EchoLast = 5
		}
		questions = append(questions, q)
	}
	want := make([]engines.Chunk, len(questions))
	for i, q := range questions {
		m := open(t, w, Options{})
		loadAddon(t, m, "a", adapter)
		want[i], _ = fullResponse(t, m, q)
	}
	keys, values := blockSize(&w.Config)
	shared := open(t, w, Options{Slots: 8, ChunkTokens: 40, Parallelism: 2, CacheBytes: int64(4 * 30 * (keys + values))})
	loadAddon(t, shared, "a", adapter)
	var once sync.Mutex
	reused := 0
	for range 3 {
		var all sync.WaitGroup
		for i, q := range questions {
			all.Go(func() {
				got, usage := fullResponse(t, shared, q)
				assert.Equal(t, want[i], got, "question %d", i)
				once.Lock()
				defer once.Unlock()
				reused += usage.CachedTokens
			})
		}
		all.Wait()
	}
	require.Positive(t, reused)
}

// fullResponse runs a request and returns its chunks joined to one, and its usage.
func fullResponse(t *testing.T, m engines.Model, req engines.CompletionRequest) (engines.Chunk, engines.Usage) {
	var all engines.Chunk
	usage, err := m.Complete(t.Context(), req, func(c engines.Chunk) error {
		all.Text, all.Finish = all.Text+c.Text, c.Finish
		all.Tokens, all.Logprobs = append(all.Tokens, c.Tokens...), append(all.Logprobs, c.Logprobs...)
		return nil
	})
	assert.NoError(t, err)
	return all, usage
}
