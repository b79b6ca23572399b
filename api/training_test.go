package api

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	protocol "anneal/tinker"
)

// TestTrainingLoop runs a loop as a client does: session, run, passes and steps, weights for
// sampling, samples, a saved state, and another run that loads it. The loss decreases, the sampler
// reports the log-probabilities of the trainer, and the loaded run continues with the same numbers.
func TestTrainingLoop(t *testing.T) {
	h := newTrainingHarness(t)
	h.execute()
	require.Equal(t, "ok", h.must(h.send(trainingRequest{method: "GET", path: "healthz"}))["status"])
	config := h.must(h.post("client/config", map[string]any{"sdk_version": "0.25.0"}))
	require.EqualValues(t, protocol.ChunkBytes, config["fwdbwd_max_chunk_bytes_count"])
	require.EqualValues(t, 300, h.must(h.post("client/dynamic_config", map[string]any{}))["refresh_interval_sec"])
	require.JSONEq(t, `{"supported_models": [{"model_name": "default/anneal-base", "max_context_length": 512}]}`,
		string(h.get("get_server_capabilities").body))
	session, run := h.begin()
	h.must(h.post("session_heartbeat", map[string]any{"session_id": session}))
	info := h.must(h.post("get_info", map[string]any{"model_id": run}))
	require.EqualValues(t, 8, info["lora_rank"])

	tokens, targets := []int32{1, 2, 3, 4, 5, 6}, []int32{2, 3, 4, 5, 6, 7}
	loss := func(result map[string]any) float64 { return result["metrics"].(map[string]any)["loss:sum"].(float64) }
	var losses []float64
	seq := 0
	next := func() int { seq++; return seq }
	for range 6 {
		pass := h.post("forward_backward", passOf(run, next(), tokens, targets))
		step := h.post("optim_step", stepOf(run, next(), 0.02))
		losses = append(losses, loss(h.future(pass)))
		require.EqualValues(t, len(losses), h.future(step)["metrics"].(map[string]any)["step"])
	}
	require.Less(t, losses[5], losses[0]/2)

	forward := passOf(run, next(), tokens, targets)
	forward["forward_input"] = forward["forward_backward_input"]
	delete(forward, "forward_backward_input")
	trained := h.future(h.post("forward", forward))
	var logprobs []float64
	for _, x := range trained["loss_fn_outputs"].([]any)[0].(map[string]any)["logprobs"].(map[string]any)["data"].([]any) {
		logprobs = append(logprobs, x.(float64))
	}

	saved := h.future(h.post("save_weights_for_sampler", map[string]any{"model_id": run, "seq_id": next(),
		"sampling_session_seq_id": 0}))
	sampler := saved["sampling_session_id"].(string)
	require.Empty(t, saved["path"])
	about := h.must(h.get("samplers/" + sampler))
	require.Equal(t, "default/anneal-base", about["base_model"])
	require.Contains(t, about["model_path"], "tinker://"+run+"/sampler_weights/")
	ask := map[string]any{"sampling_session_id": sampler, "seq_id": 0, "num_samples": 3, "prompt_logprobs": true,
		"prompt": map[string]any{"chunks": []any{map[string]any{"type": "encoded_text",
			"tokens": append(tokens, 7)}}},
		"sampling_params": map[string]any{"max_tokens": 4, "temperature": 1, "seed": 3}}
	submitted := h.post("asample", ask)
	samples := h.future(submitted)
	require.Len(t, samples["sequences"], 3)
	for i, x := range samples["prompt_logprobs"].([]any)[1:] {
		require.Equal(t, math.Float32bits(float32(logprobs[i])), math.Float32bits(float32(x.(float64))),
			"the sampler and the trainer report the same bits")
	}
	require.Equal(t, samples, h.future(h.post("asample", ask)), "a repeated request has the same samples")
	base := map[string]any{"base_model": "default/anneal-base", "prompt": ask["prompt"],
		"sampling_params": map[string]any{"max_tokens": 2, "temperature": 0}}
	require.Len(t, h.future(h.post("asample", base))["sequences"], 1)

	state := h.future(h.post("save_weights", map[string]any{"model_id": run, "seq_id": next(), "path": "final"}))["path"]
	require.Equal(t, "tinker://"+run+"/weights/final", state)
	second := h.future(h.post("create_model", createModel(session, 1)))["model_id"].(string)
	require.Equal(t, state, h.future(h.post("load_weights", map[string]any{"model_id": second, "seq_id": 1, "path": state,
		"optimizer": true}))["path"])
	one := h.post("forward_backward", passOf(run, next(), tokens, targets))
	two := h.post("forward_backward", passOf(second, 2, tokens, targets))
	require.Equal(t, h.future(one), h.future(two), "the loaded run continues with the same numbers")

	require.Equal(t, "unload_model", h.future(h.post("unload_model", map[string]any{"model_id": run}))["type"])
	h.refuses(h.post("optim_step", stepOf(run, next(), 0.1)), 400, "RUN_UNLOADED", "create another run")
	require.Equal(t, domain.JobRunningState, h.row().State.State)
}

// TestTrainingProtobuf checks the forms of the newer client: compressed protobuf passes, and
// results in protobuf.
func TestTrainingProtobuf(t *testing.T) {
	h := newTrainingHarness(t)
	h.execute()
	_, run := h.begin()
	request := protocol.ForwardBackwardRequest{ModelID: run, SeqID: 1, Input: protocol.ForwardBackwardInput{
		LossFn: "cross_entropy", Data: []protocol.Datum{{ModelInput: protocol.NewModelInput(1, 2, 3),
			LossFnInputs: map[string]protocol.Tensor{protocol.TargetTokens: protocol.NewInts([]int{2, 3, 4})}}}}}
	encoder, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	binary := map[string]string{"Content-Type": protocol.ContentTypeProtobuf, "Content-Encoding": "zstd"}
	submitted := h.send(trainingRequest{method: "POST", path: "forward_backward", key: h.keys["user"], header: binary,
		body: encoder.EncodeAll(request.MarshalProto(), nil)})
	id := h.must(submitted)["request_id"]
	got := h.send(trainingRequest{method: "POST", path: "retrieve_future", key: h.keys["user"],
		body: map[string]any{"request_id": id}, header: map[string]string{"Accept": protocol.ContentTypeProtobuf}})
	require.Equal(t, 200, got.status, "%s", got.body)
	require.Equal(t, protocol.ContentTypeProtobuf, got.header.Get("Content-Type"))
	var out protocol.ForwardBackwardOutput
	require.NoError(t, out.UnmarshalProto(got.body))
	require.Len(t, out.LossFnOutputs[0][protocol.Logprobs].Floats, 3)
	var text protocol.ForwardBackwardOutput
	require.NoError(t, json.Unmarshal(h.post("retrieve_future", map[string]any{"request_id": id}).body, &text))
	require.Equal(t, text.LossFnOutputs[0][protocol.Logprobs].Floats, out.LossFnOutputs[0][protocol.Logprobs].Floats)

	binary["Content-Encoding"] = "gzip"
	refused := h.send(trainingRequest{method: "POST", path: "forward_backward", key: h.keys["user"], header: binary,
		body: []byte("x")})
	h.refuses(refused, 400, protocol.EncodingError, "zstd")
}
