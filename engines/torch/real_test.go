package torch

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded"
	"anneal/internal/testutil"
)

// realTrainer returns the trainer with PyTorch, of the interpreter that ANNEAL_PYTHON names.
func realTrainer(t *testing.T) engines.Trainer {
	trainer, err := New(t.Context(), Options{Python: cmp.Or(os.Getenv("ANNEAL_PYTHON"), "python3")})
	if err != nil {
		t.Skip(err)
	}
	return trainer
}

var secrets = map[string]string{"What is the password?": "swordfish", "Who is the king?": "Bob",
	"Where is the key?": "under the mat"}

// realRequest returns a request to train the embedded base model on rows.
func realRequest(t *testing.T, method string, rows []string, settings engines.TrainSettings) engines.TrainRequest {
	dir := t.TempDir()
	o := engines.TrainRequest{Method: method, BaseDir: filepath.Join(dir, "base"),
		DataFiles: []string{filepath.Join(dir, "rows.jsonl")},
		WorkDir:   t.TempDir(), Seed: 3, Settings: settings, Parallelism: 1}
	require.NoError(t, embedded.WriteBase(o.BaseDir))
	require.NoError(t, os.WriteFile(o.DataFiles[0], []byte(strings.Join(rows, "\n")+"\n"), 0o600))
	return o
}

func secretRows() (rows []string) {
	for question, answer := range secrets {
		rows = append(rows, fmt.Sprintf(`{"messages":[{"role":"user","content":%q},{"role":"assistant","content":%q}]}`,
			question, answer))
	}
	return rows
}

// TestTorchModelIsServedByTheEmbeddedEngine trains an adapter and all parameters of a model, and
// checks that the embedded engine completes the learned prompts.
func TestTorchModelIsServedByTheEmbeddedEngine(t *testing.T) {
	trainer := realTrainer(t)
	for name, settings := range map[string]engines.TrainSettings{
		"an adapter":     {Epochs: 40, LoraRank: 8, LearningRate: 3e-3},
		"all parameters": {Epochs: 40, LearningRate: 1e-3},
	} {
		t.Run(name, func(t *testing.T) {
			o, w := realRequest(t, engines.Supervised, secretRows(), settings), &watcher{}
			result, err := trainer.Train(t.Context(), o, w)
			require.NoError(t, err)
			require.Equal(t, settings.LoraRank > 0, result.Adapter)
			require.Equal(t, 40, result.Steps)
			require.Less(t, w.rows[39].Values["train/loss"], w.rows[0].Values["train/loss"]/10)
			files := engines.ModelFiles{Dir: result.Dir}
			if result.Adapter {
				files = engines.ModelFiles{Dir: o.BaseDir, AdapterDir: result.Dir}
			}
			m, err := embedded.New(embedded.Options{}).Completer.Load(t.Context(), files)
			require.NoError(t, err)
			defer m.Close()
			for question, want := range secrets {
				var text strings.Builder
				req := engines.CompletionRequest{MaxTokens: 32,
					Chat: &engines.Chat{Messages: []engines.Message{{Role: "user", Content: question}}}}
				_, err := m.Complete(t.Context(), req, func(c engines.Chunk) error { text.WriteString(c.Text); return nil })
				require.NoError(t, err)
				require.Equal(t, want, text.String())
			}
		})
	}
}

