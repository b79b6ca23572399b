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

func TestGuesses(t *testing.T) {
	for name, c := range map[string]struct {
		predicted, text string // the last of text is not read yet
		ngram           int
		want            string
	}{
		"the prediction, from its beginning":           {"hello there", "", 0, "hell"},
		"the prediction, where the answer is":          {"hello there", "hello", 0, " the"},
		"its rest":                                     {"hello there", "hello the", 0, "re"},
		"nothing after its end":                        {"hello", "hello", 0, ""},
		"nothing where the answer left it":             {"hello there", "help", 0, ""},
		"on, where it is found again":                  {"one two three four", "one 22 three", 0, " fou"},
		"on, at the next place of several":             {"a = 1; b = 2; c = 3;", "a = 1; x = 2;", 0, " c ="},
		"on, at the first when no other comes":         {"abcdef", "abcdefXabc", 0, "def"},
		"the text's own, after a prediction's end":     {"abc", "abcabc", 3, "abc"},
		"nothing new":                                  {"", "abcdefgh", 3, ""},
		"what followed":                                {"", "the cat and the", 3, " cat"},
		"what followed the latest time":                {"", "abc1 abc2 abc", 3, "2 ab"},
		"as much as there is":                          {"", "aaaa", 2, "a"},
		"what followed one token":                      {"", "xyzx", 1, "yzx"},
		"nothing of a text that is shorter than that":  {"", "ab", 3, ""},
		"nothing when the text is not to be looked at": {"", "the cat and the", 0, ""},
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

func TestGuessesAreJudged(t *testing.T) {
	g := &ngramDrafter{predicted: []int{1, 2, 3, 4, 5, 6}, maxDraft: 3, acceptance: 0.5}
	step := func(read int, drawn ...int) {
		require.NotEmpty(t, g.propose(9))
		g.submit(read)
		for _, token := range drawn {
			g.observe(token)
		}
	}
	step(3, 1, 2, 9)
	require.Equal(t, engines.Speculation{MatchedTokens: 2, Guessed: []int{1, 1, 1}, Right: []int{1, 1, 0}}, g.counts)
	require.InDelta(t, ((0.5*0.85+0.15)*0.85+0.15)*0.85, g.acceptance, 1e-9)
	require.Empty(t, g.propose(9), "the answer has left the prediction")
	g.at, g.diverged = 2, false
	before := g.acceptance
	step(0, 3)
	require.Greater(t, g.acceptance, before, "a guess that was not read is judged all the same")
	require.Equal(t, 2, g.counts.MatchedTokens)
	step(1, 4, 5)
	require.Equal(t, engines.Speculation{MatchedTokens: 3, Guessed: []int{2, 1, 1}, Right: []int{2, 1, 0}}, g.counts)
}

// Guesses are read where they make answers come sooner, and only there.
func TestGuessesMustPay(t *testing.T) {
	waits := map[int]time.Duration{1: 100, 2: 101, 4: 104, 8: 110, 256: 3000}     // for the weights
	computes := map[int]time.Duration{1: 100, 2: 190, 4: 370, 8: 700, 256: 21000} // no row is free
	between := map[int]time.Duration{1: 100, 2: 140, 4: 230, 8: 400, 256: 9000}
	for name, c := range map[string]struct {
		took        map[int]time.Duration
		rows        int
		chance      float64
		least, most int
	}{
		"likely ones where steps wait":       {waits, 1, 0.9, 7, 8},
		"unlikely ones where steps wait":     {waits, 1, 0.1, 1, 3},
		"hopeless ones":                      {waits, 1, 0.01, 0, 0},
		"likely ones where steps compute":    {computes, 1, 0.9, 0, 0},
		"sure ones where steps compute":      {computes, 1, 1, 0, 8},
		"likely ones in between":             {between, 1, 0.9, 3, 8},
		"middling ones in between":           {between, 1, 0.4, 0, 1},
		"likely ones beside much else":       {between, 256, 0.9, 0, 0},
		"likely ones before any was seen":    {nil, 1, 0.9, 0, 0},
		"likely ones, steps of one row seen": {map[int]time.Duration{1: 100}, 1, 0.9, 0, 0},
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
			assert.GreaterOrEqual(t, got, c.least)
			assert.LessOrEqual(t, got, c.most)
		})
	}
}

