package simulated_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/simulated"
)

// A watcher records the progress of a training run.
type watcher struct {
	rows          []engines.Metrics
	checkpoints   []string // directories of the checkpoints
	onStep        func(step int)
	checkpointErr error
}

func (w *watcher) Step(m engines.Metrics) {
	m.Time = time.Time{}
	w.rows = append(w.rows, m)
	if w.onStep != nil {
		w.onStep(m.Step)
	}
}

func (w *watcher) Checkpoint(ctx context.Context, _ int, dir string) error {
	w.checkpoints = append(w.checkpoints, dir)
	return errors.Join(ctx.Err(), w.checkpointErr)
}

func request(t *testing.T) engines.TrainRequest {
	data := filepath.Join(t.TempDir(), "rows.jsonl")
	require.NoError(t, os.WriteFile(data, []byte(strings.Repeat("{\"text\":\"a\"}\n", 40)), 0o644))
	return engines.TrainRequest{
		Method: engines.Supervised, DataFiles: []string{data}, WorkDir: t.TempDir(), Seed: 7,
		Settings: engines.TrainSettings{Epochs: 4, LoraRank: 8, EvalAutoCarveout: true, CheckpointSteps: 6},
	}
}

// dirOf returns a directory with the files of a result.
func dirOf(t *testing.T, result engines.TrainResult) string {
	dir := t.TempDir()
	for name, content := range result.Files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	return dir
}

func TestTrainReducesTheLossAndWritesAnAdapter(t *testing.T) {
	w := &watcher{}
	result, err := simulated.New(simulated.Options{}).Trainer.Train(t.Context(), request(t), w)
	require.NoError(t, err)
	assert.Equal(t, 20, result.Steps)
	assert.True(t, result.Adapter)
	assert.Contains(t, result.Files, "adapter_config.json")
	assert.Less(t, w.rows[19].Values["train/loss"], w.rows[0].Values["train/loss"]/2)
	assert.Contains(t, w.rows[4].Values, "eval/loss")
	assert.Len(t, w.checkpoints, 3)
	assert.Equal(t, result.Values["train/loss"], w.rows[19].Values["train/loss"])
}

func TestResumeGivesTheSameNumbers(t *testing.T) {
	trainer := simulated.New(simulated.Options{Seed: 3}).Trainer
	uninterrupted := &watcher{}
	want, err := trainer.Train(t.Context(), request(t), uninterrupted)
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	first := &watcher{onStep: func(step int) {
		if step == 9 {
			cancel()
		}
	}}
	_, err = trainer.Train(ctx, request(t), first)
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, first.checkpoints, 2, "one due at step 6, one because of the cancellation at 9")

	again := request(t)
	again.ResumeDir = first.checkpoints[1]
	second := &watcher{}
	got, err := trainer.Train(t.Context(), again, second)
	require.NoError(t, err)
	assert.Equal(t, uninterrupted.rows, append(first.rows, second.rows...))
	assert.Equal(t, want.Values, got.Values)
	assert.Equal(t, want.Tokens, got.Tokens)
	assert.Equal(t, 20, strings.Count(string(got.Files["metrics.jsonl"]), "\n"))
}

func TestTrainRejectsInvalidRows(t *testing.T) {
	for name, content := range map[string]string{"line 2": "{}\nnot json\n", "no rows": "\n\n"} {
		o := request(t)
		require.NoError(t, os.WriteFile(o.DataFiles[0], []byte(content), 0o644))
		_, err := simulated.New(simulated.Options{}).Trainer.Train(t.Context(), o, &watcher{})
		assert.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
		assert.ErrorContains(t, err, name)
	}
}

