package tinker

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
)

// violations returns the violations of an error as "field: rule".
func violations(t *testing.T, err error) []string {
	if err == nil {
		return nil
	}
	var e *domain.Error
	require.True(t, errors.As(err, &e), "%v", err)
	require.Equal(t, domain.InvalidArgument, e.Code)
	require.NotEmpty(t, e.Reason)
	if len(e.Violations) == 0 {
		return []string{e.Message}
	}
	var all []string
	for _, v := range e.Violations {
		all = append(all, v.Field+": "+v.Description)
	}
	return all
}

// check requires that each violation contains the expected text, in order.
func check(t *testing.T, err error, want ...string) {
	t.Helper()
	got := violations(t, err)
	require.Len(t, got, len(want), "%v", got)
	for i := range want {
		require.Contains(t, got[i], want[i])
	}
}

func decode[T any, P interface {
	*T
	Request
}](body string) error {
	_, err := Decode[T, P]([]byte(body))
	return err
}

// TestJSONForms has the bodies that clients send, old and new, and bodies that are refused.
func TestJSONForms(t *testing.T) {
	long := strings.Repeat("x", 300)
	for _, test := range []struct {
		name string
		err  error
		want []string
	}{
		{"config",
			decode[CreateSessionRequest](`{"tags":["a"],"user_metadata":null,"sdk_version":"0.25.0",
				"type":"create_session"}`), nil},
		{"defaults of fields of newer clients",
			decode[CreateSessionRequest](`{"tags":[],"sdk_version":"1","a":null,"b":false,"c":0,"d":"","e":[],"f":{}}`), nil},
		{"unknown field", decode[CreateSessionRequest](`{"tags":[],"sdk_version":"1","colour":"red"}`),
			[]string{"colour: is not a field of this object; valid fields: project_id, sdk_version, tags, user_metadata"}},
		{"types", decode[CreateSessionRequest](`{"tags":[1],"sdk_version":2,"user_metadata":[]}`),
			[]string{"sdk_version: must be a string, is 2", "tags: must be a list of values that are each a string, is a list"}},
		{"metadata", decode[CreateSessionRequest](`{"tags":["` + long + `"],"user_metadata":[]}`),
			[]string{"tags[0]: must have at most 256 bytes, has 300", "user_metadata: must be an object, is a list"}},
		{"model", decode[CreateModelRequest](`{"session_id":"s","model_seq_id":0,"base_model":"acme/m","type":"create_model",
			"lora_config":{"rank":8,"seed":null,"train_unembed":true,"train_mlp":true,
				"train_attn":true},"user_metadata":{"k":1}}`), nil},
		{"seed", decode[CreateModelRequest](`{"session_id":"s","model_seq_id":0,"base_model":"m","lora_config":{"rank":8,
			"seed":-1}}`), []string{"lora_config.seed: must be 0 to 9007199254740991, is -1"}},
		{"newer model",
			decode[CreateModelRequest](`{"session_id":"s","model_seq_id":0,"base_model":"m","lora_config":{"rank":64},
			"optimizer":{"type":"adamw"}}`), nil},
		{"no model", decode[CreateModelRequest](``), []string{"session_id: is required", "model_seq_id: is required",
			"base_model: is required", "lora_config: is required"}},
		{"model's ranges", decode[CreateModelRequest](`{"session_id":"s","model_seq_id":-1,"base_model":"m","lora_config":
			{"rank":65,"train_mlp":false,"train_attn":false},"optimizer":{"type":"dimuon"}}`),
			[]string{"model_seq_id: must be 0 to 2147483647, is -1", "lora_config.rank: must be 1 to 64, is 65",
				"lora_config.train_attn: must be true", `optimizer.type: must be "adamw", is "dimuon"`}},
		{"step", decode[OptimStepRequest](`{"adam_params":{"learning_rate":0.0001,"beta1":0.9,"beta2":0.95,"eps":1e-12,
			"weight_decay":0.0,"grad_clip_norm":0.0},"model_id":"m","seq_id":2,"type":"optim_step"}`), nil},
		{"step with defaults", decode[OptimStepRequest](`{"adam_params":{},"model_id":"m","seq_id":1}`), nil},
		{"step's ranges", decode[OptimStepRequest](`{"adam_params":{"learning_rate":-1,"beta1":1,"beta2":-0.1,"eps":0,
			"weight_decay":1e39,"grad_clip_norm":-1},"model_id":"","seq_id":0}`),
			[]string{"model_id: is required", "seq_id: must be 1 to", "adam_params.learning_rate: must be at least 0",
				"adam_params.weight_decay: must be at least 0 and finite as float32, is 1e+39",
				"adam_params.grad_clip_norm: must be at least 0 and finite as float32, is -1; 0 stands for no maximum",
				"adam_params.beta1", "adam_params.beta2", "adam_params.eps: must be above 0"}},
		{"step without parameters",
			decode[OptimStepRequest](`{"model_id":"m","seq_id":1}`), []string{"adam_params: is required"}},
		{"save",
			decode[SaveWeightsRequest](`{"model_id":"m","path":"final","seq_id":3,"ttl_seconds":60,"overwrite":false}`), nil},
		{"save without a name", decode[SaveWeightsRequest](`{"model_id":"m","path":null,"seq_id":3}`), nil},
		{"names", decode[SaveWeightsRequest](`{"model_id":"m","path":"../x","seq_id":3,"ttl_seconds":0}`),
			[]string{`path: must have 1 to 255 of the characters`, "ttl_seconds: must be 1 to"}},
		{"sampler", decode[SaveWeightsForSamplerRequest](`{"model_id":"m","sampling_session_seq_id":0,"seq_id":3}`), nil},
		{"named sampler", decode[SaveWeightsForSamplerRequest](`{"model_id":"m","path":"s-1","seq_id":3}`), nil},
		{"sampler of nothing",
			decode[SaveWeightsForSamplerRequest](`{"model_id":"m","seq_id":3}`), []string{"path: is required, unless"}},
		{"load",
			decode[LoadWeightsRequest](`{"model_id":"m","seq_id":1,"path":"tinker://r/weights/final","optimizer":true}`), nil},
		{"load later", decode[LoadWeightsRequest](`{"model_id":"m","seq_id":2,"path":"tinker://r/sampler_weights/final",
			"optimizer":true,"weights_access_token":"t"}`),
			[]string{"seq_id: must be 1, is 2", "path: must be the path of a state",
				"weights_access_token: is not supported"}},
		{"create by load",
			decode[LoadWeightsRequest](`{"session_id":"s","model_seq_id":1,"path":"tinker://r/weights/f","optimizer":false}`),
			[]string{"model_seq_id: is not a field", "session_id: is not a field"}},
		{"future", decode[FutureRequest](`{"request_id":"r","allow_metadata_only":true}`), nil},
		{"heartbeat", decode[HeartbeatRequest](`{"session_id":"s","type":"session_heartbeat"}`), nil},
		{"telemetry", decode[TelemetryRequest](`{"events":[{"event":"x"}],"platform":"p","sdk_version":"1","session_id":"s",
			"process_uuid":"u"}`), nil},
		{"ttl", decode[TTLRequest](`{"ttl_seconds":null}`), nil},
		{"info",
			decode[WeightsInfoRequest](`{"tinker_path":"tinker://r/checkpoints/f"}`),
			[]string{"tinker_path: must be tinker://RUN/weights/NAME"}},
		{"no JSON", decode[FutureRequest](`{"request_id":`), []string{"the body is not valid JSON"}},
		{"a list", decode[FutureRequest](`[]`), []string{"the body must be a JSON object, is a list"}},
	} {
		t.Run(test.name, func(t *testing.T) { check(t, test.err, test.want...) })
	}
}