func TestOldPacesAreForgotten(t *testing.T) {
	var p costModel
	p.observe(1, 100)
	p.observe(8, 100000)
	require.Zero(t, p.draftTokens(1, 0.9, 7))
	for range costMaxAge + 1 {
		p.observe(1, 100)
	}
	p.observe(256, 3000)
	require.Positive(t, p.draftTokens(1, 0.9, 7), "it is tried again")
}

// all reads every guess.
func all(_ int, _ float64, most int) int { return most }

// eager is a model that reads every guess it has.
func eager(t *testing.T, w *llama.Weights, o Options, guessing engines.SpeculationMode) engines.Model {
	m, s := unstarted(t, w, o)
	m.speculation, m.hash, m.stopTokens = guessing, w.Hash(), []int{259}
	s.draftLen = all
	go s.run()
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	return m
}

// TestGuessesChangeNothing asks with right, wrong and half right predictions,
// alone and together, greedy and sampled: the answers are those of a model that
// never guesses, with what is told of each token, bit for bit.
func TestGuessesChangeNothing(t *testing.T) {
	w := weights()
	plain, told := open(t, w, Options{}), 0
	m := eager(t, w, Options{Slots: 16, ChunkTokens: 40, Parallelism: 2}, engines.SpeculationMode{NgramLength: 1, Tokens: 5})
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
		req := engines.CompletionRequest{PromptTokens: ids(1+i*3, i), MaxTokens: 40, IgnoreEOS: i%4 > 0, Logprobs: true, TopLogprobs: 2}
		switch i % 4 {
		case 1:
			req.Temperature, req.Seed, req.TopP = 0.9, &seed, 0.95
		case 2:
			req.Temperature, req.Seed, req.MirostatTarget, req.RepetitionPenalty, req.FrequencyPenalty = 1.2, &seed, 20, 1.1, 0.4
		case 3:
			req.Addon = "a"
		}
		want, _ := whole(t, plain, req)
		letters := []rune(want.Text)
		begin, end := string(letters[:len(letters)/2]), string(letters[len(letters)/2:])
		req.Prediction = begin + "something else" + end
		if i%8 > 5 {
			req.Prediction, req.Stop = "", []string{end}
			want, _ = whole(t, plain, req)
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
				got, usage := whole(t, m, q.req)
				assert.Equal(t, q.want, got, "question %d", i)
				once.Lock()
				defer once.Unlock()
				if !assert.NotNil(t, usage.Speculation) {
					return
				}
				for place, n := range usage.Speculation.Right {
					assert.LessOrEqual(t, n, usage.Speculation.Guessed[place])
					right += n
				}
				told += usage.Speculation.MatchedTokens
			})
		}
		asked.Wait()
	}
	require.Positive(t, right)
	require.Positive(t, told)
}

// An answer that was predicted comes in fewer steps.
func TestAPredictedAnswerComesInFewerSteps(t *testing.T) {
	w := weights()
	req := engines.CompletionRequest{PromptTokens: ids(20, 1), MaxTokens: 64, IgnoreEOS: true}
	want, usage := whole(t, open(t, w, Options{}), req)
	require.Nil(t, usage.Speculation)
	m, s := stepped(t, w, Options{})
	s.draftLen = all
	m.speculation.Tokens = 7
	req.PromptTokens = ids(20, 1)
	req.Prediction = want.Text
	r, err := m.newRequest(context.Background(), req)
	require.NoError(t, err)
	r.drafter.predicted = want.Tokens // also those that are no text
	require.NoError(t, m.enqueue(r))
	s.admit()
	for range 9 {
		require.False(t, r.ended)
		s.step()
	}
	require.True(t, r.ended)
	require.Equal(t, 64, r.generated)
	require.Equal(t, []int{8, 8, 8, 8, 8, 8, 7}, r.usage.Speculation.Guessed)
	require.Equal(t, r.usage.Speculation.Guessed, r.usage.Speculation.Right)
	require.Equal(t, 55, r.usage.Speculation.MatchedTokens)
	var tokens []int
	for _, chunk := range r.chunks {
		tokens = append(tokens, chunk.Tokens...)
	}
	require.Equal(t, want.Tokens, tokens)
}
