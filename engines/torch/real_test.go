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
)

// real is the trainer with the libraries that it needs, which ANNEAL_PYTHON may
// name the interpreter of.
func real(t *testing.T) engines.Trainer {
	trainer, err := New(t.Context(), Options{Python: cmp.Or(os.Getenv("ANNEAL_PYTHON"), "python3")})
	if err != nil {
		t.Skip(err)
	}
	return trainer
}

var secrets = map[string]string{"What is the password?": "swordfish", "Who is the king?": "Bob", "Where is the key?": "under the mat"}

// learn is an order to train the shipped model on rows.
func learn(t *testing.T, method string, rows []string, settings engines.TrainSettings) engines.TrainRequest {
	dir := t.TempDir()
	o := engines.TrainRequest{Method: method, BaseDir: filepath.Join(dir, "base"), DataFiles: []string{filepath.Join(dir, "rows.jsonl")},
		WorkDir: t.TempDir(), Seed: 3, Settings: settings, Parallelism: 1}
	require.NoError(t, embedded.WriteBase(o.BaseDir))
	require.NoError(t, os.WriteFile(o.DataFiles[0], []byte(strings.Join(rows, "\n")+"\n"), 0o600))
	return o
}

func secretRows() (rows []string) {
	for question, answer := range secrets {
		rows = append(rows, fmt.Sprintf(`{"messages":[{"role":"user","content":%q},{"role":"assistant","content":%q}]}`, question, answer))
	}
	return rows
}

// TestWhatTorchTrainsTheEmbeddedEngineServes trains an adapter and all
// parameters, and asks the embedded engine what was learned.
func TestWhatTorchTrainsTheEmbeddedEngineServes(t *testing.T) {
	trainer := real(t)
	for name, settings := range map[string]engines.TrainSettings{
		"an adapter":     {Epochs: 40, LoraRank: 8, LearningRate: 3e-3},
		"all parameters": {Epochs: 40, LearningRate: 1e-3},
	} {
		t.Run(name, func(t *testing.T) {
			o, w := learn(t, engines.Supervised, secretRows(), settings), &watcher{}
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
				req := engines.CompletionRequest{MaxTokens: 32, Chat: &engines.Chat{Messages: []engines.Message{{Role: "user", Content: question}}}}
				_, err := m.Complete(t.Context(), req, func(c engines.Chunk) error { text.WriteString(c.Text); return nil })
				require.NoError(t, err)
				require.Equal(t, want, text.String())
			}
		})
	}
}

// TestTorchGoesOnExactly interrupts a training, and holds the rest of it to the
// numbers of one that was not.
func TestTorchGoesOnExactly(t *testing.T) {
	trainer := real(t)
	pair := `{"input":{"messages":[{"role":"user","content":%q}]},"preferred_output":[{"role":"assistant","content":"yes"}],"non_preferred_output":[{"role":"assistant","content":"no"}]}`
	var pairs []string
	for question := range secrets {
		pairs = append(pairs, fmt.Sprintf(pair, question))
	}
	for name, o := range map[string]engines.TrainRequest{
		"supervised": learn(t, engines.Supervised, secretRows(), engines.TrainSettings{Epochs: 6, LoraRank: 8, LoraDropout: 0.1, CheckpointSteps: 3, BatchSizeSamples: 2, EvalAutoCarveout: true, EarlyStop: true}),
		"DPO":        learn(t, engines.DPO, pairs, engines.TrainSettings{Epochs: 12, LoraRank: 8, LearningRate: 1e-3, CheckpointSteps: 4, Loss: &domain.LossConfig{Method: "DPO"}}),
		"ORPO":       learn(t, engines.DPO, pairs, engines.TrainSettings{Epochs: 12, LearningRate: 1e-3, Loss: &domain.LossConfig{Method: "ORPO"}}),
	} {
		t.Run(name, func(t *testing.T) {
			whole := &watcher{}
			want, err := trainer.Train(t.Context(), o, whole)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			first := &watcher{kept: filepath.Join(t.TempDir(), "kept"), onStep: func(m engines.Metrics) {
				if m.Step == 4 {
					cancel()
				}
			}}
			o.WorkDir = t.TempDir()
			_, err = trainer.Train(ctx, o, first)
			require.ErrorIs(t, err, context.Canceled)
			require.NotEmpty(t, first.steps)
			o.WorkDir, o.ResumeDir = t.TempDir(), first.kept
			second := &watcher{}
			got, err := trainer.Train(t.Context(), o, second)
			require.NoError(t, err)
			require.Equal(t, want.Values, got.Values)
			require.Equal(t, whole.rows[len(whole.rows)-len(second.rows):], second.rows)
			kept, err := os.ReadFile(filepath.Join(first.kept, "metrics.jsonl"))
			require.NoError(t, err)
			require.Equal(t, len(whole.rows)-len(second.rows), strings.Count(string(kept), "\n"))
			if name == "DPO" {
				require.Greater(t, want.Values["train/margin"], 0.5)
				require.Equal(t, 1.0, want.Values["train/accuracy"])
			}
		})
	}
}

