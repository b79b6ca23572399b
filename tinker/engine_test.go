package tinker

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
)

// datum returns a datum of n tokens with the inputs.
func datum(n int, inputs map[string]Tensor) Datum {
	tokens := make([]int32, n)
	return Datum{ModelInput: NewModelInput(tokens...), LossFnInputs: inputs}
}

func convert(loss string, config map[string]float64, data ...Datum) (engines.TrainPass, error) {
	var v domain.Violations
	input := ForwardBackwardInput{Data: data, LossFn: loss, LossFnConfig: config}
	pass := input.pass(&v)
	return pass, v.Err()
}

func TestEachLossConverts(t *testing.T) {
	require.Equal(t, []string{"cispo", "cross_entropy", "dro", "importance_sampling", "ppo"}, Losses())
	inputs := map[string]Tensor{TargetTokens: NewInts([]int{1, 2}), Logprobs: NewFloats([]float32{-1, -2}),
		Advantages: NewFloats([]float32{0.5, -0.5}), Weights: NewInts([]int{1, 0})}
	for _, loss := range Losses() {
		pass, err := convert(loss, nil, datum(2, inputs))
		require.NoError(t, err)
		want := engines.TrainDatum{Tokens: []int32{0, 0}, Targets: []int32{1, 2}, Weights: []float32{1, 0}}
		if loss != "cross_entropy" {
			want.Advantages, want.Logprobs = []float32{0.5, -0.5}, []float32{-1, -2}
			_, err = convert(loss, nil, datum(2, map[string]Tensor{TargetTokens: NewInts([]int{1, 2})}))
			check(t, err, "data[0].loss_fn_inputs.logprobs: is required", "data[0].loss_fn_inputs.advantages: is required")
		}
		require.Equal(t, want, pass.Data[0], loss)
		_, err = convert(loss, map[string]float64{"clip_ratio": 0.2}, datum(2, inputs))
		check(t, err, "loss_fn_config.clip_ratio: is not a setting of "+loss)
	}
	pass, err := convert("ppo", map[string]float64{ClipLow: 0.9, ClipHigh: 1.1}, datum(2, inputs))
	require.NoError(t, err)
	require.Equal(t, []float64{0.9, 1.1}, []float64{*pass.ClipLow, *pass.ClipHigh})
	pass, err = convert("dro", map[string]float64{Beta: 0.1}, datum(2, inputs))
	require.NoError(t, err)
	require.InDelta(t, 0.1, *pass.Beta, 0)
	_, err = convert("ppo", map[string]float64{ClipLow: 1.5, ClipHigh: 0.5}, datum(2, inputs))
	check(t, err, "clip_high_threshold: must be a finite number of at least 1, is 0.5",
		"clip_low_threshold: must be 0 to 1, is 1.5")
	_, err = convert("dro", map[string]float64{Beta: math.NaN()}, datum(2, inputs))
	check(t, err, "beta: must be a finite number of at least 0, is NaN")
	_, err = convert("ppo_critic", nil, datum(2, inputs))
	check(t, err, `loss_fn: is "ppo_critic"; must be one of cispo, cross_entropy, dro, importance_sampling`)
}

func TestSeveralTargets(t *testing.T) {
	sparse := Tensor{DType: Float32, Shape: []int64{2, 3}, Floats: []float32{0.25, 0.75},
		Sparse: &CSR{Rows: []int64{0, 1, 2}, Cols: []int64{2, 0}}}
	targets := Tensor{DType: Int64, Shape: []int64{2, 3}, Ints: []int64{1, 2, 3, 4, 5, 6}}
	pass, err := convert("cross_entropy", nil, datum(2, map[string]Tensor{TargetTokens: targets, Weights: sparse}),
		datum(1, map[string]Tensor{TargetTokens: NewInts([]int{1})}))
	require.NoError(t, err)
	require.Equal(t, []int32{1, 2, 3, 4, 5, 6}, pass.Data[0].Targets)
	require.Equal(t, []float32{0, 0, 0.25, 0.75, 0, 0}, pass.Data[0].Weights)
	require.Equal(t, []int{3, 1}, TargetsPerToken(&pass))
	pass.Data = pass.Data[1:]
	require.Nil(t, TargetsPerToken(&pass))

	_, err = convert("ppo", nil, datum(2, map[string]Tensor{TargetTokens: targets, Logprobs: sparse, Advantages: sparse}))
	check(t, err, "data[0].loss_fn_inputs.target_tokens: must have 1 to 1 targets for each of 2 tokens, has 6 elements")
}