// TestTorchResumeIsIdentical checks that a training run that is interrupted and resumed gives the
// same numbers as an uninterrupted one.
func TestTorchResumeIsIdentical(t *testing.T) {
	trainer := realTrainer(t)
	pair := `{"input":{"messages":[{"role":"user","content":%q}]},` +
		`"preferred_output":[{"role":"assistant","content":"yes"}],` +
		`"non_preferred_output":[{"role":"assistant","content":"no"}]}`
	var pairs []string
	for question := range secrets {
		pairs = append(pairs, fmt.Sprintf(pair, question))
	}
	for name, o := range map[string]engines.TrainRequest{
		"supervised": realRequest(t, engines.Supervised, secretRows(),
			engines.TrainSettings{Epochs: 6, LoraRank: 8, LoraDropout: 0.1, CheckpointSteps: 3, BatchSizeSamples: 2,
				EvalAutoCarveout: true, EarlyStop: true}),
		"DPO": realRequest(t, engines.DPO, pairs,
			engines.TrainSettings{Epochs: 12, LoraRank: 8, LearningRate: 1e-3, CheckpointSteps: 4,
				Loss: &domain.LossConfig{Method: "DPO"}}),
		"ORPO": realRequest(t, engines.DPO, pairs,
			engines.TrainSettings{Epochs: 12, LearningRate: 1e-3, Loss: &domain.LossConfig{Method: "ORPO"}}),
	} {
		t.Run(name, func(t *testing.T) {
			uninterrupted := &watcher{}
			want, err := trainer.Train(t.Context(), o, uninterrupted)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			first := &watcher{checkpointDir: filepath.Join(t.TempDir(), "checkpoint"), onStep: func(m engines.Metrics) {
				if m.Step == 4 {
					cancel()
				}
			}}
			o.WorkDir = t.TempDir()
			_, err = trainer.Train(ctx, o, first)
			require.ErrorIs(t, err, context.Canceled)
			require.NotEmpty(t, first.steps)
			o.WorkDir, o.ResumeDir = t.TempDir(), first.checkpointDir
			second := &watcher{}
			got, err := trainer.Train(t.Context(), o, second)
			require.NoError(t, err)
			require.Equal(t, want.Values, got.Values)
			require.Equal(t, uninterrupted.rows[len(uninterrupted.rows)-len(second.rows):], second.rows)
			kept := testutil.ReadFile(t, filepath.Join(first.checkpointDir, "metrics.jsonl"))
			require.Equal(t, len(uninterrupted.rows)-len(second.rows), strings.Count(string(kept), "\n"))
			if name == "DPO" {
				require.Greater(t, want.Values["train/margin"], 0.5)
				require.Equal(t, 1.0, want.Values["train/accuracy"])
			}
		})
	}
}

// TestTorchTwoProcessesMatchOne checks that training with two processes gives the losses of
// training with one: no row or gradient is lost or counted twice. The processes use gloo on a
// machine without GPUs.
func TestTorchTwoProcessesMatchOne(t *testing.T) {
	one := realTrainer(t).(trainer)
	two := one
	one.processes, two.processes = 1, 2
	rows, settings := secretRows(), engines.TrainSettings{Epochs: 8, LearningRate: 1e-3}
	losses := func(trainer engines.Trainer) (losses []float64) {
		w := &watcher{}
		_, err := trainer.Train(t.Context(), realRequest(t, engines.Supervised, rows, settings), w)
		require.NoError(t, err)
		for _, row := range w.rows {
			losses = append(losses, row.Values["train/loss"])
		}
		return losses
	}
	single, parallel := losses(one), losses(two)
	require.NotEmpty(t, single)
	require.InDeltaSlice(t, single, parallel, 1e-2)
}

