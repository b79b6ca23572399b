package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/llama"
)

// evaluatorFunc is an evaluator that calls a function for each row.
type evaluatorFunc func(row map[string]any) (engines.Score, error)

func (e evaluatorFunc) Score(_ context.Context, rows []map[string]any) ([]engines.Score, error) {
	var out []engines.Score
	for _, row := range rows {
		score, err := e(row)
		if err != nil {
			return nil, err
		}
		out = append(out, score)
	}
	return out, nil
}

func (evaluatorFunc) Close() error { return nil }

func rolloutRequest(t *testing.T, base string, rows []string, with evaluatorFunc) engines.TrainRequest {
	return engines.TrainRequest{Method: engines.Reinforcement, BaseDir: base,
		DataFiles: []string{writeRows(t, "rows.jsonl",
			rows...)}, WorkDir: t.TempDir(),
		Evaluation: with, Settings: engines.TrainSettings{LoraRank: 2, BatchSizeSamples: 16, Rollouts: shortResponses}}
}

func TestNoRewardSignalStopsEarly(t *testing.T) {
	base := smallBase(t, 1)
	request := rolloutRequest(t, base, promptRows(12),
		func(map[string]any) (engines.Score, error) { return engines.Score{Value: 0.25, Valid: true}, nil })
	watch := &recorder{t: t}
	result := mustTrain(t, request, watch)
	require.True(t, result.StoppedEarly)
	require.Contains(t, result.Reason, "no reward signal")
	require.Equal(t, 3, result.Steps, "each chunk is evaluated")
	for _, row := range watch.rows {
		require.Equal(t, 1.0, row.Values["reward/flat"])
		require.Equal(t, 0.25, row.Values["reward/mean"])
	}
	after := resultOf(t, result, base)
	request.WorkDir, request.Settings.Epochs = t.TempDir(), 40
	result = mustTrain(t, request, &recorder{t: t})
	require.Less(t, result.Steps, 60, "the training stops before the rows are exhausted")
	require.Equal(t, after, resultOf(t, result, base))
}

func TestEqualSamplesStopEarly(t *testing.T) {
	row := `{"samples":[{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"good":1},` +
		`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"c"}],"good":1}]}`
	result := mustTrain(t, engines.TrainRequest{
		Method: engines.RLOR, BaseDir: smallBase(t, 1), DataFiles: []string{writeRows(t, "rows.jsonl", row, row)},
		WorkDir: t.TempDir(), Settings: engines.TrainSettings{LoraRank: 2},
	}, &recorder{t: t})
	require.True(t, result.StoppedEarly)
	require.Contains(t, result.Reason, "same reward")
	require.Zero(t, result.Steps)
	require.Equal(t, 1.0, result.Values["reward/mean"])
}

func TestInvalidScores(t *testing.T) {
	base := smallBase(t, 1)
	broken := errors.New("the sandbox failed")
	for name, tc := range map[string]struct {
		with evaluatorFunc
		want string
		code domain.Code
	}{
		"none is valid": {
			func(map[string]any) (engines.Score, error) { return engines.Score{Reason: "KeyError: 'x'"}, nil }, "KeyError: 'x'",
			domain.FailedPrecondition,
		},
		"out of bounds": {
			func(map[string]any) (engines.Score, error) { return engines.Score{Value: 7, Valid: true}, nil },
			"not between 0 and 1", domain.FailedPrecondition,
		},
		"not a number": {
			func(map[string]any) (engines.Score, error) { return engines.Score{Value: math.NaN(), Valid: true}, nil },
			"not between 0 and 1", domain.FailedPrecondition,
		},
		"evaluator fails": {
			func(map[string]any) (engines.Score, error) { return engines.Score{}, broken }, broken.Error(), domain.Unknown,
		},
		"no evaluation": {nil, "evaluator", domain.FailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			request := rolloutRequest(t, base, promptRows(8), tc.with)
			if tc.with == nil {
				request.Evaluation = nil
			}
			_, err := Trainer{}.Train(t.Context(), request, &recorder{t: t})
			require.ErrorContains(t, err, tc.want)
			require.Equal(t, tc.code, domain.CodeOf(err))
		})
	}
}

