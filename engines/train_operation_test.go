package engines

import (
	"math"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

var nan32 = math.Float32frombits(0x7fc12345) // a NaN whose bits must be kept

func someOperations() []TrainOperation {
	low, beta := 0.25, math.Copysign(0, -1)
	pass := &TrainPass{Loss: LossPPO, ClipLow: &low, Beta: &beta, Data: []TrainDatum{
		{Tokens: []int32{1, math.MaxInt32}, Targets: []int32{-1, 2}, Weights: []float32{}, Advantages: []float32{nan32},
			Logprobs: []float32{-0.5}}, {}}}
	return []TrainOperation{
		{Forward: pass}, {ForwardBackward: pass}, {ForwardBackward: &TrainPass{}},
		{Step: &AdamParams{LearningRate: 1e-4, Beta1: 0.9, Beta2: math.Inf(1), Epsilon: math.SmallestNonzeroFloat64,
			WeightDecay: -1, GradClipNorm: 3}},
		{Save: &TrainSave{Name: "é", TTLSeconds: math.MaxInt64, Overwrite: true}},
		{SaveSampler: &TrainSave{Ephemeral: true}}, {Load: &TrainLoad{Checkpoint: "jobs/a/b/", Optimizer: true}},
		{Unload: &struct{}{}},
		{Sample: &TrainSampleRequest{Weights: "w", Prompt: []int32{7}, N: 3, MaxTokens: 5, Temperature: 0.5, TopK: -1,
			TopP: 0.9, Seed: math.MaxUint64, StopTokens: []int32{1}, StopTexts: []string{"", "\n"}, PromptLogprobs: true,
			TopKPromptLogprobs: 2}},
	}
}

func someResults() []TrainOperationResult {
	return []TrainOperationResult{
		{}, {Pass: &TrainPassResult{Outputs: []TrainOutput{{Logprobs: []float32{nan32, 1}}, {Losses: []float32{}}},
			Metrics: map[string]float64{MetricLossSum: math.Inf(-1), "tokens:sum": 2}}},
		{Pass: &TrainPassResult{}}, {Step: &TrainStepResult{Step: 7, GradNorm: 0.5}},
		{Saved: &TrainSaved{Name: "a", Steps: 3, Files: domain.Files{Prefix: "p/", Sizes: map[string]int64{"f": 1}}}},
		{Samples: &TrainSamples{Sequences: []TrainSequence{{Tokens: []int32{1}, Logprobs: []float32{nan32}, Stopped: true}},
			PromptLogprobs: []float32{nan32}, TopKTokens: []int32{1}, TopKLogprobs: []float32{2}, CachedTokens: 9}},
	}
}

// TestTrainOperationsAreEncoded checks that operations and results keep all bits, and that damaged
// data are refused.
func TestTrainOperationsAreEncoded(t *testing.T) {
	for _, o := range someOperations() {
		data, err := o.Encode()
		require.NoError(t, err)
		decoded, err := DecodeTrainOperation(data)
		require.NoError(t, err)
		again, err := decoded.Encode()
		require.NoError(t, err)
		require.Equal(t, data, again, o.Kind())
		require.Equal(t, o.Kind(), decoded.Kind())
		require.Equal(t, reflect.TypeOf(o).NumField(), 8, "TrainOperation.Kind lists all fields")
		for n := range data {
			_, err := DecodeTrainOperation(data[:n])
			require.Equal(t, domain.DataLoss, domain.CodeOf(err))
		}
		_, err = DecodeTrainOperation(append(data, 0))
		require.Equal(t, domain.DataLoss, domain.CodeOf(err))
	}
	for _, r := range someResults() {
		data, err := r.Encode()
		require.NoError(t, err)
		decoded, err := DecodeTrainOperationResult(data)
		require.NoError(t, err)
		again, err := decoded.Encode()
		require.NoError(t, err)
		require.Equal(t, data, again)
		for n := range data {
			_, err := DecodeTrainOperationResult(data[:n])
			require.Equal(t, domain.DataLoss, domain.CodeOf(err))
		}
	}
	for _, o := range []TrainOperation{{}, {Unload: &struct{}{}, Step: &AdamParams{}}} {
		_, err := o.Encode()
		require.Error(t, err)
	}
}

// TestTrainOperationsKeepNil checks that a nil slice is not decoded as an empty one, because nil
// weights stand for 1 each.
func TestTrainOperationsKeepNil(t *testing.T) {
	o := TrainOperation{Forward: &TrainPass{Data: []TrainDatum{{Weights: nil, Targets: []int32{}}}}}
	data, err := o.Encode()
	require.NoError(t, err)
	decoded, err := DecodeTrainOperation(data)
	require.NoError(t, err)
	require.Equal(t, o, decoded)
}

func FuzzTrainOperation(f *testing.F) {
	for _, o := range someOperations() {
		data, _ := o.Encode()
		f.Add(data)
	}
	for _, r := range someResults() {
		data, _ := r.Encode()
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if o, err := DecodeTrainOperation(data); err == nil {
			_, err := o.Encode()
			require.NoError(t, err)
		}
		_, _ = DecodeTrainOperationResult(data)
	})
}
