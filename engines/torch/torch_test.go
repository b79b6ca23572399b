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

// A watcher records the progress of a training run and copies its last checkpoint.
type watcher struct {
	rows          []engines.Metrics
	steps         []int  // steps of the checkpoints
	checkpointDir string // the copy of the last checkpoint; "" makes none
	onStep        func(engines.Metrics)
	checkpointErr error
}

func (w *watcher) Step(m engines.Metrics) {
	m.Time = time.Time{}
	w.rows = append(w.rows, m)
	if w.onStep != nil {
		w.onStep(m)
	}
}

func (w *watcher) Checkpoint(ctx context.Context, step int, dir string) error {
	if err := errors.Join(w.checkpointErr, ctx.Err()); err != nil {
		return err
	}
	w.steps = append(w.steps, step)
	if w.checkpointDir == "" {
		return nil
	}
	return errors.Join(os.RemoveAll(w.checkpointDir), os.CopyFS(w.checkpointDir, os.DirFS(dir)))
}

// fakeTrainer returns a trainer that runs the script of testdata.
func fakeTrainer(t *testing.T) trainer {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed: apt install python3")
	}
	// The sandbox cannot run a python3 that is a wrapper script.
	executable, err := exec.Command(python, "-c", "import sys; print(sys.executable)").Output()
	require.NoError(t, err)
	return trainer{
		python: strings.TrimSpace(string(executable)), script: os.DirFS("testdata"), processes: 1,
		grace: 20 * time.Second,
	}
}

// request returns a request for the fake script; text selects its behavior.
func request(t *testing.T, text string) engines.TrainRequest {
	data := filepath.Join(t.TempDir(), "rows.jsonl")
	require.NoError(t, os.WriteFile(data, []byte(`{"text":"`+text+"\"}\n"), 0o600))
	return engines.TrainRequest{Method: engines.Supervised, DataFiles: []string{data}, WorkDir: t.TempDir(), Seed: 1,
		Settings: engines.TrainSettings{LoraRank: 8}}
}

func TestTrainReportsProgress(t *testing.T) {
	w, o := &watcher{}, request(t, "train")
	result, err := fakeTrainer(t).Train(t.Context(), o, w)
	require.NoError(t, err)
	require.Equal(t, engines.TrainResult{Dir: filepath.Join(o.WorkDir, "result"), Adapter: true, Steps: 6, Tokens: 60,
		Values: map[string]float64{"train/loss": 1.0 / 7}}, result)
	require.Len(t, w.rows, 6)
	require.Equal(t, engines.Metrics{Step: 1, Steps: 6, Epoch: 1.0 / 6, LearningRate: 0.1, Tokens: 10,
		Values: map[string]float64{"train/loss": 0.5}}, w.rows[0])
	require.Equal(t, []int{3, 6}, w.steps)
}

func TestTrainStopsWithACheckpointAndResumes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	first := &watcher{checkpointDir: filepath.Join(t.TempDir(), "checkpoint"), onStep: func(m engines.Metrics) {
		if m.Step == 2 {
			cancel()
		}
	}}
	_, err := fakeTrainer(t).Train(ctx, request(t, "hang"), first)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []int{2}, first.steps)
	o, second := request(t, "train"), &watcher{}
	o.ResumeDir = first.checkpointDir
	_, err = fakeTrainer(t).Train(t.Context(), o, second)
	require.NoError(t, err)
	require.Equal(t, 3, second.rows[0].Step)
}

// TestFollowReadsAnExitedScript checks that follow reads the messages of a script that exits before
// follow accepts its connection.
func TestFollowReadsAnExitedScript(t *testing.T) {
	run, err := fakeTrainer(t).start(request(t, "fault"), &watcher{}, nil)
	require.NoError(t, err)
	defer run.close()
	<-run.program.Done()
	_, err = run.follow(t.Context())
	require.ErrorContains(t, err, "rows.jsonl line 1: is not a row")
}