func TestFaultsAreInjected(t *testing.T) {
	broken := errors.New("injected")
	for _, name := range []string{simulated.TrainStep, simulated.WriteCheckpoint, simulated.LoadModel,
		simulated.CompleteToken} {
		engine := simulated.New(simulated.Options{Fault: func(a simulated.Action) error {
			if a.Name == name && (a.Step == 6 || a.Step == 0) || a.Name == name && name == simulated.CompleteToken {
				return broken
			}
			return nil
		}})
		_, trainErr := engine.Trainer.Train(t.Context(), request(t), &watcher{})
		model, loadErr := engine.Completer.Load(t.Context(), engines.ModelFiles{})
		var completeErr error
		if loadErr == nil {
			_, completeErr = model.Complete(t.Context(), engines.CompletionRequest{MaxTokens: 5},
				func(engines.Chunk) error { return nil })
		}
		assert.ErrorIs(t, errors.Join(trainErr, loadErr, completeErr), broken, name)
	}
	w := &watcher{checkpointErr: broken}
	_, err := simulated.New(simulated.Options{}).Trainer.Train(t.Context(), request(t), w)
	assert.ErrorIs(t, err, broken)
}

func TestStepTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := simulated.New(simulated.Options{Steps: 5,
			StepTime: func(step int) time.Duration { return time.Duration(step) * time.Hour }})
		start := time.Now()
		_, err := engine.Trainer.Train(t.Context(), request(t), &watcher{})
		require.NoError(t, err)
		assert.Equal(t, 15*time.Hour, time.Since(start))
	})
}

func load(t *testing.T, options simulated.Options) engines.Model {
	model, err := simulated.New(options).Completer.Load(t.Context(), engines.ModelFiles{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, model.Close()) })
	return model
}

func complete(t *testing.T, m engines.Model, req engines.CompletionRequest) (text, finish string, usage engines.Usage) {
	usage, err := m.Complete(t.Context(), req, func(c engines.Chunk) error {
		assert.Empty(t, finish, "a chunk after the last one")
		text, finish = text+c.Text, c.Finish
		return nil
	})
	require.NoError(t, err)
	return text, finish, usage
}

func TestCompletionsDependOnPromptAndSeed(t *testing.T) {
	m := load(t, simulated.Options{})
	one, two := uint64(1), uint64(2)
	base := engines.CompletionRequest{Prompt: "hello", MaxTokens: 30, Temperature: 1, Seed: &one}
	text, finish, usage := complete(t, m, base)
	again, _, _ := complete(t, m, base)
	assert.Equal(t, text, again)
	assert.Equal(t, engines.FinishStop, finish)
	assert.Equal(t, engines.Usage{PromptTokens: 6, CompletionTokens: len(strings.Fields(text))}, usage)

	other := base
	other.Seed = &two
	differs, _, _ := complete(t, m, other)
	assert.NotEqual(t, text, differs)

	short := base
	short.MaxTokens, short.IgnoreEOS = 2, true
	text2, finish, _ := complete(t, m, short)
	assert.Equal(t, strings.Join(strings.Fields(text)[:2], " "), text2)
	assert.Equal(t, engines.FinishLength, finish)

	stopped := base
	stopped.Stop = []string{strings.Fields(text)[2]}
	text3, finish, _ := complete(t, m, stopped)
	assert.True(t, strings.HasPrefix(text, text3))
	assert.NotContains(t, text3, stopped.Stop[0])
	assert.Equal(t, engines.FinishStop, finish)
}

func TestTunedModelDiffersFromBase(t *testing.T) {
	engine := simulated.New(simulated.Options{})
	result, err := engine.Trainer.Train(t.Context(), request(t), &watcher{})
	require.NoError(t, err)
	tuned, err := engine.Completer.Load(t.Context(), engines.ModelFiles{AdapterDir: dirOf(t, result)})
	require.NoError(t, err)
	req := engines.CompletionRequest{Prompt: "hello", MaxTokens: 30}
	a, _, _ := complete(t, load(t, simulated.Options{}), req)
	b, _, _ := complete(t, tuned, req)
	assert.NotEqual(t, a, b)
}