// TestInvalidScoresAreExcluded checks that training continues if the scores of some responses are
// not valid, and that the metrics count these responses as failed.
func TestInvalidScoresAreExcluded(t *testing.T) {
	base := smallBase(t, 1)
	calls := atomic.Int64{}
	request := rolloutRequest(t, base, promptRows(8), func(row map[string]any) (engines.Score, error) {
		calls.Add(1)
		answer := row["messages"].([]any)[1].(map[string]any)["content"].(string)
		require.Equal(t, "assistant", row["messages"].([]any)[1].(map[string]any)["role"])
		require.Len(t, row["ground_truth"], 1)
		if len(answer)%2 == 1 {
			return engines.Score{Reason: "odd"}, nil
		}
		return engines.Score{
			Value: min(float64(strings.Count(answer, "a"))+float64(len(answer))/100, 1), Valid: true,
			Metrics: map[string]float64{"even": 1},
		}, nil
	})
	watch := &recorder{t: t}
	result := mustTrain(t, request, watch)
	require.EqualValues(t, 8*4, calls.Load())
	invalid := result.Values["reward/invalid"]
	require.True(t, invalid > 0 && invalid < 1, "%v", invalid)
	require.Equal(t, 1.0, result.Values["reward/metric/even"])
	last := watch.rows[len(watch.rows)-1].Values
	for metric, want := range map[string]float64{
		engines.RolloutsExpected: 32, engines.RolloutsDone: 32, engines.RolloutRows: 8,
	} {
		require.Equal(t, want, last[metric], metric)
	}
	require.Positive(t, last[engines.RolloutsFailed])
	require.Less(t, last[engines.RolloutsFailed], 32.0)
	require.GreaterOrEqual(t, last[engines.RolloutTokens], 32.0)
	require.GreaterOrEqual(t, last[engines.RolloutPrompts], 32.0, "every rollout has a prompt")
	require.LessOrEqual(t, last[engines.RolloutCached], last[engines.RolloutPrompts])
}

// TestConcurrencyLimits checks that concurrent evaluations stay within the limit, and that the
// trained parameters do not depend on the limits.
func TestConcurrencyLimits(t *testing.T) {
	base := smallBase(t, 1)
	var want []float32
	for _, limit := range []int{1, 3, 64} {
		var now, highest atomic.Int64
		request := rolloutRequest(t, base, promptRows(8), func(row map[string]any) (engines.Score, error) {
			n := now.Add(1)
			defer now.Add(-1)
			for {
				seen := highest.Load()
				if n <= seen || highest.CompareAndSwap(seen, n) {
					break
				}
			}
			scores, err := letterEvaluator{}.Score(t.Context(), []map[string]any{row})
			return scores[0], err
		})
		how := *shortResponses
		how.MaxConcurrent, how.MaxConcurrentEvaluations = limit, limit
		request.Settings.Rollouts = &how
		result := mustTrain(t, request, &recorder{t: t})
		require.LessOrEqual(t, highest.Load(), int64(limit))
		if want == nil {
			want = resultOf(t, result, base)
		}
		require.Equal(t, want, resultOf(t, result, base))
	}
}

// TestChunks checks that a chunk has as many rows as a step, and at most ChunkSize if the dataset
// has more than domain.ChunkedAbove rows. Each row must occur once in each epoch.
func TestChunks(t *testing.T) {
	for _, tc := range []struct{ rows, chunk, want int }{
		{100, 200, 8}, {100, 3, 8}, {301, 200, 8}, {301, 3, 3}, {5, 200, 5},
	} {
		j := &job{settings: engines.TrainSettings{Epochs: 2, BatchSizeSamples: 32, GradientAccumulationSteps: 1,
			Rollouts: resolveRollouts(&domain.Violations{}, &engines.Rollouts{ChunkSize: tc.chunk})}}
		rows := make([]*prompt, tc.rows)
		for i := range rows {
			rows[i] = &prompt{}
		}
		r := newRollouts(j, rows, nil)
		require.Equal(t, tc.want, r.size)
		for epoch := range 2 {
			seen := map[*prompt]int{}
			for n := range r.chunks() {
				for _, p := range r.rows(epoch*r.chunks() + n) {
					seen[p]++
				}
			}
			require.Len(t, seen, tc.rows)
			for _, times := range seen {
				require.Equal(t, 1, times)
			}
		}
		require.False(t, slices.Equal(r.rows(0), r.rows(r.chunks())), "each epoch is shuffled separately")
	}
}

