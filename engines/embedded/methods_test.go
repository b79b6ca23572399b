package embedded_test

import (
	"context"
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
	"anneal/internal/testutil"
)

// exactMatch is an evaluator that compares the answer with the row's ground_truth.
type exactMatch struct{}

func (exactMatch) Score(_ context.Context, rows []map[string]any) ([]engines.Score, error) {
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

func (exactMatch) Close() error { return nil }

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// jsonl writes rows to a file, one line for each row, and returns its path.
func jsonl(t *testing.T, rows ...any) string {
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	var text strings.Builder
	for _, row := range rows {
		line := testutil.Marshal(t, row)
		text.Write(append(line, '\n'))
	}
	require.NoError(t, os.WriteFile(path, []byte(text.String()), 0o644))
	return path
}

// A target is a task that the shipped model rarely solves: to repeat two words. truth is the
// answer.
type target struct{ question, truth string }

var words = strings.Fields("garden house river stone window bread music paper train cloud " +
	"horse table green winter friend market silver flower doctor orange")

func targets(n int, seed uint64) []target {
	rng := rand.New(rand.NewPCG(seed, 1))
	var out []target
	for range n {
		a, b := words[rng.IntN(len(words))], words[rng.IntN(len(words))]
		out = append(out, target{fmt.Sprintf("Say %s and %s.", a, b), a + " and " + b})
	}
	return out
}

// prompts returns the targets as rows of reinforcement learning.
func prompts(all []target) []any {
	var out []any
	for _, w := range all {
		out = append(out, map[string]any{"messages": []message{{"user", w.question}}, "ground_truth": w.truth})
	}
	return out
}

// sample returns an answer that the model sampled at temperature 1.
func sample(t *testing.T, m engines.Model, question string, seed uint64) string {
	text, _ := complete(t, m, engines.CompletionRequest{Prompt: question, Temperature: 1, Seed: &seed})
	return text
}

// prefixShare returns the number of bytes at the beginning of answer that match truth.
func prefixShare(answer, truth string) float64 {
	n := 0
	for n < min(len(answer), len(truth)) && answer[n] == truth[n] {
		n++
	}
	return float64(n)
}

// meanPrefixShare returns the mean of prefixShare over one sampled answer to each target.
func meanPrefixShare(t *testing.T, m engines.Model, all []target) float64 {
	sum := 0.0
	for i, w := range all {
		sum += prefixShare(sample(t, m, w.question, uint64(i)), w.truth)
	}
	return sum / float64(len(all))
}

// requireBaseTasks checks that the model gives the expected answer to all questions, or to all but
// one.
func requireBaseTasks(t *testing.T, m engines.Model) {
	right := 0
	for question, want := range questions {
		if text, _ := complete(t, m, engines.CompletionRequest{Prompt: question}); text == want {
			right++
		}
	}
	assert.GreaterOrEqual(t, right, len(questions)-1, "the base tasks are not forgotten")
}

func train(t *testing.T, request engines.TrainRequest) engines.TrainResult {
	request.WorkDir, request.Seed = t.TempDir(), 1
	begin := time.Now()
	result, err := embedded.New(embedded.Options{Parallelism: 2}).Trainer.Train(t.Context(), request, &watcher{})
	require.NoError(t, err)
	t.Logf("%d steps in %s, stopped early: %t %s, %v", result.Steps, time.Since(begin).Round(time.Second/10),
		result.StoppedEarly, result.Reason, result.Values)
	return result
}

// TestLearnsFromRewards checks that reinforcement learning with the default rates and batch sizes
// reaches a mean reward above 0.6 on held-out prompts, and that the base tasks are not forgotten.
func TestLearnsFromRewards(t *testing.T) {
	for _, method := range []string{domain.LossGRPO, domain.LossDAPO, domain.LossGSPO} {
		t.Run(method, func(t *testing.T) {
			if testing.Short() && method != domain.LossGRPO {
				t.Skip("a short run tests only GRPO")
			}
			dir := base(t)
			result := train(t, engines.TrainRequest{Method: engines.Reinforcement, BaseDir: dir, Evaluation: exactMatch{},
				DataFiles: []string{jsonl(t, prompts(targets(240, 1))...)},
				EvalFiles: []string{jsonl(t, prompts(targets(40, 2))...)},
				Settings:  engines.TrainSettings{LoraRank: 8, Epochs: 3, Loss: &domain.LossConfig{Method: method}}})
			assert.Greater(t, result.Values["eval/reward"], 0.6, "before the training it was below 0.1")
			requireBaseTasks(t, load(t, engines.ModelFiles{Dir: dir, AdapterDir: result.Dir}))
		})
	}
}

// sampleAnswers returns n answers of a model to the question of a target, sampled with different
// seeds.
func sampleAnswers(t *testing.T, m engines.Model, w target, n int) []string {
	var out []string
	for k := range n {
		out = append(out, sample(t, m, w.question, uint64(k)))
	}
	return out
}

// TestLearnsFromPreferences checks that training with the default rates and batch sizes, on pairs
// of the shipped model's own answers, raises the mean number of leading bytes that match the truth,
// and that the base tasks are not forgotten.
func TestLearnsFromPreferences(t *testing.T) {
	dir, all := base(t), targets(150, 1)
	m := load(t, engines.ModelFiles{Dir: dir})
	var pairs []any
	for _, w := range all {
		best, worst := "", strings.Repeat("?", 99)
		for _, text := range sampleAnswers(t, m, w, 8) {
			if best == "" || prefixShare(text, w.truth) > prefixShare(best, w.truth) {
				best = text
			}
			if worst[0] == '?' || prefixShare(text, w.truth) < prefixShare(worst, w.truth) {
				worst = text
			}
		}
		if best != worst && worst != "" {
			pairs = append(pairs, map[string]any{"input": map[string]any{"messages": []message{{"user", w.question}}},
				"preferred_output": []message{{"assistant", best}}, "non_preferred_output": []message{{"assistant", worst}}})
		}
	}
	before := meanPrefixShare(t, m, targets(100, 2))
	for method, epochs := range map[string]int{domain.LossDPO: 3, domain.LossORPO: 6} {
		t.Run(method, func(t *testing.T) {
			result := train(
				t, engines.TrainRequest{
					Method: engines.DPO, BaseDir: dir, DataFiles: []string{jsonl(t, pairs[20:]...)},
					EvalFiles: []string{jsonl(t, pairs[:20]...)},
					Settings:  engines.TrainSettings{LoraRank: 8, Epochs: epochs, Loss: &domain.LossConfig{Method: method}},
				})
			tuned := load(t, engines.ModelFiles{Dir: dir, AdapterDir: result.Dir})
			after := meanPrefixShare(t, tuned, targets(100, 2))
			t.Logf("%.1f → %.1f of %d pairs", before, after, len(pairs))
			assert.Greater(t, after, 1.3*before)
			assert.GreaterOrEqual(t, result.Values["eval/accuracy"], 0.8)
			requireBaseTasks(t, tuned)
		})
	}
}

// TestLearnsFromScoredSamples checks that four training runs in sequence, each on scored answers of
// the model that the previous training produced, raise the mean number of leading bytes that match
// the truth, and that the base tasks are not forgotten.
func TestLearnsFromScoredSamples(t *testing.T) {
	dir, adapter := base(t), ""
	m := load(t, engines.ModelFiles{Dir: dir})
	before := meanPrefixShare(t, m, targets(100, 2))
	for step := range 4 {
		var rows []any
		for _, w := range targets(60, uint64(10+step)) {
			var samples []any
			for _, text := range sampleAnswers(t, m, w, 6) {
				samples = append(samples, map[string]any{
					"messages": []message{{"user", w.question}, {"assistant", text}},
					"alike":    prefixShare(text, w.truth) / float64(len(w.truth)),
				})
			}
			rows = append(rows, map[string]any{"samples": samples})
		}
		result := train(
			t, engines.TrainRequest{
				Method: engines.RLOR, BaseDir: dir, AdapterDir: adapter, DataFiles: []string{jsonl(t, rows...)},
				Settings: engines.TrainSettings{LoraRank: 8, Epochs: 2, RewardWeights: map[string]float64{"alike": 1}},
			})
		adapter = result.Dir
		m = load(t, engines.ModelFiles{Dir: dir, AdapterDir: adapter})
	}
	after := meanPrefixShare(t, m, targets(100, 2))
	t.Logf("%.1f → %.1f", before, after)
	assert.Greater(t, after, 1.15*before)
	requireBaseTasks(t, m)
}