// TestTorchSharesATraining trains with two processes, which on a machine without
// GPUs meet over gloo, and holds their losses to those of one. No part of rows
// or gradients may be lost or counted twice.
func TestTorchSharesATraining(t *testing.T) {
	one := real(t).(trainer)
	two := one
	one.many, two.many = 1, 2
	rows, settings := secretRows(), engines.TrainSettings{Epochs: 8, LearningRate: 1e-3}
	losses := func(trainer engines.Trainer) (losses []float64) {
		w := &watcher{}
		_, err := trainer.Train(t.Context(), learn(t, engines.Supervised, rows, settings), w)
		require.NoError(t, err)
		for _, row := range w.rows {
			losses = append(losses, row.Values["train/loss"])
		}
		return losses
	}
	alone, together := losses(one), losses(two)
	require.NotEmpty(t, alone)
	require.InDeltaSlice(t, alone, together, 1e-2)
}

func TestTorchLearnsFromScores(t *testing.T) {
	trainer := real(t)
	var rows []string
	for question := range secrets {
		rows = append(rows, fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"ground_truth":"x"}`, question))
	}
	temperature := 1.0
	o := learn(t, engines.Reinforcement, rows, engines.TrainSettings{Epochs: 12, LoraRank: 8, LearningRate: 5e-3,
		Loss: &domain.LossConfig{Method: "GRPO"}, Rollouts: &engines.Rollouts{
			InferenceParameters: domain.InferenceParameters{MaxOutputTokens: 12, Temperature: &temperature, ResponseCandidatesCount: 8}}})
	j, w := &judge{}, &watcher{}
	o.Evaluation = j
	_, err := trainer.Train(t.Context(), o, w)
	require.NoError(t, err)
	require.Len(t, j.rows, 12*3*8)
	told := w.rows[len(w.rows)-1].Values
	require.Equal(t, [4]float64{288, 288, 0, 36}, [4]float64{told[engines.RolloutsExpected], told[engines.RolloutsDone], told[engines.RolloutsFailed], told[engines.RolloutRows]})
	require.Greater(t, told[engines.RolloutTokens], 288.0)
	first, last := 0.0, 0.0
	for i := range 4 {
		first, last = first+w.rows[i].Values["reward/mean"], last+w.rows[8+i].Values["reward/mean"]
	}
	require.Greater(t, last, first)
}

// alike scores all answers the same, or none of them.
type alike engines.Score

func (alike) Close() error { return nil }

func (a alike) Score(_ context.Context, rows []map[string]any) ([]engines.Score, error) {
	scores := make([]engines.Score, len(rows))
	for i := range scores {
		scores[i] = engines.Score(a)
	}
	return scores, nil
}

// TestTorchStopsWhereNothingIsLearned, and before a model is ruined.
func TestTorchStopsWhereNothingIsLearned(t *testing.T) {
	trainer := real(t)
	prompt := []string{`{"messages":[{"role":"user","content":"Who?"}]}`}
	rollouts := engines.TrainSettings{Epochs: 2, LoraRank: 2, Rollouts: &engines.Rollouts{InferenceParameters: domain.InferenceParameters{MaxOutputTokens: 4, ResponseCandidatesCount: 2}}}
	o := learn(t, engines.Reinforcement, prompt, rollouts)
	o.Evaluation, o.EvalFiles = alike{Value: 0.25, Valid: true}, o.DataFiles
	result, err := trainer.Train(t.Context(), o, &watcher{})
	require.NoError(t, err)
	require.True(t, result.StoppedEarly)
	require.Contains(t, result.Reason, "no reward signal: the answers to each prompt scored alike (0.25 of 1 in the mean)")
	require.Equal(t, 0.25, result.Values["eval/reward"])

	o = learn(t, engines.Reinforcement, prompt, rollouts)
	o.Evaluation = alike{Reason: "ZeroDivisionError"}
	_, err = trainer.Train(t.Context(), o, &watcher{})
	require.ErrorContains(t, err, "evaluator: gave no valid score for any of 2 answers; the first reason is: ZeroDivisionError")
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))

	o = learn(t, engines.DPO, []string{`{"input":{"messages":[{"role":"user","content":"Who?"}]},"preferred_output":[{"role":"assistant","content":"Ann"}],"non_preferred_output":[{"role":"assistant","content":"Anna"}]}`},
		engines.TrainSettings{Epochs: 200, LearningRate: 0.02})
	result, err = trainer.Train(t.Context(), o, &watcher{})
	require.NoError(t, err)
	require.True(t, result.StoppedEarly, "%v", result.Values)
	require.Contains(t, result.Reason, "the chosen answers have become less likely")
}

func TestTorchNamesTheRowAtFault(t *testing.T) {
	trainer := real(t)
	for rows, says := range map[string]string{
		"{}": "rows.jsonl line 1: a row has either", "nothing": "rows.jsonl line 1: is not a JSON object", "": "holds no rows",
		`{"messages":[{"role":"user","content":"a"}]}`: "rows.jsonl line 1: has nothing to learn",
	} {
		_, err := trainer.Train(t.Context(), learn(t, engines.Supervised, []string{rows}, engines.TrainSettings{LoraRank: 8}), &watcher{})
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), "%v", err)
		require.ErrorContains(t, err, says)
	}
}
