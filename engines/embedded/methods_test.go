package embedded_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded"
)

// exactly is an evaluation in Go: an answer is right when it is the row's
// ground_truth to the letter.
type exactly struct{}

func (exactly) Score(_ context.Context, rows []map[string]any) ([]engines.Score, error) {
	var out []engines.Score
	for _, row := range rows {
		messages := row["messages"].([]any)
		score := engines.Score{Valid: true}
		if messages[len(messages)-1].(map[string]any)["content"] == row["ground_truth"] {
			score.Value = 1
		}
		out = append(out, score)
	}
	return out, nil
}

func (exactly) Close() error { return nil }

type say struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// jsonl writes rows to a file of the test.
func jsonl(t *testing.T, rows ...any) string {
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	var text strings.Builder
	for _, row := range rows {
		line, err := json.Marshal(row)
		require.NoError(t, err)
		text.Write(append(line, '\n'))
	}
	require.NoError(t, os.WriteFile(path, []byte(text.String()), 0o644))
	return path
}

// A wish is a task that the shipped model rarely fulfils: to say two words.
type wish struct{ question, truth string }

var words = strings.Fields("garden house river stone window bread music paper train cloud horse table green winter friend market silver flower doctor orange")

func wishes(n int, seed uint64) []wish {
	rng := rand.New(rand.NewPCG(seed, 1))
	var out []wish
	for range n {
		a, b := words[rng.IntN(len(words))], words[rng.IntN(len(words))]
		out = append(out, wish{fmt.Sprintf("Say %s and %s.", a, b), a + " and " + b})
	}
	return out
}

// prompts are the wishes as rows of a training on the model's own answers.
func prompts(all []wish) []any {
	var out []any
	for _, w := range all {
		out = append(out, map[string]any{"messages": []say{{"user", w.question}}, "ground_truth": w.truth})
	}
	return out
}

// sample draws an answer.
func sample(t *testing.T, m engines.Model, question string, seed uint64) string {
	text, _ := ask(t, m, engines.CompletionRequest{Prompt: question, Temperature: 1, Seed: &seed})
	return text
}

// alike is how many of the truth's characters an answer begins with.
func alike(answer, truth string) float64 {
	n := 0
	for n < min(len(answer), len(truth)) && answer[n] == truth[n] {
		n++
	}
	return float64(n)
}

// meanAlike is the mean over drawn answers to wishes.
func meanAlike(t *testing.T, m engines.Model, all []wish) float64 {
	sum := 0.0
	for i, w := range all {
		sum += alike(sample(t, m, w.question, uint64(i)), w.truth)
	}
	return sum / float64(len(all))
}

// stillKnows checks that the questions of before are answered as before.
func stillKnows(t *testing.T, m engines.Model) {
	right := 0
	for question, want := range questions {
		if text, _ := ask(t, m, engines.CompletionRequest{Prompt: question}); text == want {
			right++
		}
	}
	assert.GreaterOrEqual(t, right, len(questions)-1, "what the model knew before")
}

func train(t *testing.T, order engines.TrainOrder) engines.TrainResult {
	order.WorkDir, order.Seed = t.TempDir(), 1
	begin := time.Now()
	result, err := embedded.New(embedded.Options{Parallelism: 2}).Trainer.Train(t.Context(), order, &watcher{})
	require.NoError(t, err)
	t.Logf("%d steps in %s, stopped early: %t %s, %v", result.Steps, time.Since(begin).Round(time.Second/10), result.StoppedEarly, result.Reason, result.Values)
	return result
}

// TestLearnsFromRewards lets the shipped model learn, with defaults, from nothing
// but scores of its own answers.
func TestLearnsFromRewards(t *testing.T) {
	for _, method := range []string{domain.LossGRPO, domain.LossDAPO, domain.LossGSPO} {
		t.Run(method, func(t *testing.T) {
			if testing.Short() && method != domain.LossGRPO {
				t.Skip("one of three in the short run")
			}
			dir := base(t)
			result := train(t, engines.TrainOrder{Method: engines.Reinforcement, BaseDir: dir, Evaluation: exactly{},
				DataFiles: []string{jsonl(t, prompts(wishes(240, 1))...)}, EvalFiles: []string{jsonl(t, prompts(wishes(40, 2))...)},
				Settings: engines.TrainSettings{LoraRank: 8, Epochs: 3, Loss: &domain.LossConfig{Method: method}}})
			assert.Greater(t, result.Values["eval/reward"], 0.6, "it was below 0.1")
			stillKnows(t, load(t, engines.ModelFiles{Dir: dir, AdapterDir: result.Dir}))
		})
	}
}