// TestPreferencesStartAtTheReference checks that preference training uses the initial model as
// its reference, including the adapter from which the training continues.
func TestPreferencesStartAtTheReference(t *testing.T) {
	base := smallBase(t, 4)
	rows := writeRows(t, "rows.jsonl", pairRows(10)...)
	request := engines.TrainRequest{Method: engines.DPO, BaseDir: base, DataFiles: []string{rows}, WorkDir: t.TempDir(),
		Settings: engines.TrainSettings{LoraRank: 4, LearningRate: 0.01, Epochs: 5}}
	first := mustTrain(t, request, &recorder{t: t})
	require.Positive(t, first.Values["train/margin"])
	request.AdapterDir, request.WorkDir = first.Dir, t.TempDir()
	watch := &recorder{t: t}
	mustTrain(t, request, watch)
	require.InDelta(t, math.Ln2, watch.rows[0].Values["train/loss"], 1e-4)
}

func TestGuardStopsPreferenceTraining(t *testing.T) {
	request := engines.TrainRequest{Method: engines.DPO, BaseDir: smallBase(t, 4), DataFiles: []string{writeRows(t,
		"rows.jsonl", pairRows(10)...)}, WorkDir: t.TempDir(),
		Settings: engines.TrainSettings{LearningRate: 0.05, Epochs: 200}}
	watch := &recorder{t: t}
	result := mustTrain(t, request, watch)
	require.True(t, result.StoppedEarly)
	require.Contains(t, result.Reason, "log-probability of the chosen responses fell")
	require.Less(t, result.Steps, 400)
	require.Less(t, watch.rows[len(watch.rows)-1].Values["train/chosen_shift"], -maxFall)
}

func TestInvalidMethodInput(t *testing.T) {
	base := smallBase(t, 1)
	pair, scored, asked := pairRows(1)[0], scoredRows(1)[0], promptRows(1)[0]
	temperature, beta := 3.0, -1.0
	cases := []struct {
		name     string
		method   string
		row      string
		settings engines.TrainSettings
		want     []string
	}{
		{"unknown method", "unheard-of", pair, engines.TrainSettings{}, []string{"unheard-of", "dpo", "rlor"}},
		{"a chat for pairs", engines.DPO, chatRows(1)[0], engines.TrainSettings{}, []string{"line 1", "chat"}},
		{
			"identical responses", engines.DPO, strings.ReplaceAll(
				`{"input":{"messages":[{"role":"user","content":"a"}]},"preferred_output":[X],"non_preferred_output":[X]}`,
				"X", `{"role":"assistant","content":"b"}`), engines.TrainSettings{}, []string{"line 1", "identical"},
		},
		{
			"a pair too long", engines.DPO, pair, engines.TrainSettings{MaxContextLength: 8},
			[]string{"line 1", "preferred_output", "maxContextLength"},
		},
		{
			"another's loss", engines.DPO, pair, engines.TrainSettings{Loss: &domain.LossConfig{Method: domain.LossGRPO}},
			[]string{"lossConfig.method", "ORPO"},
		},
		{
			"a loss for examples", engines.Supervised, chatRows(1)[0], engines.TrainSettings{Loss: &domain.LossConfig{}},
			[]string{"lossConfig"},
		},
		{
			"a negative weight", engines.RLOR, scored, engines.TrainSettings{Loss: &domain.LossConfig{KLBeta: &beta}},
			[]string{"klBeta"},
		},
		{
			"a reward that is not there", engines.RLOR, scored,
			engines.TrainSettings{RewardWeights: map[string]float64{"nice": 1}},
			[]string{"line 1", "samples[0]", "nice", "good"},
		},
		{
			"a sample of no response",
			engines.RLOR, `{"samples":[{"messages":[{"role":"user","content":"a"}],"good":1}]}`,
			engines.TrainSettings{}, []string{"line 1", "samples[0].messages"},
		},
		{
			"a prompt with its response", engines.Reinforcement, chatRows(1)[0], engines.TrainSettings{},
			[]string{"line 1", "user"},
		},
		{
			"a prompt too long", engines.Reinforcement, asked, engines.TrainSettings{MaxContextLength: 5},
			[]string{"line 1", "no space"},
		},
		{"settings of sampling", engines.Reinforcement, asked, engines.TrainSettings{
			Rollouts: &engines.Rollouts{InferenceParameters: domain.InferenceParameters{ExtraBody: `{"min_p":5}`}},
		},
			[]string{"inferenceParameters.extraBody: has a value out of range: min_p"}},
		{
			"rollouts", engines.Reinforcement, asked, engines.TrainSettings{
				Rollouts: &engines.Rollouts{ChunkSize: -1, InferenceParameters: domain.InferenceParameters{
					Temperature: &temperature, ResponseCandidatesCount: 1, ExtraBody: `{"stop":["x"]}`,
				}},
			}, []string{
				"temperature", "responseCandidatesCount", "chunkSize", "extraBody", "min_p",
			},
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			request := engines.TrainRequest{
				Method: tc.method, BaseDir: base, DataFiles: []string{writeRows(t, "rows.jsonl", tc.row)}, WorkDir: t.TempDir(),
				Settings: tc.settings, Evaluation: letterEvaluator{},
			}
			_, err := Trainer{}.Train(t.Context(), request, &recorder{t: t})
			require.Error(t, err)
			require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), "%v", err)
			for _, part := range tc.want {
				require.ErrorContains(t, err, part)
			}
		})
	}
}

