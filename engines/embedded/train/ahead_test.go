package train

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
)

// aheadRequest returns a training of 6 chunks of 4 rows.
func aheadRequest(t *testing.T, base string, staleness int, with evaluatorFunc) engines.TrainRequest {
	request := rolloutRequest(t, base, promptRows(24), with)
	request.Settings.Rollouts, request.Settings.LearningRate = responsesAhead(staleness), 0.02
	return request
}

// chunkOf returns the number of the chunk to which a row of aheadRequest belongs.
func chunkOf(row map[string]any) int {
	number, _ := strconv.Atoi(strings.TrimPrefix(row["messages"].([]any)[0].(map[string]any)["content"].(string), "say "))
	return slices.Index(rand.New(rand.NewPCG(0, 0)).Perm(24), number) / 4
}

// TestStalenessIsBounded checks for each bound that the staleness of every step is the largest that
// the bound and the number of trained chunks allow, and that the responses of a step were generated
// by the weights of that staleness.
func TestStalenessIsBounded(t *testing.T) {
	base := smallBase(t, 1)
	var synchronous map[string][]engines.Rollout
	for bound := range domain.MaxStaleness + 1 {
		request, watch := aheadRequest(t, base, bound, letters(t)), &recorder{t: t}
		got := recordRollouts(&request)
		mustTrain(t, request, watch)
		require.Len(t, watch.rows, 6)
		for i, row := range watch.rows {
			staleness, reported := row.Values["train/staleness"]
			require.Equal(t, bound > 0, reported)
			require.Equal(t, float64(min(i, bound)), staleness, "step %d, bound %d", i+1, bound)
			// Responses of the weights that are trained have a ratio of 1.
			require.Equal(t, staleness == 0, row.Values["train/ratio"] == 1, "step %d, bound %d", i+1, bound)
		}
		if bound == 0 {
			synchronous = got
			continue
		}
		require.Equal(t, synchronous["1 false"], got["1 false"], "the initial weights generate the first chunk")
		require.NotEqual(t, synchronous["2 false"], got["2 false"])
	}
}

// TestGeneratedAheadIsIndependentOfTime checks that neither slow generation nor slow training
// changes the result.
func TestGeneratedAheadIsIndependentOfTime(t *testing.T) {
	base := smallBase(t, 1)
	var want []float32
	for _, slow := range []struct{ score, step time.Duration }{{0, 0}, {time.Second, 0}, {0, time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			request := aheadRequest(t, base, 2, func(row map[string]any) (engines.Score, error) {
				time.Sleep(slow.score)
				return letters(t)(row)
			})
			request.Parallelism = 2
			watch := &recorder{t: t, onStep: func(engines.Metrics) { time.Sleep(slow.step) }}
			got := resultOf(t, mustTrain(t, request, watch), base)
			if want == nil {
				want = got
			}
			require.Equal(t, want, got)
		})
	}
}

// TestCheckpointsDoNotWaitForGenerations interrupts a training while a chunk is being generated
// ahead, and while another one is complete. The resumed training must compute the same.
func TestCheckpointsDoNotWaitForGenerations(t *testing.T) {
	base := smallBase(t, 1)
	for _, rank := range []int{0, 2} {
		request, whole := aheadRequest(t, base, 2, letters(t)), &recorder{t: t}
		request.Settings.LoraRank = rank
		want := recordRollouts(&request)
		result := mustTrain(t, request, whole)

		ctx, cancel := context.WithCancel(t.Context())
		var running atomic.Int64
		interrupted := request
		interrupted.WorkDir = t.TempDir()
		interrupted.Evaluation = blockingEvaluator{func(row map[string]any) bool { return chunkOf(row) != 3 }, letters(t),
			&running}
		first := &recorder{t: t}
		j, err := newJob(ctx, interrupted, first)
		require.NoError(t, err)
		defer j.metrics.Close()
		first.onStep = func(m engines.Metrics) {
			if m.Step == 2 {
				<-j.procedure.(*rollouts).ahead[0].done // chunk 2 is complete
				cancel()
			}
		}
		err = j.run(ctx)
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, running.Load())
		dir := first.checkpoints[2]
		data, err := os.ReadFile(filepath.Join(dir, aheadFile))
		require.NoError(t, err)
		require.Contains(t, string(data), `{"number":2,"policy":0,"complete":true`)
		require.Contains(t, string(data), `{"number":3,"policy":1,"complete":false`)

		request.ResumeDir, request.WorkDir = dir, t.TempDir()
		got, second := recordRollouts(&request), &recorder{t: t}
		again := mustTrain(t, request, second)
		require.Equal(t, resultOf(t, result, base), resultOf(t, again, base))
		require.Equal(t, withoutCached(whole.rows)[2:], withoutCached(second.rows))
		require.NotContains(t, got, "2 false")
		for key, rollouts := range got {
			require.Equal(t, want[key], rollouts, key)
		}
	}
}