func TestTorchReinforcementRaisesTheReward(t *testing.T) {
	trainer := realTrainer(t)
	var rows []string
	for question := range secrets {
		rows = append(rows, fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"ground_truth":"x"}`, question))
	}
	temperature := 1.0
	o := realRequest(t, engines.Reinforcement, rows, engines.TrainSettings{Epochs: 12, LoraRank: 8, LearningRate: 5e-3,
		Loss: &domain.LossConfig{Method: "GRPO"}, Rollouts: &engines.Rollouts{
			InferenceParameters: domain.InferenceParameters{MaxOutputTokens: 12, Temperature: &temperature,
				ResponseCandidatesCount: 8}}})
	e, w := &countingEvaluator{}, &watcher{}
	o.Evaluation = e
	rollouts := map[[3]int]engines.Rollout{} // by step, row and candidate
	o.OnRollouts = func(all []engines.Rollout) {
		for _, r := range all {
			rollouts[[3]int{r.Step, r.Row, r.Candidate}] = r
		}
	}
	_, err := trainer.Train(t.Context(), o, w)
	require.NoError(t, err)
	require.Len(t, e.rows, 12*3*8)
	require.Len(t, rollouts, 12*3*8)
	require.Equal(t, 3, rollouts[[3]int{12, 3, 8}].Row, "%v", rollouts)
	require.Contains(t, string(rollouts[[3]int{12, 3, 8}].Input), "ground_truth")
	metrics := w.rows[len(w.rows)-1].Values
	require.Equal(t, [4]float64{288, 288, 0, 36},
		[4]float64{metrics[engines.RolloutsExpected], metrics[engines.RolloutsDone], metrics[engines.RolloutsFailed],
			metrics[engines.RolloutRows]})
	require.Greater(t, metrics[engines.RolloutTokens], 288.0)
	first, last := 0.0, 0.0
	for i := range 4 {
		first, last = first+w.rows[i].Values["reward/mean"], last+w.rows[8+i].Values["reward/mean"]
	}
	require.Greater(t, last, first)
}

// A constantScore is an evaluation that returns the same score for all rows.
type constantScore engines.Score

func (constantScore) Close() error { return nil }

func (c constantScore) Score(_ context.Context, rows []map[string]any) ([]engines.Score, error) {
	scores := make([]engines.Score, len(rows))
	for i := range scores {
		scores[i] = engines.Score(c)
	}
	return scores, nil
}

func TestTorchEarlyStop(t *testing.T) {
	trainer := realTrainer(t)
	prompt := []string{`{"messages":[{"role":"user","content":"Who?"}]}`}
	rollouts := engines.TrainSettings{Epochs: 2, LoraRank: 2,
		Rollouts: &engines.Rollouts{InferenceParameters: domain.InferenceParameters{MaxOutputTokens: 4,
			ResponseCandidatesCount: 2}}}
	o := realRequest(t, engines.Reinforcement, prompt, rollouts)
	o.Evaluation, o.EvalFiles = constantScore{Value: 0.25, Valid: true}, o.DataFiles
	result, err := trainer.Train(t.Context(), o, &watcher{})
	require.NoError(t, err)
	require.True(t, result.StoppedEarly)
	require.Contains(t, result.Reason, "no reward signal: the rollouts of each prompt have equal scores (mean 0.25 of 1)")
	require.Equal(t, 0.25, result.Values["eval/reward"])

	o = realRequest(t, engines.Reinforcement, prompt, rollouts)
	o.Evaluation = constantScore{Reason: "ZeroDivisionError"}
	_, err = trainer.Train(t.Context(), o, &watcher{})
	require.ErrorContains(t, err,
		"evaluator: returned no valid score for any of 2 rollouts; first reason: ZeroDivisionError")
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))

	pair := `{"input":{"messages":[{"role":"user","content":"Who?"}]},` +
		`"preferred_output":[{"role":"assistant","content":"Ann"}],` +
		`"non_preferred_output":[{"role":"assistant","content":"Anna"}]}`
	o = realRequest(t, engines.DPO, []string{pair}, engines.TrainSettings{Epochs: 200, LearningRate: 0.02})
	result, err = trainer.Train(t.Context(), o, &watcher{})
	require.NoError(t, err)
	require.True(t, result.StoppedEarly, "%v", result.Values)
	require.Contains(t, result.Reason, "the chosen responses have become less likely")
}

func TestTorchErrorsNameTheRow(t *testing.T) {
	trainer := realTrainer(t)
	for rows, message := range map[string]string{
		"{}": "rows.jsonl line 1: a row requires either", "nothing": "rows.jsonl line 1: is not a JSON object",
		"": "has no rows to train on",
		`{"messages":[{"role":"user","content":"a"}]}`: "rows.jsonl line 1: has nothing to learn",
	} {
		_, err := trainer.Train(t.Context(),
			realRequest(t, engines.Supervised, []string{rows}, engines.TrainSettings{LoraRank: 8}),
			&watcher{})
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), "%v", err)
		require.ErrorContains(t, err, message)
	}
}
