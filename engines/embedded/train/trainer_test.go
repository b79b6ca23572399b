package train

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/safetensors"
	"anneal/engines/embedded/tokenizer"
)

// smallBase writes a random model with the shipped tokenizer, and returns its directory.
func smallBase(t *testing.T, seed uint64) string {
	t.Helper()
	tokens := tokenizer.NewBytes()
	w := llama.NewWeights(
		llama.Config{ModelType: "llama", HiddenSize: 32, IntermediateSize: 48, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 8,
			VocabSize: tokens.VocabSize(), MaxPositions: 96, NormEps: 1e-5, RopeTheta: 10000, TieWordEmbeddings: true,
			HiddenAct:        "silu",
			InitializerRange: 0.05, TorchDType: "bfloat16"})
	w.Initialize(seed)
	for i, v := range w.Flat() {
		w.Flat()[i] = safetensors.RoundBF16(v)
	}
	dir := t.TempDir()
	require.NoError(t, w.Save(dir))
	require.NoError(t, tokens.Save(dir))
	return dir
}

// writeRows writes lines to a file called name, and returns its path.
func writeRows(t *testing.T, name string, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	var data []byte
	for _, line := range lines {
		data = append(append(data, line...), '\n')
	}
	require.NoError(t, os.WriteFile(path, data, 0o644))
	return path
}

// A recorder is a TrainWatcher that keeps metrics and copies checkpoints. It can abort a
// training.
type recorder struct {
	t             *testing.T
	rows          []engines.Metrics
	checkpoints   map[int]string
	onStep        func(engines.Metrics)
	checkpointErr error
}

func (r *recorder) Step(m engines.Metrics) {
	r.rows = append(r.rows, m)
	for name, value := range m.Values {
		require.False(r.t, value != 0 && math.Abs(value) < engines.NegligibleMetric, "%s: %g is a rounding error", name,
			value)
	}
	if r.onStep != nil {
		r.onStep(m)
	}
}

func (r *recorder) Checkpoint(ctx context.Context, step int, dir string) error {
	require.NoError(r.t, ctx.Err())
	if r.checkpointErr != nil {
		return r.checkpointErr
	}
	if r.checkpoints == nil {
		r.checkpoints = map[int]string{}
	}
	kept := filepath.Join(r.t.TempDir(), "kept")
	require.NoError(r.t, os.CopyFS(kept, os.DirFS(dir)))
	r.checkpoints[step] = kept
	return nil
}

// numbers returns copies of the metric rows without their times.
func numbers(rows []engines.Metrics) []engines.Metrics {
	var out []engines.Metrics
	for _, row := range rows {
		row.Time = time.Time{}
		out = append(out, row)
	}
	return out
}

func metricsIn(t *testing.T, dir string) []engines.Metrics {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, metricsFile))
	require.NoError(t, err)
	defer f.Close()
	var out []engines.Metrics
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var row engines.Metrics
		require.NoError(t, json.Unmarshal(lines.Bytes(), &row))
		out = append(out, row)
	}
	return out
}

// resultOf returns the parameters of the adapter or model that a training run wrote.
func resultOf(t *testing.T, result engines.TrainResult, baseDir string) []float32 {
	t.Helper()
	if !result.Adapter {
		w := mustLoad(t, result.Dir)
		_, err := tokenizer.Load(result.Dir)
		require.NoError(t, err)
		return w.Flat()
	}
	base := mustLoad(t, baseDir)
	a, err := llama.LoadAdapter(result.Dir, base.Hash(), base.Config)
	require.NoError(t, err)
	return a.Flat()
}

// A training is one case of the tests that compare trainings bit by bit.
type training struct {
	method   string
	rows     []string
	settings engines.TrainSettings
}