// A blockingEvaluator scores a row if admits says so, and otherwise waits until it is canceled.
type blockingEvaluator struct {
	admits func(row map[string]any) bool
	with   evaluatorFunc
	// running is the number of calls of Score.
	running *atomic.Int64
}

func (e blockingEvaluator) Score(ctx context.Context, rows []map[string]any) ([]engines.Score, error) {
	e.running.Add(1)
	defer e.running.Add(-1)
	if !e.admits(rows[0]) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return e.with.Score(ctx, rows)
}

func (blockingEvaluator) Close() error { return nil }

// TestFailuresOfGenerationsAhead checks that a chunk that cannot be generated or trained on fails
// the training when it is its turn, and that no generation is running afterwards.
func TestFailuresOfGenerationsAhead(t *testing.T) {
	base := smallBase(t, 1)
	for name, tc := range map[string]struct {
		fail func() (engines.Score, error)
		want string
	}{
		"error":   {func() (engines.Score, error) { return engines.Score{}, errors.New("no sandbox") }, "no sandbox"},
		"panic":   {func() (engines.Score, error) { panic("planted") }, "the engine panicked: planted"},
		"invalid": {func() (engines.Score, error) { return engines.Score{Reason: "KeyError"}, nil }, "KeyError"},
	} {
		t.Run(name, func(t *testing.T) {
			var running atomic.Int64
			request := aheadRequest(t, base, 2, func(row map[string]any) (engines.Score, error) {
				running.Add(1)
				defer running.Add(-1)
				if chunkOf(row) >= 3 {
					return tc.fail()
				}
				return letters(t)(row)
			})
			watch, cores := &recorder{t: t}, &Devices{}
			_, err := Trainer{Cores: cores}.Train(t.Context(), request, watch)
			require.ErrorContains(t, err, tc.want)
			require.Zero(t, running.Load())
			require.Len(t, watch.rows, 3, "the steps of the chunks before are taken")
			require.Zero(t, cores.free, "the training has released its cores, and removed them")
		})
	}
}

// TestPanicOfATrainingEndsItsGenerations checks that no generation is running after a panic.
func TestPanicOfATrainingEndsItsGenerations(t *testing.T) {
	var running atomic.Int64
	blocked := make(chan struct{})
	once := sync.OnceFunc(func() { close(blocked) })
	request := aheadRequest(t, smallBase(t, 1), 2, nil)
	request.Evaluation = blockingEvaluator{func(row map[string]any) bool {
		if chunkOf(row) == 0 {
			return true
		}
		once()
		return false
	}, letters(t), &running}
	require.PanicsWithValue(t, "planted", func() {
		_, _ = Trainer{}.Train(t.Context(), request, &recorder{t: t, onStep: func(engines.Metrics) {
			<-blocked
			panic("planted")
		}})
	})
	require.Zero(t, running.Load())
}

// TestDriftGuardOfStaleResponses checks that the guard skips the remaining steps of a chunk whose
// responses are too far from the policy, so stale responses take at most one step beyond maxDrift.
func TestDriftGuardOfStaleResponses(t *testing.T) {
	request, watch := aheadRequest(t, smallBase(t, 1), 4, letters(t)), &recorder{t: t}
	request.Settings.LearningRate, request.Settings.BatchSizeTokens, request.Settings.Epochs = 0.1, 100, 2
	mustTrain(t, request, watch)
	beyond := 0
	for i, row := range watch.rows[:len(watch.rows)-1] {
		if row.Values["train/drift"] > maxDrift {
			beyond++
			_, begins := watch.rows[i+1].Values["reward/mean"]
			require.True(t, begins, "a chunk ends with step %d", row.Step)
		}
	}
	require.Positive(t, beyond)
}