func TestSampleForms(t *testing.T) {
	full := `{"num_samples":4,"prompt":{"chunks":[{"tokens":[1,2],"type":"encoded_text"},{"tokens":[3]}]},
		"sampling_params":{"max_tokens":5,"seed":-7,"stop":["\n"],"temperature":0.5,"top_k":3,"top_p":0.9},
		"sampling_session_id":"ss","seq_id":0,"prompt_logprobs":true,"topk_prompt_logprobs":2,"type":"sample"}`
	r, err := Decode[SampleRequest]([]byte(full))
	require.NoError(t, err)
	got, err := r.Sample("w", 9)
	require.NoError(t, err)
	negative := int64(-7)
	require.Equal(t, engines.TrainSampleRequest{Weights: "w", Prompt: []int32{1, 2, 3}, N: 4, MaxTokens: 5,
		Temperature: 0.5, TopK: 3, TopP: 0.9, Seed: uint64(negative), StopTexts: []string{"\n"}, PromptLogprobs: true,
		TopKPromptLogprobs: 2}, got)

	r, err = Decode[SampleRequest]([]byte(`{"base_model":"m","prompt":{"chunks":[{"tokens":[1]}]},"sampling_params":{}}`))
	require.NoError(t, err)
	got, err = r.Sample("", 9)
	require.NoError(t, err)
	require.Equal(t, engines.TrainSampleRequest{Prompt: []int32{1}, N: 1, Temperature: 1, TopK: -1, TopP: 1, Seed: 9}, got)

	for stop, want := range map[string]Stop{`"a"`: {Texts: []string{"a"}}, `["a","b"]`: {Texts: []string{"a", "b"}},
		`[5,6]`: {Tokens: []int32{5, 6}}, `[]`: {Texts: []string{}}} {
		var s Stop
		require.NoError(t, json.Unmarshal([]byte(stop), &s))
		require.Equal(t, want, s)
	}
	base := `{"prompt":{"chunks":[{"tokens":[1]}]},"sampling_params":`
	for body, want := range map[string][]string{
		base + `{}}`: {"model_path: set one of"},
		base + `{},"base_model":"m","model_path":"tinker://r/weights/f"}`: {"model_path: set one of"},
		base + `{},"sampling_session_id":"s"}`:                            {"seq_id: is required"},
		`{"prompt":{"chunks":[]},"sampling_params":{},"base_model":"m"}`:  {"prompt: must have 1 to"},
		base + `{"stop":["a",1]},"base_model":"m"}`:                       {"sampling_params.stop: must be a string"},
		base + `{"max_tokens":0,"temperature":-1,"top_p":0,"top_k":-2,"stop":[""]},"base_model":"m","num_samples":0}`: {
			"num_samples", "sampling_params.max_tokens", "sampling_params.temperature",
			"sampling_params.top_p", "sampling_params.top_k", "sampling_params.stop[0]: must have 1 to"},
		base + `{"max_tokens":1000},"base_model":"m","num_samples":4096}`: {"num_samples: times max_tokens"},
		`{"prompt":{"chunks":[{"tokens":[1],"data":"QQ==","format":"png"}]},"base_model":"m","sampling_params":{}}`: {
			"prompt.chunks[0].type: is required: the fields are those of 2 types of chunks (encoded_text, image)"},
		`{"prompt":{"chunks":[{"format":"png"}]},"base_model":"m","sampling_params":{}}`: {
			"prompt.chunks[0].type: is required"},
		`{"prompt":{"chunks":[{"data":"QQ==","format":"png"},{"location":"s3://b/i.png","format":"png"},{"dmel":"QQ=="},
			{"tokens":[-1]}]},"base_model":"m","sampling_params":{}}`: {
			`prompt.chunks[0]: must have the type "encoded_text", has "image"`,
			"prompt.chunks[1]", "prompt.chunks[2]", "prompt: token 0 must be 0 or more, is -1"},
	} {
		check(t, decode[SampleRequest](body), want...)
	}
}