func TestCompletionLimits(t *testing.T) {
	m := load(t, simulated.Options{ContextLength: 8})
	_, err := m.Complete(t.Context(), engines.CompletionRequest{Prompt: "1234567"}, nil)
	assert.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
	_, err = m.Complete(t.Context(), engines.CompletionRequest{Stop: make([]string, 5)}, nil)
	assert.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
	require.NoError(t, m.Close())
	_, err = m.Complete(t.Context(), engines.CompletionRequest{}, nil)
	assert.Equal(t, domain.Unavailable, domain.CodeOf(err))
}

func TestFullQueueRejectsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := simulated.New(simulated.Options{Slots: 1, Queue: 1,
			TokenTime: func(int) time.Duration { return time.Second }})
		m, err := engine.Completer.Load(t.Context(), engines.ModelFiles{})
		require.NoError(t, err)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				_, err := m.Complete(t.Context(), engines.CompletionRequest{MaxTokens: 4}, func(engines.Chunk) error { return nil })
				assert.NoError(t, err)
			})
			synctest.Wait()
		}
		_, err = m.Complete(t.Context(), engines.CompletionRequest{MaxTokens: 4}, nil)
		assert.Equal(t, domain.ResourceExhausted, domain.CodeOf(err))
		wg.Wait()
	})
}

func TestTranscribeEmitsAWordForEachLoudHalfSecond(t *testing.T) {
	m, err := simulated.New(simulated.Options{}).Transcribers[simulated.SpeechFormat].LoadSpeech(t.Context(),
		engines.SpeechFiles{Dir: t.TempDir()})
	require.NoError(t, err)
	sound := append(bytes.Repeat([]byte{0, 0}, 16000), bytes.Repeat([]byte{0, 32}, 16000)...)
	var segments []engines.Segment
	transcript, err := m.Transcribe(t.Context(), bytes.NewReader(sound), engines.TranscriptionOptions{},
		func(event engines.TranscriptEvent) error {
			if event.Segment != nil {
				segments = append(segments, *event.Segment)
			}
			return nil
		})
	require.NoError(t, err)
	require.Len(t, segments, 1)
	assert.Len(t, segments[0].Words, 2)
	assert.InDelta(t, 1.0, segments[0].Start, 1e-9)
	assert.InDelta(t, 2.0, transcript.Duration, 1e-9)
	assert.ErrorContains(t, m.Check(engines.TranscriptionOptions{Language: "de", Diarize: true}), "diarize")
}

func TestChatsAndEcho(t *testing.T) {
	m, err := simulated.New(simulated.Options{}).Completer.Load(t.Context(), engines.ModelFiles{Dir: t.TempDir()})
	require.NoError(t, err)
	complete := func(req engines.CompletionRequest) (text string, usage engines.Usage, err error) {
		req.MaxTokens = 30
		usage, err = m.Complete(t.Context(), req, func(c engines.Chunk) error { text += c.Text; return nil })
		return text, usage, err
	}
	chat := func(content string) engines.CompletionRequest {
		return engines.CompletionRequest{Chat: &engines.Chat{Messages: []engines.Message{{Role: "user", Content: content}}}}
	}
	one, usage, err := complete(chat("hello"))
	require.NoError(t, err)
	require.Equal(t, 1+len("user: hello\n"), usage.PromptTokens)
	again, _, err := complete(chat("hello"))
	require.NoError(t, err)
	require.Equal(t, one, again)
	other, _, err := complete(chat("bye"))
	require.NoError(t, err)
	require.NotEqual(t, one, other)
	echoed, _, err := complete(engines.CompletionRequest{Prompt: "abc", Echo: true})
	require.NoError(t, err)
	require.Equal(t, "abc", echoed[:3])
	_, _, err = complete(engines.CompletionRequest{Prompt: "abc",
		Format: &engines.ResponseFormat{Type: engines.FormatGrammar, Grammar: "root ::= [a-z]"}})
	require.ErrorContains(t, err, "format: ")
	require.NoError(t, m.Close())
}
