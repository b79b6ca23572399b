package serve

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/engines/embedded/llama"
)

func TestDrafts(t *testing.T) {
	for name, c := range map[string]struct {
		predicted, text string // text is the output so far; its last token is not in the KV cache yet
		ngram           int
		want            string
	}{
		"start of the prediction":           {"hello there", "", 0, "hell"},
		"prediction after the completion":   {"hello there", "hello", 0, " the"},
		"rest of the prediction":            {"hello there", "hello the", 0, "re"},
		"end of the prediction":             {"hello", "hello", 0, ""},
		"divergence from the prediction":    {"hello there", "help", 0, ""},
		"resync after a divergence":         {"one two three four", "one 22 three", 0, " fou"},
		"resync to the next match":          {"a = 1; b = 2; c = 3;", "a = 1; x = 2;", 0, " c ="},
		"resync to the first match":         {"abcdef", "abcdefXabc", 0, "def"},
		"n-gram after the prediction's end": {"abc", "abcabc", 3, "abc"},
		"no repeated n-gram":                {"", "abcdefgh", 3, ""},
		"repeated n-gram":                   {"", "the cat and the", 3, " cat"},
		"most recent n-gram":                {"", "abc1 abc2 abc", 3, "2 ab"},
		"n-gram near the end":               {"", "aaaa", 2, "a"},
		"n-gram of one token":               {"", "xyzx", 1, "yzx"},
		"context shorter than the n-gram":   {"", "ab", 3, ""},
		"n-gram lookup disabled":            {"", "the cat and the", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := &ngramDrafter{ngram: c.ngram, maxDraft: 4, acceptance: initialAcceptance}
			letters := func(s string) (tokens []int) {
				for i := range len(s) {
					tokens = append(tokens, int(s[i]))
				}
				return tokens
			}
			g.predicted = letters(c.predicted)
			g.context = []int{-1, -2, -3}
			for _, token := range letters(c.text) {
				g.propose(4)
				g.submit(0)
				g.observe(token)
			}
			got := ""
			for _, token := range g.propose(9) {
				got += string(rune(token))
			}
			assert.Equal(t, c.want, got)
			assert.LessOrEqual(t, len(g.propose(1)), 1)
			assert.Empty(t, g.propose(0))
		})
	}
}

func TestAcceptanceRate(t *testing.T) {
	g := &ngramDrafter{predicted: []int{1, 2, 3, 4, 5, 6}, maxDraft: 3, acceptance: 0.5}
	step := func(read int, drawn ...int) {
		require.NotEmpty(t, g.propose(9))
		g.submit(read)
		for _, token := range drawn {
			g.observe(token)
		}
	}
	step(3, 1, 2, 9)
	require.Equal(t, engines.Speculation{MatchedTokens: 2, Drafted: []int{1, 1, 1}, Accepted: []int{1, 1, 0}}, g.counts)
	require.InDelta(t, ((0.5*0.85+0.15)*0.85+0.15)*0.85, g.acceptance, 1e-9)
	require.Empty(t, g.propose(9), "the completion has diverged")
	g.next, g.diverged = 2, false
	before := g.acceptance
	step(0, 3)
	require.Greater(t, g.acceptance, before, "a draft token that was not submitted is rated too")
	require.Equal(t, 2, g.counts.MatchedTokens)
	step(1, 4, 5)
	require.Equal(t, engines.Speculation{MatchedTokens: 3, Drafted: []int{2, 1, 1}, Accepted: []int{2, 1, 0}}, g.counts)
}