func TestInvalidTensors(t *testing.T) {
	one := NewInts([]int{1, 2})
	floats := func(shape []int64, values ...float32) Tensor {
		return Tensor{DType: Float32, Shape: shape, Floats: values}
	}
	sparse := func(shape, rows, cols []int64) Tensor {
		return Tensor{DType: Float32, Shape: shape, Floats: []float32{1}, Sparse: &CSR{Rows: rows, Cols: cols}}
	}
	for _, test := range []struct {
		name   string // of an input that is refused, beside the targets
		tensor Tensor
		want   string
	}{
		{"mask", one, "mask: is not an input of this loss; inputs of this loss: target_tokens"},
		{TargetTokens, floats(nil, 1, 2), `target_tokens.dtype: must be "int64", is "float32"`},
		{TargetTokens, NewInts([]int{1, -2}), "target_tokens: token 1 must be 0 to 2147483647, is -2"},
		{TargetTokens, NewInts([]int{1}), "target_tokens: must have 1 to 256 targets for each of 2 tokens, has 1 elements"},
		{Weights, floats(nil, 1), "weights: must have a value for each of 2 targets"},
		{Weights, floats(nil, 1, float32(math.Inf(1))), "weights: number 1 must be finite, is +Inf"},
		{Weights, floats([]int64{3}, 1, 2), "weights.shape: has 3 elements, but data has 2 values"},
		{Weights, floats([]int64{1, 1, 2}, 1, 2), "weights.shape: must have 1 or 2 dimensions, has 3"},
		{Weights, floats([]int64{1, 2}, 1, 2), "weights: must have a value for each of 2 targets in 2 rows"},
		{Weights, floats([]int64{1 << 62, 1 << 62}), "weights.shape: must have dimensions of at least 0 and at most"},
		{Weights, floats([]int64{-1}), "weights.shape: must have dimensions of at least 0 and at most"},
		{Weights, Tensor{DType: "float16"}, `weights.dtype: must be "float32" or "int64", is "float16"`},
		{Weights, sparse([]int64{2, 1}, []int64{0, 0, 1}, []int64{1}), "weights.sparse_col_indices[0]: must be 0 to 0, is 1"},
		{Weights, sparse([]int64{2, 1}, []int64{0, 2, 1}, []int64{0}), "weights.sparse_crow_indices: must ascend from 0"},
		{Weights, sparse([]int64{2, 1}, []int64{0, 1}, []int64{0}), "weights.sparse_crow_indices: must have 3 indices"},
		{Weights, sparse([]int64{2}, []int64{0, 1}, []int64{0}), "weights.shape: must have 2 dimensions"},
	} {
		t.Run(test.want, func(t *testing.T) {
			inputs := map[string]Tensor{TargetTokens: one}
			inputs[test.name] = test.tensor
			_, err := convert("cross_entropy", nil, datum(2, inputs))
			require.ErrorContains(t, err, test.want)
		})
	}
	_, err := convert("cross_entropy", nil)
	check(t, err, "data: must have 1 to 1024 entries, has 0")
	_, err = convert("cross_entropy", nil, make([]Datum, MaxDatums+1)...)
	check(t, err, "data: must have 1 to 1024 entries, has 1025")
	_, err = convert("cross_entropy", nil, make([]Datum, MaxDatums)...)
	require.Len(t, violations(t, err), domain.MaxViolations+1, "violations are bounded")
}

// TestSparseTensorsAreBounded has a pass of 1 MB whose sparse tensors stand for far more elements.
func TestSparseTensorsAreBounded(t *testing.T) {
	n := 1 << 14
	sparse := Tensor{DType: Int64, Shape: []int64{int64(n), MaxTargetsPerToken}, Sparse: &CSR{Rows: make([]int64, n+1)}}
	data := make([]Datum, 100)
	for i := range data {
		data[i] = datum(n, map[string]Tensor{TargetTokens: sparse})
	}
	_, err := convert("cross_entropy", nil, data...)
	require.ErrorContains(t, err, "divide the data into several passes")
}

func TestRunConfigs(t *testing.T) {
	config, err := Decode[CreateModelRequest]([]byte(`{"session_id":"s","model_seq_id":0,"base_model":"m",
		"lora_config":{"rank":8}}`))
	require.NoError(t, err)
	require.Equal(t, engines.TrainRunConfig{Rank: 8, Alpha: 32, Seed: 5, TrainAttn: true, TrainMLP: true,
		TrainUnembed: true}, config.LoraConfig.RunConfig(5))
	seed, no := int64(-1), false
	other := LoraConfig{Rank: 4, Seed: &seed, TrainMLP: &no, TrainUnembed: &no}
	require.Equal(t, engines.TrainRunConfig{Rank: 4, Alpha: 32, Seed: math.MaxUint64, TrainAttn: true}, other.RunConfig(5))

	require.Equal(t, engines.DefaultAdamParams(), new(AdamParams).Params())
	params := engines.AdamParams{LearningRate: 1, Beta1: 0.1, Beta2: 0.2, Epsilon: 3, WeightDecay: 4, GradClipNorm: 5}
	wire := NewAdamParams(params)
	require.Equal(t, params, wire.Params())
}

func TestSampleResponses(t *testing.T) {
	nan := float32(math.NaN())
	got := SampleResponseOf(&engines.TrainSamples{CachedTokens: 3, Sequences: []engines.TrainSequence{
		{Tokens: []int32{1}, Logprobs: []float32{-1}, Stopped: true}, {Tokens: []int32{2}, Logprobs: []float32{-2}}},
		TopKTokens: []int32{0, 0, 7, 8}, TopKLogprobs: []float32{nan, nan, -1, -2}}, 2)
	require.Equal(t, SampleResponse{PromptCacheHitTokens: 3, Sequences: []SampledSequence{
		{StopReasonStop, []int32{1}, []float32{-1}}, {StopReasonLength, []int32{2}, []float32{-2}}},
		TopKPromptLogprobs: &TopKPromptLogprobs{K: 2, PromptLength: 2, TokenIDs: []int32{0, 0, 7, 8},
			Logprobs: []float32{MaskLogprob, MaskLogprob, -1, -2}}}, got)
}

// TestErrorsQuoteLittle checks that messages quote a part of a long value only, without control
// characters.
func TestErrorsQuoteLittle(t *testing.T) {
	long := strings.Repeat("é\x00", 10_000)
	_, err := convert(long, nil)
	require.Less(t, len(err.Error()), 400)
	require.NotContains(t, err.Error(), "\x00")
	require.Less(t, len(quote(long)), 300)
}