const jsonPass = `{"model_id":"m","seq_id":1,"forward_backward_input":{"loss_fn":"cross_entropy",
	"loss_fn_config":null,"data":[
	{"model_input":{"chunks":[{"tokens":[1,2,3]}]},"loss_fn_inputs":{
	 "target_tokens":{"data":[2,3,4],"dtype":"int64","shape":[3]},
	 "weights":{"data":[1,0.5,-1],"dtype":"float32"}}}]}}`

func TestJSONPasses(t *testing.T) {
	r, err := DecodePass("application/json; charset=utf-8", []byte(jsonPass), false)
	require.NoError(t, err)
	pass, err := r.Pass()
	require.NoError(t, err)
	want := engines.TrainPass{Loss: engines.LossCrossEntropy, Data: []engines.TrainDatum{{Tokens: []int32{1, 2, 3},
		Targets: []int32{2, 3, 4}, Weights: []float32{1, 0.5, -1}}}}
	require.Equal(t, want, pass)

	// The form of SkyRL's tests has no dtype.
	untyped := strings.NewReplacer(`,"dtype":"int64"`, "", `,"dtype":"float32"`, "").Replace(jsonPass)
	r, err = DecodePass("", []byte(untyped), false)
	require.NoError(t, err)
	pass, err = r.Pass()
	require.NoError(t, err)
	require.Equal(t, want, pass)

	forward := strings.Replace(jsonPass, "forward_backward_input", "forward_input", 1)
	r, err = DecodePass("", []byte(forward), true)
	require.NoError(t, err)
	require.True(t, r.ForwardOnly)
	_, err = DecodePass("", []byte(forward), false)
	check(t, err, "forward_backward_input: is required", "forward_backward_input: must be the only input")

	// The JSON and the protobuf form are the same request, and equal requests have equal bytes.
	encoded, err := json.Marshal(r)
	require.NoError(t, err)
	again, err := DecodePass("", encoded, true)
	require.NoError(t, err)
	require.Equal(t, r, again)
	again, err = DecodePass(ContentTypeProtobuf, r.MarshalProto(), false)
	require.NoError(t, err)
	require.Equal(t, r.MarshalProto(), again.MarshalProto())
}

