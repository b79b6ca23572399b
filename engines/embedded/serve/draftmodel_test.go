package serve

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/llama"
	"anneal/internal/testutil"
)

// draftsOf returns a draft model with the weights w for the model m.
func draftsOf(t *testing.T, w *llama.Weights, m *model, blocks int) *draftModel {
	config := w.Config
	d := &draftModel{window: min(config.MaxPositions, blocks*blockTokens), chunk: 24,
		vocab: min(m.vocab, config.VocabSize)}
	var err error
	d.decoder, err = newDecoder(w.Source(), config, d.window, 1)
	require.NoError(t, err)
	d.pool = pool{config: &d.decoder.config, maxBlocks: blocks}
	return d
}

func draftAll(_ int, _ float64, limit int, _ time.Duration) int { return limit }

// TestDraftModelChangesNothing checks that completions and logprobs are bit-identical with and
// without a draft model. It tests a draft model that is always right, one that is nearly always
// wrong, and one that has space for only a few requests, with greedy and sampled requests, alone
// and concurrent.
func TestDraftModelChangesNothing(t *testing.T) {
	w := weights()
	plain := open(t, w, Options{})
	other := weights()
	other.Initialize(12)
	type question struct {
		req  engines.CompletionRequest
		want engines.Chunk
	}
	var questions []question
	for i := range 24 {
		seed := uint64(i)
		req := engines.CompletionRequest{PromptTokens: ids(1+i*5, i), MaxTokens: 40, IgnoreEOS: i%4 > 0, Logprobs: true,
			TopLogprobs: 2}
		switch i % 3 {
		case 1:
			req.Temperature, req.Seed, req.TopP = 0.9, &seed, 0.95
		case 2:
			req.Temperature, req.Seed, req.RepetitionPenalty = 1.2, &seed, 1.1
		}
		want, _ := fullResponse(t, plain, req)
		questions = append(questions, question{req, want})
	}
	for name, c := range map[string]struct {
		draft  *llama.Weights
		blocks int
	}{"the same weights": {w, 1000}, "other weights": {other, 1000}, "little memory": {w, 24}} {
		t.Run(name, func(t *testing.T) {
			m, s := unstarted(t, w, Options{Slots: 16, ChunkTokens: 40, Parallelism: 2})
			m.speculation, m.hash, m.stopTokens = engines.SpeculationMode{Tokens: 5}, w.Hash(), []int{259}
			m.drafts = draftsOf(t, c.draft, m, c.blocks)
			s.draftLen, s.modelDraftLen = all, draftAll
			go s.run()
			t.Cleanup(func() { assert.NoError(t, m.Close()) })
			drafted, accepted := 0, 0
			for range 2 {
				var asked sync.WaitGroup
				var once sync.Mutex
				for i, q := range questions {
					asked.Go(func() {
						got, usage := fullResponse(t, m, q.req)
						assert.Equal(t, q.want, got, "question %d", i)
						once.Lock()
						defer once.Unlock()
						for place, n := range usage.Speculation.Drafted {
							if q.req.Temperature > 0 || !q.req.IgnoreEOS {
								break
							}
							drafted += n
							accepted += usage.Speculation.Accepted[place]
						}
					})
				}
				asked.Wait()
			}
			require.Positive(t, drafted)
			if c.draft == w {
				require.Equal(t, drafted, accepted, "greedy requests accept all drafts")
			} else {
				require.Less(t, accepted, drafted/2)
			}
		})
	}
}

// TestDraftModelReducesSteps checks that a completion with a draft model that is always right takes
// fewer steps, and that its memory is free afterwards.
func TestDraftModelReducesSteps(t *testing.T) {
	w := weights()
	m, s := stepped(t, w, Options{})
	m.drafts = draftsOf(t, w, m, 100)
	m.speculation.Tokens = 7
	s.draftLen, s.modelDraftLen = all, draftAll
	r, err := m.newRequest(context.Background(), engines.CompletionRequest{PromptTokens: ids(20, 1), MaxTokens: 64,
		IgnoreEOS: true})
	require.NoError(t, err)
	requireNineSteps(t, m, s, r)
	require.Zero(t, r.usage.Speculation.MatchedTokens, "the request has no prediction")
	s.removeEnded()
	require.Zero(t, m.drafts.pool.reserved)
	require.Equal(t, m.drafts.pool.allocated, len(m.drafts.pool.free)+m.drafts.pool.lru.Len())
}

// TestUselessDraftModelIsRarelyUsed checks that a draft model drafts only when that is faster, and
// that it is tried again after a while.
func TestUselessDraftModelIsRarelyUsed(t *testing.T) {
	w := weights()
	m, s := stepped(t, w, Options{})
	m.drafts = draftsOf(t, w, m, 100)
	s.draftLen = func(int, float64, int) int { return 0 }
	s.modelDraftLen = func(int, float64, int, time.Duration) int { return 0 }
	r, err := m.newRequest(context.Background(), engines.CompletionRequest{PromptTokens: ids(20, 1), MaxTokens: 40,
		IgnoreEOS: true})
	require.NoError(t, err)
	require.NoError(t, m.enqueue(r))
	s.admit()
	for !r.ended {
		s.step()
	}
	require.Empty(t, r.usage.Speculation.Drafted, "no draft token was verified")
	require.Greater(t, r.drafter.acceptance, initialAcceptance, "but the acceptance rate was estimated")
}

// TestLoadWithDraftModel checks that a model is loaded with a draft model that has the same
// tokenizer, each within its memory, and that a draft model with another tokenizer is rejected.
func TestLoadWithDraftModel(t *testing.T) {
	dir := save(t, weights())
	draft := save(t, weights(func(c *llama.Config) { c.Layers = 1 }))
	req := engines.CompletionRequest{PromptTokens: ids(9, 1), MaxTokens: 20, IgnoreEOS: true}
	want, _ := fullResponse(t, open(t, weights(), Options{}), req)
	m, err := New(Options{}).Load(t.Context(), engines.ModelFiles{Dir: dir, DraftDir: draft, MemoryBytes: 512 << 20,
		DraftMemoryBytes: 256 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	got, usage := fullResponse(t, m, req)
	require.Equal(t, want, got)
	require.NotNil(t, usage.Speculation)

	_, err = New(Options{}).Load(t.Context(), engines.ModelFiles{Dir: dir, DraftDir: draft, MemoryBytes: 512 << 20,
		DraftMemoryBytes: 1 << 20})
	require.Equal(t, domain.ResourceExhausted, domain.CodeOf(err))

	data := testutil.ReadFile(t, filepath.Join(draft, "tokenizer.json"))
	swapped := strings.NewReplacer(`"a":`, `"b":`, `"b":`, `"a":`).Replace(string(data))
	require.NotEqual(t, string(data), swapped)
	require.NoError(t, os.WriteFile(filepath.Join(draft, "tokenizer.json"), []byte(swapped), 0o600))
	_, err = New(Options{}).Load(t.Context(), engines.ModelFiles{Dir: dir, DraftDir: draft})
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.ErrorContains(t, err, "draftModel: has another tokenizer than the model")
}
