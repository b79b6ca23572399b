package torch

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
)

// A watcher remembers what it hears, and keeps the last checkpoint.
type watcher struct {
	rows   []engines.Metrics
	steps  []int // of checkpoints
	kept   string
	onStep func(engines.Metrics)
	refuse error
}

func (w *watcher) Step(m engines.Metrics) {
	m.Time = time.Time{}
	w.rows = append(w.rows, m)
	if w.onStep != nil {
		w.onStep(m)
	}
}

func (w *watcher) Checkpoint(ctx context.Context, step int, dir string) error {
	if err := errors.Join(w.refuse, ctx.Err()); err != nil {
		return err
	}
	w.steps = append(w.steps, step)
	if w.kept == "" {
		return nil
	}
	return errors.Join(os.RemoveAll(w.kept), os.CopyFS(w.kept, os.DirFS(dir)))
}

// standIn runs the script of testdata in place of the trainer's own.
func standIn(t *testing.T) trainer {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed: apt install python3")
	}
	itself, err := exec.Command(python, "-c", "import sys; print(sys.executable)").Output() // python may be a script that starts it
	require.NoError(t, err)
	return trainer{python: strings.TrimSpace(string(itself)), script: os.DirFS("testdata"), many: 1, grace: 20 * time.Second}
}

func order(t *testing.T, text string) engines.TrainRequest {
	data := filepath.Join(t.TempDir(), "rows.jsonl")
	require.NoError(t, os.WriteFile(data, []byte(`{"text":"`+text+"\"}\n"), 0o600))
	return engines.TrainRequest{Method: engines.Supervised, DataFiles: []string{data}, WorkDir: t.TempDir(), Seed: 1, Settings: engines.TrainSettings{LoraRank: 8}}
}

func TestATrainingIsToldAsItGoes(t *testing.T) {
	w, o := &watcher{}, order(t, "train")
	result, err := standIn(t).Train(t.Context(), o, w)
	require.NoError(t, err)
	require.Equal(t, engines.TrainResult{Dir: filepath.Join(o.WorkDir, "result"), Adapter: true, Steps: 6, Tokens: 60,
		Values: map[string]float64{"train/loss": 1.0 / 7}}, result)
	require.Len(t, w.rows, 6)
	require.Equal(t, engines.Metrics{Step: 1, Steps: 6, Epoch: 1.0 / 6, LearningRate: 0.1, Tokens: 10, Values: map[string]float64{"train/loss": 0.5}}, w.rows[0])
	require.Equal(t, []int{3, 6}, w.steps)
}

func TestATrainingStopsWithACheckpointAndGoesOn(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	first := &watcher{kept: filepath.Join(t.TempDir(), "kept"), onStep: func(m engines.Metrics) {
		if m.Step == 2 {
			cancel()
		}
	}}
	_, err := standIn(t).Train(ctx, order(t, "hang"), first)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []int{2}, first.steps)
	o, second := order(t, "train"), &watcher{}
	o.ResumeDir = first.kept
	_, err = standIn(t).Train(t.Context(), o, second)
	require.NoError(t, err)
	require.Equal(t, 3, second.rows[0].Step)
}

// What a script said is heard also when it has ended before anybody listens.
func TestAScriptThatHasEndedIsHeard(t *testing.T) {
	run, err := standIn(t).begin(t.TempDir(), order(t, "fault"), &watcher{})
	require.NoError(t, err)
	defer run.close()
	<-run.program.Done()
	_, err = run.follow(t.Context())
	require.ErrorContains(t, err, "rows.jsonl line 1: is not a row")
}

func TestTrainingsThatFail(t *testing.T) {
	full := errors.New("the disk is full")
	for _, line := range []struct {
		text, says string
		code       domain.Code
		refuse     error
	}{
		{"fault", "rows.jsonl line 1: is not a row", domain.InvalidArgument, nil},
		{"crash", "last output: RuntimeError: CUDA out of memory", domain.Unknown, nil},
		{"garbage", "what is no message", domain.Unknown, nil},
		{"outside", "outside of its own", domain.Unknown, nil},
		{"score", "the job has none that could score", domain.FailedPrecondition, nil},
		{"train", "checkpoint of step 3: the disk is full", domain.Unknown, full},
	} {
		t.Run(line.text, func(t *testing.T) {
			_, err := standIn(t).Train(t.Context(), order(t, line.text), &watcher{refuse: line.refuse})
			require.ErrorContains(t, err, line.says)
			require.Equal(t, line.code, domain.CodeOf(err))
		})
	}
}

// A judge likes answers that have an a.
type judge struct{ rows []map[string]any }

func (j *judge) Close() error { return nil }

func (j *judge) Score(_ context.Context, rows []map[string]any) ([]engines.Score, error) {
	j.rows = append(j.rows, rows...)
	scores := make([]engines.Score, len(rows))
	for i, row := range rows {
		scores[i].Valid = row["ground_truth"] != "b"
		scores[i].Value = 0.5
		if messages, _ := row["messages"].([]any); len(messages) > 0 {
			text, _ := messages[len(messages)-1].(map[string]any)["content"].(string)
			scores[i].Value = min(1, float64(strings.Count(text, "a"))/4)
		}
	}
	return scores, nil
}

// What the script takes no notice of is refused before it begins; why it ends is
// its own to say.
func TestWhatTheScriptDoesNotTakeIsRefused(t *testing.T) {
	for field, edit := range map[string]func(*engines.TrainSettings){
		"jinjaTemplate": func(s *engines.TrainSettings) { s.JinjaTemplate = "{{ messages }}" },
		"inferenceParameters.extraBody": func(s *engines.TrainSettings) {
			s.Rollouts = &engines.Rollouts{InferenceParameters: domain.InferenceParameters{ExtraBody: `{"min_p": 0.1}`}}
		},
	} {
		o := order(t, "train")
		edit(&o.Settings)
		_, err := standIn(t).Train(t.Context(), o, &watcher{})
		require.ErrorContains(t, err, field+": ")
		require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	}
	o := order(t, "stop")
	o.Settings.Rollouts = &engines.Rollouts{InferenceParameters: domain.InferenceParameters{ExtraBody: " {} "}}
	result, err := standIn(t).Train(t.Context(), o, &watcher{})
	require.NoError(t, err)
	require.True(t, result.StoppedEarly)
	require.Equal(t, "it was enough", result.Reason)
}

func TestAnswersAreScoredByTheParent(t *testing.T) {
	o, j, w := order(t, "score"), &judge{}, &watcher{}
	o.Evaluation = j
	_, err := standIn(t).Train(t.Context(), o, w)
	require.NoError(t, err)
	require.Len(t, j.rows, 2)
	require.Equal(t, 0.5, w.rows[0].Values["reward/mean"])
}

func TestWhatIsMissingIsNamed(t *testing.T) {
	_, err := New(t.Context(), Options{Python: "no-such-python"})
	require.ErrorContains(t, err, "no-such-python is not installed")
	bare := filepath.Join(t.TempDir(), "python")
	require.NoError(t, os.WriteFile(bare, []byte("#!/bin/sh\necho noise\necho '"+foundMark+`{"missing":["torch","peft"]}`+"'\n"), 0o700))
	_, err = New(t.Context(), Options{Python: bare})
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.ErrorContains(t, err, "has no torch, peft: `pip install torch transformers peft`")
}