func TestCompressedBodies(t *testing.T) {
	encoder, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	compressed := encoder.EncodeAll([]byte(jsonPass), nil)
	body, err := ReadBody(bytes.NewReader(compressed), " ZSTD ", MaxPassBody)
	require.NoError(t, err)
	require.Equal(t, jsonPass, string(body))
	body, err = ReadBody(strings.NewReader(jsonPass), "", MaxPassBody)
	require.NoError(t, err)
	require.Equal(t, jsonPass, string(body))

	_, err = ReadBody(strings.NewReader("\x00\x01 not zstd"), "zstd", MaxPassBody)
	check(t, err, "the body is not valid zstd")
	_, err = ReadBody(strings.NewReader(""), "gzip", MaxPassBody)
	check(t, err, `Content-Encoding must be "zstd" or absent, is "gzip"`)
	_, err = ReadBody(strings.NewReader("12345"), "", 4)
	check(t, err, "the body has more than 4 bytes")
	for _, size := range []int{MaxPassBody + 1, 16 * MaxPassBody} {
		_, err = ReadBody(bytes.NewReader(encoder.EncodeAll(make([]byte, size), nil)), "zstd", MaxPassBody)
		check(t, err, "the decompressed body has more than 8388608 bytes")
	}
	_, err = ReadBody(bytes.NewReader(encoder.EncodeAll(make([]byte, 100), nil)), "zstd", 50)
	check(t, err, "the decompressed body has more than 50 bytes")
}

func TestPaths(t *testing.T) {
	for text, want := range map[string]Path{
		"tinker://run-1/weights/final":            {"run-1", TrainingCheckpoint, "final"},
		"tinker://run-1/sampler_weights/000010.a": {"run-1", SamplerCheckpoint, "000010.a"},
	} {
		path, err := ParsePath(text)
		require.NoError(t, err)
		require.Equal(t, want, path)
		require.Equal(t, text, path.String())
	}
	for _, text := range []string{"", "tinker://", "tinker://a/b", "tinker://r/weights/", "tinker:///weights/f",
		"r/weights/f", "tinker://r/weights/a/b", "tinker://r/weights/..", "tinker://r/other/f",
		"tinker://r/weights/" + strings.Repeat("x", 2000)} {
		_, err := ParsePath(text)
		require.Error(t, err, text)
	}
}

func TestMetricNames(t *testing.T) {
	for name, want := range map[string]string{engines.MetricLossSum: "loss:sum", "x": "x:mean", "a:b": "a_b:mean",
		"a:b:sum": "a_b_sum:mean", "clock:unique": "clock:unique", "": ":mean"} {
		require.Equal(t, want, MetricName(name))
	}
}