// TestDraftsMustPayOff checks how many draft tokens a costModel chooses for measured durations
// of steps.
func TestDraftsMustPayOff(t *testing.T) {
	waits := map[int]time.Duration{1: 100, 2: 101, 4: 104, 8: 110, 256: 3000}     // memory bound
	computes := map[int]time.Duration{1: 100, 2: 190, 4: 370, 8: 700, 256: 21000} // compute bound
	between := map[int]time.Duration{1: 100, 2: 140, 4: 230, 8: 400, 256: 9000}
	for name, c := range map[string]struct {
		took     map[int]time.Duration
		rows     int
		chance   float64
		min, max int
	}{
		"high acceptance, memory bound":    {waits, 1, 0.9, 7, 8},
		"low acceptance, memory bound":     {waits, 1, 0.1, 1, 3},
		"no acceptance":                    {waits, 1, 0.01, 0, 0},
		"high acceptance, compute bound":   {computes, 1, 0.9, 0, 0},
		"full acceptance, compute bound":   {computes, 1, 1, 0, 8},
		"high acceptance, between":         {between, 1, 0.9, 3, 8},
		"medium acceptance, between":       {between, 1, 0.4, 0, 1},
		"high acceptance, large batch":     {between, 256, 0.9, 0, 0},
		"high acceptance, no measurement":  {nil, 1, 0.9, 0, 0},
		"high acceptance, one measurement": {map[int]time.Duration{1: 100}, 1, 0.9, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var p costModel
			for range 50 {
				for _, rows := range []int{1, 2, 4, 8, 256} {
					if took, seen := c.took[rows]; seen {
						p.observe(rows, took)
					}
				}
			}
			got := p.draftTokens(c.rows, c.chance, 8)
			assert.GreaterOrEqual(t, got, c.min)
			assert.LessOrEqual(t, got, c.max)
		})
	}
}

func TestOldCostsExpire(t *testing.T) {
	var p costModel
	p.observe(1, 100)
	p.observe(8, 100000)
	require.Zero(t, p.draftTokens(1, 0.9, 7))
	for range costMaxAge + 1 {
		p.observe(1, 100)
	}
	p.observe(256, 3000)
	require.Positive(t, p.draftTokens(1, 0.9, 7), "the old cost is ignored")
}

// all replaces costModel.draftTokens so that every draft token is verified.
func all(_ int, _ float64, limit int) int { return limit }

// verifyingModel serves a model that verifies every draft token, until the end of the test.
func verifyingModel(t *testing.T, w *llama.Weights, o Options, mode engines.SpeculationMode) engines.Model {
	m, s := unstarted(t, w, o)
	m.speculation, m.hash, m.stopTokens = mode, w.Hash(), []int{259}
	s.draftLen = all
	go s.run()
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	return m
}

// TestDisabledSpeculation checks that a model whose speculation is disabled drafts no tokens,
// neither from n-grams nor from a prediction.
func TestDisabledSpeculation(t *testing.T) {
	for disabled, counted := range map[bool]bool{false: true, true: false} {
		m := verifyingModel(t, weights(), Options{}, engines.SpeculationMode{NgramLength: 1, Tokens: 5, Disabled: disabled})
		_, usage := fullResponse(t, m, engines.CompletionRequest{PromptTokens: ids(8, 1), MaxTokens: 8, IgnoreEOS: true,
			Prediction: "abcabc", Speculation: "abc"})
		require.Equal(t, counted, usage.Speculation != nil)
	}
}

// TestLongPrompts checks that the profile for long prompts enlarges the steps of prefill.
func TestLongPrompts(t *testing.T) {
	w := weights()
	for _, long := range []bool{false, true} {
		_, s := unstarted(t, w, Options{ChunkTokens: 8, longPrompts: long})
		require.Equal(t, map[bool]int{false: 8, true: 8 * longPromptChunks}[long], s.chunk)
	}
}