// drawn are answers that the model drew to a wish.
func drawn(t *testing.T, m engines.Model, w wish, n int) []string {
	var out []string
	for k := range n {
		out = append(out, sample(t, m, w.question, uint64(k)))
	}
	return out
}

// TestLearnsFromPreferences lets the shipped model learn, with defaults, which
// of its own answers is the better one.
func TestLearnsFromPreferences(t *testing.T) {
	dir, all := base(t), wishes(150, 1)
	m := load(t, engines.ModelFiles{Dir: dir})
	var pairs []any
	for _, w := range all {
		best, worst := "", strings.Repeat("?", 99)
		for _, text := range drawn(t, m, w, 8) {
			if best == "" || alike(text, w.truth) > alike(best, w.truth) {
				best = text
			}
			if worst[0] == '?' || alike(text, w.truth) < alike(worst, w.truth) {
				worst = text
			}
		}
		if best != worst && worst != "" {
			pairs = append(pairs, map[string]any{"input": map[string]any{"messages": []say{{"user", w.question}}},
				"preferred_output": []say{{"assistant", best}}, "non_preferred_output": []say{{"assistant", worst}}})
		}
	}
	before := meanAlike(t, m, wishes(100, 2))
	for method, epochs := range map[string]int{domain.LossDPO: 3, domain.LossORPO: 6} {
		t.Run(method, func(t *testing.T) {
			result := train(t, engines.TrainOrder{Method: engines.DPO, BaseDir: dir, DataFiles: []string{jsonl(t, pairs[20:]...)}, EvalFiles: []string{jsonl(t, pairs[:20]...)},
				Settings: engines.TrainSettings{LoraRank: 8, Epochs: epochs, Loss: &domain.LossConfig{Method: method}}})
			tuned := load(t, engines.ModelFiles{Dir: dir, AdapterDir: result.Dir})
			after := meanAlike(t, tuned, wishes(100, 2))
			t.Logf("%.1f → %.1f of %d pairs", before, after, len(pairs))
			assert.Greater(t, after, 1.3*before)
			assert.GreaterOrEqual(t, result.Values["eval/accuracy"], 0.8)
			stillKnows(t, tuned)
		})
	}
}

// TestLearnsFromScoredSamples takes trainer steps: each learns from answers of
// the model that came of the one before, which were scored elsewhere.
func TestLearnsFromScoredSamples(t *testing.T) {
	dir, adapter := base(t), ""
	m := load(t, engines.ModelFiles{Dir: dir})
	before := meanAlike(t, m, wishes(100, 2))
	for step := range 4 {
		var rows []any
		for _, w := range wishes(60, uint64(10+step)) {
			var samples []any
			for _, text := range drawn(t, m, w, 6) {
				samples = append(samples, map[string]any{"messages": []say{{"user", w.question}, {"assistant", text}}, "alike": alike(text, w.truth) / float64(len(w.truth))})
			}
			rows = append(rows, map[string]any{"samples": samples})
		}
		result := train(t, engines.TrainOrder{Method: engines.RLOR, BaseDir: dir, AdapterDir: adapter, DataFiles: []string{jsonl(t, rows...)},
			Settings: engines.TrainSettings{LoraRank: 8, Epochs: 2, RewardWeights: map[string]float64{"alike": 1}}})
		adapter = result.Dir
		m = load(t, engines.ModelFiles{Dir: dir, AdapterDir: adapter})
	}
	after := meanAlike(t, m, wishes(100, 2))
	t.Logf("%.1f → %.1f", before, after)
	assert.Greater(t, after, 1.15*before)
	stillKnows(t, m)
}