// TestCombinedMetrics has the facts of the public client's tests of chunked passes.
func TestCombinedMetrics(t *testing.T) {
	part := func(n int, metrics map[string]float64) ForwardBackwardOutput {
		return ForwardBackwardOutput{LossFnOutputs: make([]map[string]Tensor, n), Metrics: metrics}
	}
	got := CombineOutputs([]ForwardBackwardOutput{
		part(1, map[string]float64{"a:sum": 1, "b:mean": 1, "c:min": 2, "d:max": 3, "e:slack": 1, "f:unique": 5, "g:sum": 1}),
		part(3, map[string]float64{"a:sum": 2, "b:mean": 2, "c:min": 1, "d:max": 4, "e:slack": 3, "f:unique": 6})})
	require.Equal(t, map[string]float64{"a:sum": 3, "b:mean": 1.75, "c:min": 1, "d:max": 4, "e:slack": 0.5, "f:unique": 5},
		got.Metrics)
	require.Len(t, got.LossFnOutputs, 4)
	require.Empty(t, CombineOutputs(nil).LossFnOutputs)
}

func TestJSONResults(t *testing.T) {
	inf := float32(math.Inf(-1))
	out := OutputOf(&engines.TrainPassResult{Metrics: map[string]float64{engines.MetricLossSum: 1.5},
		Outputs: []engines.TrainOutput{{Logprobs: []float32{-0.5, inf}, Losses: []float32{1, 2}},
			{Logprobs: []float32{1, 2, 3, 4}}}}, []int{1, 2})
	body, err := json.Marshal(out)
	require.NoError(t, err)
	require.JSONEq(t, `{"loss_fn_output_type":"ArrayRecord","metrics":{"loss:sum":1.5},"loss_fn_outputs":[
		{"logprobs":{"data":[-0.5,-3.4028235e38],"dtype":"float32","shape":[2]},
		 "elementwise_loss":{"data":[1,2],"dtype":"float32","shape":[2]}},
		{"logprobs":{"data":[1,2,3,4],"dtype":"float32","shape":[2,2]}}]}`, string(body))

	sample := SampleResponse{Sequences: []SampledSequence{{StopReasonStop, []int32{1}, []float32{-0.5}}},
		PromptLogprobs: []float32{float32(math.NaN()), -0.25}, TopKPromptLogprobs: &TopKPromptLogprobs{K: 2, PromptLength: 2,
			TokenIDs: []int32{0, 0, 11, 0}, Logprobs: []float32{MaskLogprob, MaskLogprob, -0.1, MaskLogprob}}}
	body, err = json.Marshal(sample)
	require.NoError(t, err)
	require.JSONEq(t, `{"type":"sample","sequences":[{"stop_reason":"stop","tokens":[1],"logprobs":[-0.5]}],
		"prompt_logprobs":[null,-0.25],"topk_prompt_logprobs":[null,[[11,-0.1]]]}`, string(body))
	var again SampleResponse
	require.NoError(t, json.Unmarshal(body, &again))
	require.Equal(t, 1, again.TopKPromptLogprobs.K)
	require.True(t, math.IsNaN(float64(again.PromptLogprobs[0])))

	config, err := json.Marshal(NewClientConfig())
	require.NoError(t, err)
	require.JSONEq(t, `{"parallel_fwdbwd_chunks":true,"proto_compress_fwdbwd":true,"fwdbwd_max_chunk_len":1024,
		"fwdbwd_max_chunk_bytes_count":900000,"sample_max_concurrent_requests":2000,"create_model_via_load_weights":false,
		"pjwt_auth_enabled":false}`, string(config))
	require.Equal(t, Failed{"x", CategoryUser}, NewFailed(domain.Errorf(domain.FailedPrecondition, "x")))
	require.Equal(t, Failed{"x", CategoryServer}, NewFailed(domain.Errorf(domain.DataLoss, "x")))
	require.Equal(t, Failed{"x", CategoryUnknown}, NewFailed(errors.New("x")))
}