func trainings() map[string]training {
	return map[string]training{
		"adapter with dropout": {engines.Supervised, chatRows(37),
			engines.TrainSettings{
				Epochs: 3, LoraRank: 4, LoraDropout: 0.2, CheckpointSteps: 4, EvalAutoCarveout: true, OptimizerWeightDecay: 0.01,
			}},
		"all parameters, accumulated": {engines.Supervised, chatRows(37),
			engines.TrainSettings{
				Epochs: 4, LearningRateWarmupSteps: 3, GradientAccumulationSteps: 2, BatchSizeTokens: 60, CheckpointSteps: 5,
			}},
		"early stop": {engines.Supervised, chatRows(37),
			engines.TrainSettings{
				Epochs: 6, LoraRank: 2, EarlyStop: true, LearningRate: 0.05, LoraTargetModules: []string{"q_proj", "down_proj"},
				CheckpointSteps: 7,
			}},
		"replayed responses": {engines.Supervised, chatRows(37),
			engines.TrainSettings{
				Epochs: 2, LoraRank: 4, LoraDropout: 0.1, ReplayWeight: 2, CheckpointSteps: 4, EvalAutoCarveout: true,
			}},
		"replayed responses, all parameters": {engines.Supervised, completionRows(19),
			engines.TrainSettings{Epochs: 2, ReplayWeight: 0.5, GradientAccumulationSteps: 2, BatchSizeSamples: 1}},
		"DPO, adapter": {engines.DPO, pairRows(23),
			engines.TrainSettings{
				Epochs: 3, LoraRank: 4, LoraDropout: 0.1, CheckpointSteps: 3, EvalAutoCarveout: true, LearningRateWarmupSteps: 2,
			}},
		"DPO, all parameters": {engines.DPO, pairRows(23),
			engines.TrainSettings{
				Epochs: 2, BatchSizeTokens: 70, GradientAccumulationSteps: 2, OptimizerWeightDecay: 0.1,
				Loss: &domain.LossConfig{DPO: &domain.DPOLoss{Beta: 0.5}},
			}},
		"ORPO": {
			engines.DPO, pairRows(23),
			engines.TrainSettings{Epochs: 3, LoraRank: 2, Loss: &domain.LossConfig{Method: domain.LossORPO}},
		},
		"scored samples": {engines.RLOR, scoredRows(23),
			engines.TrainSettings{
				Epochs: 3, LoraRank: 4, BatchSizeSamples: 8, LearningRate: 0.01, EvalAutoCarveout: true,
				RewardWeights: map[string]float64{"good": 1, "short": 0.5},
			}},
		"scored samples, all parameters": {engines.RLOR, scoredRows(23),
			engines.TrainSettings{Epochs: 3, BatchSizeSamples: 8, Loss: &domain.LossConfig{Method: domain.LossDAPO}}},
		"own responses": {engines.Reinforcement, promptRows(11),
			engines.TrainSettings{
				Epochs: 2, LoraRank: 4, LearningRate: 0.01, BatchSizeTokens: 100, BatchSizeSamples: 16, EvalAutoCarveout: true,
				Rollouts: shortResponses,
			}},
		"own responses, all parameters": {engines.Reinforcement, promptRows(11),
			engines.TrainSettings{
				Epochs: 2, BatchSizeSamples: 12, CheckpointSteps: 2, Rollouts: shortResponses,
				Loss: &domain.LossConfig{Method: domain.LossGSPO},
			}},
		"own responses, generated ahead": {engines.Reinforcement, promptRows(11),
			engines.TrainSettings{
				Epochs: 2, LoraRank: 4, LearningRate: 0.01, BatchSizeTokens: 100, BatchSizeSamples: 16, EvalAutoCarveout: true,
				Rollouts: responsesAhead(1),
			}},
		"own responses, generated far ahead": {engines.Reinforcement, promptRows(11),
			engines.TrainSettings{
				Epochs: 2, BatchSizeSamples: 12, CheckpointSteps: 2, Rollouts: responsesAhead(3),
				Loss: &domain.LossConfig{Method: domain.LossDAPO},
			}},
	}
}

// TestResumeIsExact stops a training run of every method at several steps and resumes it from its
// checkpoint with another number of cores. All metrics and parameters must be bit-identical to
// those of an uninterrupted training.
func TestResumeIsExact(t *testing.T) {
	base := smallBase(t, 1)
	for name, tc := range trainings() {
		t.Run(name, func(t *testing.T) {
			rows := writeRows(t, "rows.jsonl", tc.rows...)
			request := engines.TrainRequest{
				Method: tc.method, BaseDir: base, DataFiles: []string{rows}, Settings: tc.settings, Seed: 9, Parallelism: 1,
				WorkDir: t.TempDir(), Evaluation: letterEvaluator{},
			}
			whole := &recorder{t: t}
			want := mustTrain(t, request, whole)
			require.Equal(t, numbers(whole.rows), numbers(metricsIn(t, whole.checkpoints[want.Steps])))

			require.Greater(t, want.Steps, 6)
			for _, stop := range []int{1, 5, want.Steps - 1} {
				ctx, cancel := context.WithCancel(t.Context())
				first := &recorder{t: t, onStep: func(m engines.Metrics) {
					if m.Step == stop {
						cancel()
					}
				}}
				request.WorkDir, request.Parallelism, request.ResumeDir = t.TempDir(), 2, ""
				_, err := Trainer{}.Train(ctx, request, first)
				cancel()
				require.ErrorIs(t, err, context.Canceled)
				require.Contains(t, first.checkpoints, stop)

				second := &recorder{t: t}
				request.WorkDir, request.Parallelism, request.ResumeDir = t.TempDir(), 3, first.checkpoints[stop]
				got := mustTrain(t, request, second)
				require.Equal(t, resultOf(t, want, base), resultOf(t, got, base))
				require.Equal(t, want.Values, got.Values)
				require.Equal(t, want.Tokens, got.Tokens)
				require.Equal(t, numbers(whole.rows), numbers(metricsIn(t, second.checkpoints[got.Steps])))
			}
		})
	}
}