func TestTrainErrors(t *testing.T) {
	full := errors.New("the disk is full")
	for _, line := range []struct {
		text, message string
		code          domain.Code
		checkpointErr error
	}{
		{"fault", "rows.jsonl line 1: is not a row", domain.InvalidArgument, nil},
		{"crash", "last output: RuntimeError: CUDA out of memory", domain.Unknown, nil},
		{"garbage", "an invalid message", domain.Unknown, nil},
		{"outside", "which is outside of", domain.Unknown, nil},
		{"score", "the job has no evaluator", domain.FailedPrecondition, nil},
		{"train", "checkpoint of step 3: the disk is full", domain.Unknown, full},
	} {
		t.Run(line.text, func(t *testing.T) {
			w := &watcher{checkpointErr: line.checkpointErr}
			_, err := fakeTrainer(t).Train(t.Context(), request(t, line.text), w)
			require.ErrorContains(t, err, line.message)
			require.Equal(t, line.code, domain.CodeOf(err))
		})
	}
}

// A countingEvaluator scores responses by the number of letters a in them. It records the rows.
type countingEvaluator struct{ rows []map[string]any }

func (e *countingEvaluator) Close() error { return nil }

func (e *countingEvaluator) Score(_ context.Context, rows []map[string]any) ([]engines.Score, error) {
	e.rows = append(e.rows, rows...)
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

// TestUnsupportedSettingsAreRejected checks that settings that the script does not support are
// rejected before it starts, and that the script's reason for stopping early is returned.
func TestUnsupportedSettingsAreRejected(t *testing.T) {
	for field, edit := range map[string]func(*engines.TrainSettings){
		"jinjaTemplate": func(s *engines.TrainSettings) { s.JinjaTemplate = "{{ messages }}" },
		"replayWeight":  func(s *engines.TrainSettings) { s.ReplayWeight = 2 },
		"inferenceParameters.extraBody": func(s *engines.TrainSettings) {
			s.Rollouts = &engines.Rollouts{InferenceParameters: domain.InferenceParameters{ExtraBody: `{"min_p": 0.1}`}}
		},
	} {
		o := request(t, "train")
		edit(&o.Settings)
		_, err := fakeTrainer(t).Train(t.Context(), o, &watcher{})
		require.ErrorContains(t, err, field+": ")
		require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	}
	o := request(t, "stop")
	o.Settings.Rollouts = &engines.Rollouts{InferenceParameters: domain.InferenceParameters{ExtraBody: " {} "}}
	result, err := fakeTrainer(t).Train(t.Context(), o, &watcher{})
	require.NoError(t, err)
	require.True(t, result.StoppedEarly)
	require.Equal(t, "it was enough", result.Reason)
}

func TestRolloutsAreScoredByTheParent(t *testing.T) {
	o, e, w := request(t, "score"), &countingEvaluator{}, &watcher{}
	o.Evaluation = e
	var rollouts []engines.Rollout
	o.OnRollouts = func(all []engines.Rollout) { rollouts = append(rollouts, all...) }
	_, err := fakeTrainer(t).Train(t.Context(), o, w)
	require.NoError(t, err)
	require.Len(t, rollouts, 2)
	require.WithinDuration(t, time.Now(), rollouts[1].Time, time.Minute)
	rollouts[1].Time = time.Time{}
	require.Equal(t, engines.Rollout{Step: 1, Epoch: 0.5, Row: 7, Candidate: 2, Response: "no",
		Input: []byte(`{"ground_truth":"b","messages":[]}`)}, rollouts[1])
	require.Len(t, e.rows, 2)
	require.Equal(t, 0.5, w.rows[0].Values["reward/mean"])
}

func TestNewReportsMissingPrograms(t *testing.T) {
	_, err := New(t.Context(), Options{Python: "no-such-python"})
	require.ErrorContains(t, err, "no-such-python is not installed")
	bare := filepath.Join(t.TempDir(), "python")
	require.NoError(t, os.WriteFile(bare,
		[]byte("#!/bin/sh\necho noise\necho '"+foundMark+`{"missing":["torch","peft"]}`+"'\n"), 0o700))
	_, err = New(t.Context(), Options{Python: bare})
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.ErrorContains(t, err, "has no torch, peft: install them with `pip install torch transformers peft`")
}