// TestSpeculationChangesNothing checks that completions and logprobs are bit-identical with and
// without speculative decoding, for requests with right, wrong and partly right predictions,
// alone and concurrent, greedy and sampled.
func TestSpeculationChangesNothing(t *testing.T) {
	w := weights()
	plain, matched := open(t, w, Options{}), 0
	m := verifyingModel(t, w, Options{Slots: 16, ChunkTokens: 40, Parallelism: 2},
		engines.SpeculationMode{NgramLength: 1, Tokens: 5})
	adapter := adapters(w)["all"]
	loadAddon(t, plain, "a", adapter)
	loadAddon(t, m, "a", adapter)
	type question struct {
		req  engines.CompletionRequest
		want engines.Chunk
	}
	var questions []question
	for i := range 32 {
		seed := uint64(i)
		req := engines.CompletionRequest{
			PromptTokens: ids(1+i*3, i), MaxTokens: 40, IgnoreEOS: i%4 > 0, Logprobs: true, TopLogprobs: 2,
		}
		switch i % 4 {
		case 1:
			req.Temperature, req.Seed, req.TopP = 0.9, &seed, 0.95
		case 2:
			req.Temperature, req.Seed, req.MirostatTarget, req.RepetitionPenalty, req.FrequencyPenalty = 1.2, &seed, 20, 1.1, 0.4
		case 3:
			req.Addon = "a"
		}
		want, _ := fullResponse(t, plain, req)
		letters := []rune(want.Text)
		begin, end := string(letters[:len(letters)/2]), string(letters[len(letters)/2:])
		req.Prediction = begin + "something else" + end
		if i%8 > 5 {
			req.Prediction, req.Stop = "", []string{end}
			want, _ = fullResponse(t, plain, req)
			req.Speculation = want.Text
		}
		questions = append(questions, question{req, want})
	}
	right := 0
	for range 2 {
		var asked sync.WaitGroup
		var once sync.Mutex
		for i, q := range questions {
			asked.Go(func() {
				got, usage := fullResponse(t, m, q.req)
				assert.Equal(t, q.want, got, "question %d", i)
				once.Lock()
				defer once.Unlock()
				if !assert.NotNil(t, usage.Speculation) {
					return
				}
				for place, n := range usage.Speculation.Accepted {
					assert.LessOrEqual(t, n, usage.Speculation.Drafted[place])
					right += n
				}
				matched += usage.Speculation.MatchedTokens
			})
		}
		asked.Wait()
	}
	require.Positive(t, right)
	require.Positive(t, matched)
}

// requireNineSteps runs a request for 64 tokens, and requires that all of its drafts are accepted and that
// it therefore ends after nine steps.
func requireNineSteps(t *testing.T, m *model, s *scheduler, r *request) {
	t.Helper()
	require.NoError(t, m.enqueue(r))
	s.admit()
	for range 9 {
		require.False(t, r.ended)
		s.step()
	}
	require.True(t, r.ended)
	require.Equal(t, 64, r.generated)
	require.Equal(t, []int{8, 8, 8, 8, 8, 8, 7}, r.usage.Speculation.Drafted)
	require.Equal(t, r.usage.Speculation.Drafted, r.usage.Speculation.Accepted)
}

// TestPredictionReducesSteps checks that a completion with a predicted output takes fewer steps.
func TestPredictionReducesSteps(t *testing.T) {
	w := weights()
	req := engines.CompletionRequest{PromptTokens: ids(20, 1), MaxTokens: 64, IgnoreEOS: true}
	want, usage := fullResponse(t, open(t, w, Options{}), req)
	require.Nil(t, usage.Speculation)
	m, s := stepped(t, w, Options{})
	s.draftLen = all
	m.speculation.Tokens = 7
	req.PromptTokens = ids(20, 1)
	req.Prediction = want.Text
	r, err := m.newRequest(context.Background(), req)
	require.NoError(t, err)
	r.drafter.predicted = want.Tokens // includes the tokens without text
	requireNineSteps(t, m, s, r)
	require.Equal(t, 55, r.usage.Speculation.MatchedTokens)
	var tokens []int
	for _, chunk := range r.chunks {
		tokens = append(tokens, chunk.Tokens...)
	}
	require.Equal(t, want.Tokens, tokens)
}