// TestCheckpointInterval checks that checkpoints are written often enough that a crash loses
// about half a minute of training, even if CheckpointSteps is large.
func TestCheckpointInterval(t *testing.T) {
	base, rows := smallBase(t, 1), writeRows(t, "rows.jsonl", chatRows(37)...)
	synctest.Test(t, func(t *testing.T) {
		slow := &recorder{t: t, onStep: func(engines.Metrics) { time.Sleep(20 * time.Second) }}
		got := mustTrain(t, engines.TrainRequest{
			Method: engines.Supervised, BaseDir: base, DataFiles: []string{rows}, WorkDir: t.TempDir(),
			Parallelism: 1, Settings: engines.TrainSettings{Epochs: 2, LoraRank: 2, CheckpointSteps: 1000},
		}, slow)
		steps := slices.Sorted(maps.Keys(slow.checkpoints))
		require.Equal(t, []int{2, 4, 6}, steps[:3], "the checkpoints of %d steps", got.Steps)
	})
}

func TestLearns(t *testing.T) {
	base := smallBase(t, 2)
	completion := writeRows(t, "completions.jsonl", `{"prompt":"one","completion":" two"}`,
		`{"prompt":"three","completion":" four"}`, `{"prompt":"up","completion":" down"}`)
	text := writeRows(t, "text.jsonl", `{"text":"the same text"}`, `{"text":"once again"}`, `{"text":"and again"}`)
	chat := writeRows(t, "chat.jsonl", chatRows(5)...)
	cases := map[string]struct {
		file     string
		settings engines.TrainSettings
		loss     float64 // maximum loss; an untrained model has ln 260 = 5.6
	}{
		"completion, all parameters": {completion, engines.TrainSettings{LearningRate: 5e-3}, 0.1},
		"text, all parameters":       {text, engines.TrainSettings{LearningRate: 5e-3}, 0.5},
		// The random output weights, which an adapter does not train, bound the loss from below.
		"chat, adapter": {chat, engines.TrainSettings{LoraRank: 16, LearningRate: 0.03}, 4.8},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.settings.Epochs = 150
			request := engines.TrainRequest{
				BaseDir: base, DataFiles: []string{tc.file}, EvalFiles: []string{tc.file}, WorkDir: t.TempDir(),
				Settings: tc.settings,
			}
			result := mustTrain(t, request, &recorder{t: t})
			require.Less(t, result.Values["eval/loss"], tc.loss)
		})
	}
}

// TestEarlyStop trains at a rate that soon increases the evaluation loss, and checks that the
// result has the parameters of the best evaluation.
func TestEarlyStop(t *testing.T) {
	base := smallBase(t, 3)
	rows := writeRows(t, "rows.jsonl", chatRows(8)...)
	held := writeRows(t, "held.jsonl",
		`{"messages":[{"role":"user","content":"hm"},{"role":"assistant","content":"zzzzzz"}]}`)
	watch := &recorder{t: t}
	request := engines.TrainRequest{BaseDir: base, DataFiles: []string{rows}, EvalFiles: []string{held},
		WorkDir:  t.TempDir(),
		Settings: engines.TrainSettings{Epochs: 200, EarlyStop: true, LearningRate: 3e-3}}
	result := mustTrain(t, request, watch)
	require.True(t, result.StoppedEarly)
	require.Less(t, result.Steps, 200)
	best := result.Values["eval/loss"]
	for _, row := range watch.rows {
		if loss, ok := row.Values["eval/loss"]; ok {
			best = min(best, loss)
		}
	}
	weights := mustLoad(t, result.Dir)
	reader := newReader(tokenizer.NewBytes(), 96, weights.Config.VocabSize)
	require.NoError(t, reader.read(held))
	loss, _, err := NewLoop(llama.NewNet(weights, nil, 1), 1).Loss(t.Context(), reader.samples)
	require.NoError(t, err)
	require.Equal(t, best, loss)
}

