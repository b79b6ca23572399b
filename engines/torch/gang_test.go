package torch

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/internal/testutil"
)

// stubbedTrainer returns the trainer with PyTorch and the stubs of transformers and peft in testdata.
// Its processes connect at the loopback interface.
func stubbedTrainer(t *testing.T) gangTrainer {
	libraries, err := filepath.Abs("testdata/libraries")
	require.NoError(t, err)
	t.Setenv("PYTHONPATH", libraries)
	t.Setenv("PYTHONDONTWRITEBYTECODE", "1")
	for _, python := range []string{os.Getenv("ANNEAL_PYTHON"), "python3", "/usr/bin/python3"} {
		if exec.Command(cmp.Or(python, "python3"), "-c", "import torch").Run() != nil {
			continue
		}
		made, err := New(t.Context(), Options{Python: python, GangAddress: "127.0.0.1", GracePeriod: 20 * time.Second})
		require.NoError(t, err)
		return made.(gangTrainer)
	}
	t.Skip("PyTorch is not installed: apt install python3-torch")
	return gangTrainer{}
}

// A chanLink is one end of a link in memory.
type chanLink struct{ out, in chan []byte }

func newLinks() (a, b chanLink) {
	x, y := make(chan []byte, 16), make(chan []byte, 16)
	return chanLink{x, y}, chanLink{y, x}
}

func (l chanLink) Send(ctx context.Context, message []byte) error {
	select {
	case l.out <- message:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l chanLink) Receive(ctx context.Context) ([]byte, error) {
	select {
	case message := <-l.in:
		return message, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// gangRequest returns a request with rows for the stubs. A row without a text is invalid.
func gangRequest(t *testing.T, texts ...string) engines.TrainRequest {
	rows := filepath.Join(t.TempDir(), "rows.jsonl")
	var lines []string
	for _, text := range texts {
		lines = append(lines, `{"text":"`+text+`"}`)
	}
	require.NoError(t, os.WriteFile(rows, []byte(strings.Join(lines, "\n")), 0o600))
	return engines.TrainRequest{Method: engines.Supervised, BaseDir: t.TempDir(), DataFiles: []string{rows},
		WorkDir: t.TempDir(), Seed: 3, Parallelism: 1, Settings: engines.TrainSettings{Epochs: 4, LearningRate: 1e-2,
			BatchSizeSamples: 4, CheckpointSteps: 2, EvalAutoCarveout: true}}
}

var gangTexts = strings.Split("the first row|a second one|three|and the fourth|five|the sixth row|seven|eight|"+
	"number nine|ten|eleven|the last", "|")

// A gangRun is the outcome of a training run on two nodes.
type gangRun struct {
	result   engines.TrainResult
	err      error // of the leader
	assisted error // of the helper
}

// trainOnTwo trains on two nodes, of which helping is the context of the second one.
func (t gangTrainer) trainOnTwo(
	test *testing.T, leading, helping context.Context, o engines.TrainRequest, w *watcher,
) (r gangRun) {
	a, b := newLinks()
	theirs := o
	theirs.DataFiles, theirs.WorkDir, theirs.Gang = nil, test.TempDir(), &engines.Gang{Rank: 1, Links: []engines.Link{b}}
	o.Gang = &engines.Gang{Links: []engines.Link{a}}
	assisted := make(chan error, 1)
	go func() { assisted <- t.Assist(helping, theirs) }()
	r.result, r.err = t.Train(leading, o, w)
	r.assisted = <-assisted
	return r
}

// TestTorchGang trains on two nodes with torchrun, PyTorch and gloo, and checks that the numbers are
// those of two processes on one node, also if the training was interrupted and resumed.
func TestTorchGang(t *testing.T) {
	both := stubbedTrainer(t)
	one := both.trainer
	one.processes = 2
	o, alone := gangRequest(t, gangTexts...), &watcher{}
	want, err := one.Train(t.Context(), o, alone)
	require.NoError(t, err)
	require.Equal(t, 12, want.Steps)
	require.Less(t, alone.rows[len(alone.rows)-1].Values["eval/loss"], alone.rows[1].Values["eval/loss"])
	sums := testutil.ReadFile(t, filepath.Join(want.Dir, "sums.json"))

	first := &watcher{checkpointDir: filepath.Join(t.TempDir(), "checkpoint")}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first.onStep = func(m engines.Metrics) {
		if m.Step == 5 {
			cancel()
		}
	}
	o.WorkDir = t.TempDir()
	run := both.trainOnTwo(t, ctx, t.Context(), o, first)
	require.ErrorIs(t, run.err, context.Canceled)
	require.NoError(t, run.assisted)
	require.NotEmpty(t, first.steps)
	o.WorkDir, o.ResumeDir = t.TempDir(), first.checkpointDir
	second := &watcher{}
	run = both.trainOnTwo(t, t.Context(), t.Context(), o, second)
	require.NoError(t, run.err)
	require.NoError(t, run.assisted)
	require.Equal(t, want.Values, run.result.Values)
	require.Equal(t, alone.rows[len(alone.rows)-len(second.rows):], second.rows)
	require.Greater(t, len(first.rows)+len(second.rows), len(alone.rows)-1)
	require.Equal(t, sums, testutil.ReadFile(t, filepath.Join(run.result.Dir, "sums.json")))
}

// TestTorchGangFails checks that the processes of all nodes end when those of one fail, and that the
// leader returns the cause.
func TestTorchGangFails(t *testing.T) {
	for name, c := range map[string]struct {
		fails   string // rank and call
		texts   []string
		message string
		code    domain.Code
	}{
		"the leader": {"0:3", gangTexts, "CUDA out of memory", domain.Unknown},
		"the helper": {"1:3", gangTexts, "node 2 of the gang: the training script failed", domain.Unknown},
		"a row": {"", append([]string{""}, gangTexts...), "rows.jsonl line 1: has nothing to learn",
			domain.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			both := stubbedTrainer(t)
			t.Setenv("TORCH_STUB_FAILS", c.fails)
			run := both.trainOnTwo(t, t.Context(), t.Context(), gangRequest(t, c.texts...), &watcher{})
			require.ErrorContains(t, run.err, c.message)
			require.Equal(t, c.code, domain.CodeOf(run.err))
			require.NoError(t, run.assisted, "only the leader reports the failure")
		})
	}
}

// TestTorchGangStops checks that a checkpoint is saved when the node of a helper shuts down.
func TestTorchGangStops(t *testing.T) {
	both := stubbedTrainer(t)
	both.grace = 5 * time.Second
	helping, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := &watcher{}
	w.onStep = func(engines.Metrics) { cancel() }
	o := gangRequest(t, gangTexts...)
	o.Settings.CheckpointSteps, o.Settings.Epochs = 1000, 1000
	run := both.trainOnTwo(t, t.Context(), helping, o, w)
	require.ErrorContains(t, run.err, "node 2 of the gang stops")
	require.ErrorIs(t, run.assisted, context.Canceled)
	require.Len(t, w.steps, 1)
}

func TestGangAddresses(t *testing.T) {
	device, err := InterfaceOf("127.0.0.1")
	require.NoError(t, err)
	require.NotEmpty(t, device)
	for _, address := range []string{"", "localhost", "192.0.2.1"} {
		_, err := InterfaceOf(address)
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), address)
	}
}
