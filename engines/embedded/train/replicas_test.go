package train

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/engines/embedded/llama"
)

// TestReplicasGiveTheSameRollouts checks that rollouts, metrics and trained parameters do not
// depend on the number of replicas that generate the rollouts, and that a checkpoint of one number
// can be resumed with another.
func TestReplicasGiveTheSameRollouts(t *testing.T) {
	base := smallBase(t, 1)
	held := writeRows(t, "held.jsonl", promptRows(3)...)
	for _, rank := range []int{0, 2} {
		var want []float32
		var rollouts map[string][]engines.Rollout
		var rows []engines.Metrics
		var checkpoint string
		for _, replicas := range []int{0, 1, 2, 4, 1000} {
			request := rolloutRequest(t, base, promptRows(9), letters(t))
			how := *shortResponses
			how.MaxReplicas = replicas
			request.Settings.LoraRank, request.Settings.Rollouts, request.Settings.CheckpointSteps = rank, &how, 1
			request.EvalFiles, request.Parallelism = []string{held}, 4
			got, watch := recordRollouts(&request), &recorder{t: t}
			result := mustTrain(t, request, watch)
			metrics := withoutCached(watch.rows)
			if want == nil {
				want, rollouts, rows, checkpoint = resultOf(t, result, base), got, metrics, watch.checkpoints[1]
				require.Len(t, rollouts["1 false"], 16)
				require.NotEmpty(t, rollouts["3 true"])
				continue
			}
			require.Equal(t, rollouts, got, replicas)
			require.Equal(t, rows, metrics, replicas)
			require.Equal(t, want, resultOf(t, result, base), replicas)
			if replicas == 4 {
				request.ResumeDir, request.WorkDir = checkpoint, t.TempDir()
				result := mustTrain(t, request, &recorder{t: t})
				require.Equal(t, want, resultOf(t, result, base), "resumed with other replicas")
			}
		}
	}
}

// letters returns an evaluator that scores with letterEvaluator.
func letters(t *testing.T) evaluatorFunc {
	return func(row map[string]any) (engines.Score, error) {
		scores, err := letterEvaluator{}.Score(t.Context(), []map[string]any{row})
		return scores[0], err
	}
}

// withoutCached returns rows of metrics without what depends on time: which of two concurrent
// responses to a prompt is first, and finds nothing in the prefix cache.
func withoutCached(rows []engines.Metrics) []engines.Metrics {
	rows = numbers(rows)
	for _, row := range rows {
		delete(row.Values, engines.RolloutCached)
	}
	return rows
}

// TestReplicasGenerateConcurrently checks that all replicas of a step generate at the same time: no
// rollout of a step is complete before each replica has begun one.
func TestReplicasGenerateConcurrently(t *testing.T) {
	base := smallBase(t, 1)
	for _, tc := range []struct{ replicas, concurrent, cores, want int }{
		{0, 32, 4, 1}, {1, 32, 4, 1}, {2, 32, 4, 2}, {4, 4, 4, 4}, {4, 6, 4, 4}, {4, 3, 4, 3}, {4, 32, 2, 2},
		{1000, 32, 8, 4}, // a step has 4 rows
	} {
		t.Run(fmt.Sprint(tc), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // only a failure takes so long
			defer cancel()
			request := rolloutRequest(t, base, promptRows(8), letters(t))
			how := *shortResponses
			how.MaxReplicas, how.MaxConcurrent = tc.replicas, tc.concurrent
			request.Settings.Rollouts, request.Parallelism = &how, tc.cores
			j, err := newJob(ctx, request, &recorder{t: t})
			require.NoError(t, err)
			defer j.metrics.Close()
			r := j.procedure.(*rollouts)
			var started []int
			r.startReplicas = func(net *llama.Net, n int) ([]engines.Model, error) {
				models, err := r.startModels(net, n)
				begun := &barrier{waiting: n, open: make(chan struct{})}
				for i := range models {
					models[i] = &waitingModel{Model: models[i], all: begun}
				}
				started = append(started, len(models))
				return models, err
			}
			require.NoError(t, j.run(ctx))
			require.Equal(t, []int{tc.want, tc.want}, started, "two chunks of 4 prompts")
		})
	}
}

// A barrier opens when a number of replicas have arrived.
type barrier struct {
	mu      sync.Mutex
	waiting int
	open    chan struct{}
}

func (b *barrier) arrive() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting--; b.waiting == 0 {
		close(b.open)
	}
}

// A waitingModel begins its first completion only when all models of the barrier have one to begin.
type waitingModel struct {
	engines.Model
	all  *barrier
	once sync.Once
}

func (m *waitingModel) Complete(
	ctx context.Context, request engines.CompletionRequest, emit func(engines.Chunk) error,
) (engines.Usage, error) {
	m.once.Do(m.all.arrive)
	select {
	case <-m.all.open:
		return m.Model.Complete(ctx, request, emit)
	case <-ctx.Done():
		return engines.Usage{}, ctx.Err()
	}
}