func TestDefaultRates(t *testing.T) {
	for method := range losses {
		for _, rank := range []int{0, 8} {
			rate := defaultRate(method, rank)
			require.Equal(t, method == engines.Supervised, rate > 5e-4, fmt.Sprint(method, rank))
		}
	}
}

// recordRollouts makes the request record its rollouts, without their times, by step.
func recordRollouts(request *engines.TrainRequest) map[string][]engines.Rollout {
	all := map[string][]engines.Rollout{}
	request.OnRollouts = func(rollouts []engines.Rollout) {
		key := fmt.Sprint(rollouts[0].Step, rollouts[0].Evaluation)
		for i := range rollouts {
			rollouts[i].Time = time.Time{}
		}
		all[key] = rollouts
	}
	return all
}

// TestRolloutsAreRecorded checks that the rollouts of every step and of every evaluation are passed
// to the recorder with their scores, and that a resumed training passes the same rollouts for its
// steps.
func TestRolloutsAreRecorded(t *testing.T) {
	base := smallBase(t, 1)
	with := func(row map[string]any) (engines.Score, error) {
		scores, err := letterEvaluator{}.Score(t.Context(), []map[string]any{row})
		scores[0].Reason = "counted"
		return scores[0], err
	}
	request := rolloutRequest(t, base, promptRows(8), with)
	request.EvalFiles = []string{writeRows(t, "held.jsonl", promptRows(3)...)}
	request.Settings.CheckpointSteps = 1
	all, watch := recordRollouts(&request), &recorder{t: t}
	mustTrain(t, request, watch)
	first := all["1 false"]
	require.Len(t, first, 16, "a step has 4 rows with 4 candidates")
	seen := map[[2]int]bool{}
	for _, r := range first {
		seen[[2]int{r.Row, r.Candidate}] = true
		require.True(t, r.Row >= 1 && r.Row <= 8 && r.Candidate >= 1 && r.Candidate <= 4, "%v", r)
		require.True(t, r.Valid && !r.Evaluation && r.Reason == "counted", "%v", r)
		require.Contains(t, string(r.Input), "ground_truth")
		require.NotContains(t, string(r.Input), "assistant")
	}
	require.Len(t, seen, 16)
	require.Len(t, all["2 false"], 16)
	require.Greater(t, all["2 false"][0].Epoch, first[0].Epoch)
	held := all["2 true"]
	require.Len(t, held, 3)
	require.Equal(t, []int{1, 2, 3}, []int{held[0].Row, held[1].Row, held[2].Row})

	request.ResumeDir, request.WorkDir = watch.checkpoints[1], t.TempDir()
	again := recordRollouts(&request)
	mustTrain(t, request, &recorder{t: t})
	require.NotContains(t, again, "1 false")
	for key, rollouts := range again {
		require.Equal(t, all[key], rollouts, key)
	}
	require.Contains(t, again, "2 false")
}

// TestRolloutsWithoutScoresAreRecorded checks that the rollouts of a job that fails, because no
// score is valid, can be inspected.
func TestRolloutsWithoutScoresAreRecorded(t *testing.T) {
	request := rolloutRequest(t, smallBase(t, 1), promptRows(8),
		func(map[string]any) (engines.Score, error) { return engines.Score{Reason: "KeyError: 'x'"}, nil })
	all := recordRollouts(&request)
	_, err := Trainer{}.Train(t.Context(), request, &recorder{t: t})
	require.ErrorContains(t, err, "no valid score")
	require.Len(t, all["1 false"], 16)
	require.Equal(t, "KeyError: 'x'", all["1 false"][0].Reason)
	require.False(t, all["1 false"][0].Valid)
}

func mustTrain(t testing.TB, request engines.TrainRequest, watch engines.TrainWatcher) engines.TrainResult {
	t.Helper()
	result, err := Trainer{}.Train(t.Context(), request, watch)
	require.NoError(t, err)
	return result
}

func mustLoad(t testing.TB, dir string) *llama.Weights {
	t.Helper()
	w, err := llama.Load(dir)
	require.NoError(t, err)
	return w
}