func TestWarmStart(t *testing.T) {
	base := smallBase(t, 4)
	rows := writeRows(t, "rows.jsonl", chatRows(10)...)
	request := engines.TrainRequest{BaseDir: base, DataFiles: []string{rows}, WorkDir: t.TempDir(),
		EvalFiles: []string{rows},
		Settings:  engines.TrainSettings{Epochs: 20, LoraRank: 4}}
	first := mustTrain(t, request, &recorder{t: t})

	for _, rank := range []int{4, 0} {
		request.AdapterDir, request.WorkDir = first.Dir, t.TempDir()
		request.Settings = engines.TrainSettings{Epochs: 1, LoraRank: rank, LearningRate: 1e-9}
		second := mustTrain(t, request, &recorder{t: t})
		require.InDelta(t, first.Values["eval/loss"], second.Values["eval/loss"], 1e-3)
	}

	request.Settings.LoraRank = 8
	_, err := Trainer{}.Train(t.Context(), request, &recorder{t: t})
	require.ErrorContains(t, err, "rank 4")
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))

	request.Settings.LoraRank, request.BaseDir = 4, smallBase(t, 5)
	_, err = Trainer{}.Train(t.Context(), request, &recorder{t: t})
	require.ErrorContains(t, err, "was trained on the base model")
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
}

func TestInvalidInput(t *testing.T) {
	base := smallBase(t, 1)
	good := chatRows(1)[0]
	long := fmt.Sprintf(`{"prompt":"a","completion":%q}`, strings.Repeat("a", 200))
	cases := []struct {
		name     string
		rows     []string
		settings engines.TrainSettings
		code     domain.Code
		want     []string
	}{
		{"no rows", []string{"", "  "}, engines.TrainSettings{}, domain.InvalidArgument, []string{"has no rows"}},
		{
			"no JSON", []string{good, "", "{oops"}, engines.TrainSettings{}, domain.InvalidArgument,
			[]string{"rows.jsonl line 3", "JSON"},
		},
		{
			"no shape", []string{`{"question":"a"}`}, engines.TrainSettings{}, domain.InvalidArgument,
			[]string{"rows.jsonl line 1", "messages"},
		},
		{
			"two shapes", []string{`{"text":"a","prompt":"b","completion":"c"}`}, engines.TrainSettings{},
			domain.InvalidArgument, []string{"line 1", "prompt and completion, or text"},
		},
		{
			"half a pair", []string{`{"prompt":"b"}`}, engines.TrainSettings{}, domain.InvalidArgument,
			[]string{"line 1", "completion"},
		},
		{"too long", []string{good, long}, engines.TrainSettings{}, domain.InvalidArgument, []string{"line 2", "96"}},
		{
			"too long for the setting", []string{good}, engines.TrainSettings{MaxContextLength: 5}, domain.InvalidArgument,
			[]string{"line 1", "maxContextLength"},
		},
		{
			"last is the user", []string{`{"messages":[{"role":"user","content":"a"}]}`}, engines.TrainSettings{},
			domain.InvalidArgument, []string{"line 1", "the last"},
		},
		{"late system", []string{
			`{"messages":[{"role":"user","content":"a"},{"role":"system","content":"a"},{"role":"assistant","content":"a"}]}`,
		},
			engines.TrainSettings{}, domain.InvalidArgument, []string{"messages[1].role"}},
		{
			"role", []string{`{"messages":[{"role":"bot","content":"a"},{"role":"assistant","content":"a"}]}`},
			engines.TrainSettings{}, domain.InvalidArgument, []string{"bot"},
		},
		{
			"tool", []string{`{"messages":[{"role":"tool","content":"a"},{"role":"assistant","content":"a"}]}`},
			engines.TrainSettings{}, domain.InvalidArgument, []string{"messages[0]", "tool"},
		},
		{"a call", []string{
			`{"messages":[{"role":"user","content":"a"},{"role":"assistant",` +
				`"content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}]}`,
		},
			engines.TrainSettings{}, domain.InvalidArgument, []string{"messages[1]", "are not supported"}},
		{"tools", []string{
			`{"tools":[{"type":"function","function":{"name":"f"}}],"messages":[{"role":"user",` +
				`"content":"a"},{"role":"assistant","content":"a"}]}`,
		},
			engines.TrainSettings{}, domain.InvalidArgument, []string{"line 1: tools: ", "are not supported"}},
		{
			"weight", []string{`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"a","weight":0.5}]}`},
			engines.TrainSettings{}, domain.InvalidArgument, []string{"weight"},
		},
		{"no targets", []string{`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"a","weight":0}]}`},
			engines.TrainSettings{}, domain.InvalidArgument, []string{"no target tokens"}},
		{"settings", []string{good}, engines.TrainSettings{
			LearningRate: -1, LoraDropout: 1, LoraTargetModules: []string{"w"}, MaxContextLength: 97,
		},
			domain.InvalidArgument, []string{"learningRate", "loraDropout", "loraTargetModules", "maxContextLength"}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			request := engines.TrainRequest{
				BaseDir: base, DataFiles: []string{writeRows(t, "rows.jsonl", tc.rows...)}, WorkDir: t.TempDir(),
				Settings: tc.settings,
			}
			_, err := Trainer{}.Train(t.Context(), request, &recorder{t: t})
			require.Error(t, err)
			require.Equal(t, tc.code, domain.CodeOf(err), "%v", err)
			for _, part := range tc.want {
				require.ErrorContains(t, err, part)
			}
		})
	}
}

