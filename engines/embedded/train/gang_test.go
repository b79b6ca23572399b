package train

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/engines/embedded/kernel"
)

// A pipe is a Link within this process.
type pipe struct{ in, out chan []byte }

func newPipe() (a, b pipe) {
	x, y := make(chan []byte, 4), make(chan []byte, 4)
	return pipe{x, y}, pipe{y, x}
}

func (p pipe) Send(ctx context.Context, message []byte) error {
	select {
	case p.out <- bytes.Clone(message):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p pipe) Receive(ctx context.Context) ([]byte, error) {
	select {
	case message := <-p.in:
		return message, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// trainOn trains on a number of nodes, each with its own copy of the model.
func trainOn(
	t *testing.T, ctx context.Context, nodes int, request engines.TrainRequest, watch engines.TrainWatcher,
) (result engines.TrainResult, err error) {
	leader, ended := &engines.Gang{}, make(chan error, nodes)
	assistCtx, stop := context.WithCancel(t.Context())
	defer stop()
	for rank := 1; rank < nodes; rank++ {
		own, theirs := newPipe()
		leader.Links = append(leader.Links, own)
		helping := request
		helping.DataFiles, helping.EvalFiles, helping.Evaluation = nil, nil, nil
		helping.WorkDir, helping.Parallelism = t.TempDir(), rank
		helping.Gang = &engines.Gang{Rank: rank, Links: []engines.Link{theirs}}
		go func() { ended <- Trainer{}.Assist(assistCtx, helping) }()
	}
	request.WorkDir, request.Gang = t.TempDir(), leader
	result, err = Trainer{}.Train(ctx, request, watch)
	if err == nil {
		for range nodes - 1 {
			require.NoError(t, <-ended)
		}
	}
	return result, err
}

// TestNodesComputeWhatOneNodeComputes trains on one, two and three nodes, and continues on three
// nodes from a checkpoint of two. All metrics and parameters must be bit-identical.
func TestNodesComputeWhatOneNodeComputes(t *testing.T) {
	base := smallBase(t, 1)
	for name, tc := range trainings() {
		t.Run(name, func(t *testing.T) {
			request := engines.TrainRequest{Method: tc.method, BaseDir: base, Settings: tc.settings, Seed: 9, Parallelism: 1,
				DataFiles: []string{writeRows(t, "rows.jsonl", tc.rows...)}, Evaluation: letterEvaluator{}}
			request.WorkDir = t.TempDir()
			whole := &recorder{t: t}
			want := mustTrain(t, request, whole)

			request.Parallelism = 2
			ctx, cancel := context.WithCancel(t.Context())
			first := &recorder{t: t, onStep: func(m engines.Metrics) {
				if m.Step == 3 {
					cancel()
				}
			}}
			_, err := trainOn(t, ctx, 2, request, first)
			cancel()
			require.ErrorIs(t, err, context.Canceled)
			for nodes, resume := range map[int]string{2: "", 3: first.checkpoints[3]} {
				request.ResumeDir = resume
				parallel := &recorder{t: t}
				got, err := trainOn(t, t.Context(), nodes, request, parallel)
				require.NoError(t, err)
				require.Equal(t, resultOf(t, want, base), resultOf(t, got, base), "%d nodes", nodes)
				require.Equal(t, want.Values, got.Values)
				require.Equal(t, numbers(whole.rows), numbers(metricsIn(t, parallel.checkpoints[got.Steps])))
			}
		})
	}
}

// TestGangSharesTheWork checks that a second node computes half of the shards of a large batch, and
// that a node whose arithmetic differs computes none, without changing the result.
func TestGangSharesTheWork(t *testing.T) {
	base := smallBase(t, 1)
	request := engines.TrainRequest{BaseDir: base, Seed: 9, Parallelism: 1,
		DataFiles: []string{writeRows(t, "rows.jsonl", chatRows(300)...)},
		Settings:  engines.TrainSettings{Epochs: 1, LoraRank: 2, BatchSizeTokens: 1 << 14, BatchSizeSamples: 300}}
	request.WorkDir = t.TempDir()
	want := mustTrain(t, request, &recorder{t: t})
	levels := kernel.Levels()
	for _, level := range []string{kernel.Level(), levels[len(levels)-1]} {
		t.Run(level, func(t *testing.T) {
			same := level == kernel.Level()
			own, theirs := newPipe()
			helping := request
			helping.WorkDir, helping.Gang = t.TempDir(), &engines.Gang{Rank: 1, Links: []engines.Link{theirs}}
			var log bytes.Buffer
			request.Log = &log
			request.WorkDir, request.Gang = t.TempDir(), &engines.Gang{Links: []engines.Link{own}}
			go func() {
				if same {
					_ = Trainer{}.Assist(t.Context(), helping)
					return
				}
				_ = send(t.Context(), theirs, greeting{gangVersion, level, "another"})
				var reply order
				_ = receiveInto(t.Context(), theirs, &reply)
			}()
			got := mustTrain(t, request, &recorder{t: t})
			require.Equal(t, resultOf(t, want, base), resultOf(t, got, base))
			if same {
				require.Contains(t, log.String(), "number of nodes that share each step: 2")
			} else {
				require.Contains(t, log.String(), "number of nodes that share each step: 1")
				require.Contains(t, log.String(), "does not help")
			}
		})
	}
	bounds := parts(40)
	require.Len(t, bounds, maxParts+1)
	require.Equal(t, []int{0, 2, 5}, bounds[:3])
	require.Equal(t, 40, bounds[maxParts])
}