// TestFieldNamesAreCaseSensitive checks that rows may have unknown fields, even if the name of a
// field differs from a known name only in case. Uploads allow such fields too.
func TestFieldNamesAreCaseSensitive(t *testing.T) {
	row := `{"Text":"x","TOOLS":5,"Prompt":1,"messages":[{"role":"user","content":"a","Weight":7},` +
		`{"role":"assistant","content":"b","Tool_Calls":{}}]}`
	request := engines.TrainRequest{
		BaseDir: smallBase(t, 1), DataFiles: []string{writeRows(t, "rows.jsonl", row)}, WorkDir: t.TempDir(),
		Settings: engines.TrainSettings{LoraRank: 2},
	}
	result := mustTrain(t, request, &recorder{t: t})
	require.EqualValues(t, 4, result.Tokens)
}

func TestDivergenceIsAnError(t *testing.T) {
	base := smallBase(t, 1)
	w := mustLoad(t, base)
	w.Layers[0].Q.Data[0] = float32(1e38)
	w.Layers[0].K.Data[0] = float32(1e38)
	w.Layers[1].Gate.Data[3] = float32(3e38)
	require.NoError(t, w.Save(base))
	request := engines.TrainRequest{
		BaseDir: base, DataFiles: []string{writeRows(t, "rows.jsonl", chatRows(4)...)}, WorkDir: t.TempDir(),
	}
	_, err := Trainer{}.Train(t.Context(), request, &recorder{t: t})
	require.ErrorContains(t, err, "learningRate")
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
}

func TestResumeRejectsAnotherTraining(t *testing.T) {
	rows := writeRows(t, "rows.jsonl", chatRows(12)...)
	request := engines.TrainRequest{BaseDir: smallBase(t, 1), DataFiles: []string{rows}, WorkDir: t.TempDir(),
		Settings: engines.TrainSettings{LoraRank: 2, CheckpointSteps: 1}}
	watch := &recorder{t: t}
	mustTrain(t, request, watch)
	for want, change := range map[string]func(*engines.TrainRequest){
		"base model": func(o *engines.TrainRequest) { o.BaseDir = smallBase(t, 2) },
		"dataset":    func(o *engines.TrainRequest) { o.DataFiles = []string{writeRows(t, "rows.jsonl", chatRows(11)...)} },
		"seed":       func(o *engines.TrainRequest) { o.Seed++ },
		"settings":   func(o *engines.TrainRequest) { o.Settings.Epochs = 5 },
	} {
		other := request
		other.ResumeDir, other.WorkDir = watch.checkpoints[1], t.TempDir()
		change(&other)
		_, err := Trainer{}.Train(t.Context(), other, &recorder{t: t})
		require.ErrorContains(t, err, "another "+want)
		require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	}
}

func TestWatcherErrorStopsTraining(t *testing.T) {
	abort := errors.New("disk full")
	watch := &recorder{t: t, checkpointErr: abort}
	request := engines.TrainRequest{BaseDir: smallBase(t, 1), DataFiles: []string{writeRows(t, "rows.jsonl",
		chatRows(40)...)}, WorkDir: t.TempDir(),
		Settings: engines.TrainSettings{LoraRank: 2, CheckpointSteps: 2}}
	_, err := Trainer{}.Train(t.Context(), request, watch)
	require.ErrorIs(t, err, abort)
	require.Equal(t, 2, watch.rows[len(watch.rows)-1].Step)
}
