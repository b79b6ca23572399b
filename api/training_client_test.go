package api

import (
	"context"
	"math"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	protocol "anneal/tinker"
	"anneal/tinker/client"
)

// client returns a client of the job that sends the key of an account's user.
func (h *trainingHarness) client() *client.Client {
	h.Helper()
	address := strings.TrimPrefix(h.url, "http://")
	transport := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	h.Cleanup(transport.CloseIdleConnections)
	c, err := client.New(client.Options{URL: "http://" + h.host, APIKey: h.keys["user"],
		HTTPClient: &http.Client{Transport: transport}})
	require.NoError(h, err)
	return c
}

// wait waits for the result of an operation that was accepted.
func wait[T any](t testing.TB, future *client.Future[T], err error) T {
	t.Helper()
	require.NoError(t, err)
	result, err := future.Wait(t.Context())
	require.NoError(t, err)
	return result
}

// TestTrainingClient runs a loop with the client of package tinker/client.
func TestTrainingClient(t *testing.T) {
	h := newTrainingHarness(t)
	h.execute()
	ctx := t.Context()
	session, err := h.client().OpenSession(ctx, client.SessionOptions{Tags: []string{"t"},
		UserMetadata: map[string]string{"purpose": "test"}})
	require.NoError(t, err)
	defer session.Close()
	require.Contains(t, session.Warning(), "unembedding")
	capabilities, err := h.client().Capabilities(ctx)
	require.NoError(t, err)
	base := capabilities.SupportedModels[0].ModelName
	m, err := session.CreateModel(ctx, client.ModelConfig{BaseModel: base, Lora: protocol.LoraConfig{Rank: 8,
		Seed: new(int64(5))}})
	require.NoError(t, err)

	tokens := []int32{1, 2, 3, 4, 5, 6}
	datum := protocol.Datum{ModelInput: protocol.NewModelInput(tokens...), LossFnInputs: map[string]protocol.Tensor{
		protocol.TargetTokens: protocol.NewInts([]int{2, 3, 4, 5, 6, 7})}}
	in := protocol.ForwardBackwardInput{LossFn: "cross_entropy", Data: []protocol.Datum{datum}}
	var losses []float64
	for i := range 6 {
		pass, passErr := m.ForwardBackward(ctx, in)
		step, stepErr := m.OptimStep(ctx, protocol.AdamParams{LearningRate: new(0.02)})
		losses = append(losses, wait(t, pass, passErr).Metrics["loss:sum"])
		require.Equal(t, float64(i+1), wait(t, step, stepErr).Metrics["step"])
	}
	require.Less(t, losses[5], losses[0]/2)

	forward, err := m.Forward(ctx, in)
	trained := wait(t, forward, err).LossFnOutputs[0][protocol.Logprobs].Floats
	sampler, err := m.Sampler(ctx)
	require.NoError(t, err)
	samples, err := sampler.Sample(ctx, protocol.SampleRequest{Prompt: protocol.NewModelInput(append(tokens, 7)...),
		NumSamples: new(3), PromptLogprobs: true, SamplingParams: protocol.SamplingParams{MaxTokens: new(4)}})
	require.NoError(t, err)
	require.Len(t, samples.Sequences, 3)
	for i, x := range samples.PromptLogprobs[1:] {
		require.Equal(t, math.Float32bits(trained[i]), math.Float32bits(x), "sampler and trainer report the same bits")
	}

	saved, err := m.Save(ctx, "final", client.SaveOptions{})
	path := wait(t, saved, err).Path
	require.Equal(t, "tinker://"+m.ID()+"/weights/final", path)
	loaded, err := session.LoadModel(ctx, path, true)
	require.NoError(t, err)
	one, err := m.ForwardBackward(ctx, in)
	want := wait(t, one, err)
	two, err := loaded.ForwardBackward(ctx, in)
	require.Equal(t, want, wait(t, two, err), "the loaded run continues with the same numbers")

	checkpoints, err := h.client().Checkpoints(ctx, m.ID())
	require.NoError(t, err)
	require.Equal(t, "weights/final", checkpoints.Checkpoints[0].CheckpointID)
	require.NoError(t, h.client().DeleteCheckpoint(ctx, path))
	_, err = h.client().WeightsInfo(ctx, path)
	var refused *client.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, http.StatusNotFound, refused.StatusCode)
	require.NoError(t, m.Unload(ctx))
	_, err = m.OptimStep(ctx, protocol.AdamParams{})
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "RUN_UNLOADED", refused.Reason)
}

// TestTrainingClientDividesPasses sends more data than a pass may have, with several targets, and a
// token that the model does not have.
func TestTrainingClientDividesPasses(t *testing.T) {
	h := newTrainingHarness(t)
	h.execute()
	ctx := t.Context()
	session, err := h.client().OpenSession(ctx, client.SessionOptions{})
	require.NoError(t, err)
	defer session.Close()
	m, err := session.CreateModel(ctx, client.ModelConfig{BaseModel: "default/anneal-base",
		Lora: protocol.LoraConfig{Rank: 2}})
	require.NoError(t, err)
	data := make([]protocol.Datum, protocol.MaxDatums+1)
	for i := range data {
		data[i] = protocol.Datum{ModelInput: protocol.NewModelInput(int32(i%trainVocab), 1),
			LossFnInputs: map[string]protocol.Tensor{protocol.TargetTokens: {DType: protocol.Int64, Shape: []int64{2, 2},
				Ints: []int64{1, 2, 3, 4}}}}
	}
	in := protocol.ForwardBackwardInput{LossFn: "cross_entropy", Data: data}
	pass, err := m.ForwardBackward(ctx, in)
	out := wait(t, pass, err)
	require.Len(t, out.LossFnOutputs, len(data))
	require.Equal(t, []int64{2, 2}, out.LossFnOutputs[len(data)-1][protocol.Logprobs].Shape)
	sum := 0.0
	for _, output := range out.LossFnOutputs {
		for _, loss := range output[protocol.ElementwiseLoss].Floats {
			sum += float64(loss)
		}
	}
	require.InDelta(t, sum, out.Metrics["loss:sum"], 0.01)

	in.Data = []protocol.Datum{{ModelInput: protocol.NewModelInput(trainVocab),
		LossFnInputs: map[string]protocol.Tensor{protocol.TargetTokens: protocol.NewInts([]int{1})}}}
	pass, err = m.ForwardBackward(ctx, in)
	require.NoError(t, err)
	_, err = pass.Wait(ctx)
	var failed *client.OperationError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, protocol.CategoryUser, failed.Category)
	step, err := m.OptimStep(ctx, protocol.AdamParams{})
	require.Equal(t, 1.0, wait(t, step, err).Metrics["step"], "the run continues after a failed operation")
}

// TestPathsOfThePublicClient sends a request to each path that the public client and its newer
// versions use: the service answers it, or refuses it by name.
func TestPathsOfThePublicClient(t *testing.T) {
	h := newTrainingHarness(t)
	const run = "training_runs/run-1"
	const checkpoint = run + "/checkpoints/weights/final"
	refused := 0
	for _, path := range []string{
		"POST client/config", "POST client/dynamic_config", "POST create_session", "POST session_heartbeat",
		"GET get_server_capabilities", "GET healthz", "POST telemetry", "POST create_model", "POST forward_backward",
		"POST forward", "POST optim_step", "POST save_weights", "POST save_weights_for_sampler", "POST load_weights",
		"POST unload_model", "POST asample", "POST create_sampling_session", "GET samplers/sampler-1", "POST get_info",
		"POST weights_info", "POST retrieve_future", "GET training_runs", "GET " + run, "GET " + run + "/checkpoints",
		"GET checkpoints", "GET sessions", "GET sessions/session-1", "DELETE " + checkpoint, "GET " + checkpoint + "/archive",
		"PUT " + checkpoint + "/ttl", "POST " + checkpoint + "/publish", "DELETE " + checkpoint + "/publish",
		"POST auth/token", "GET audit", "GET billing/usage/events", "PUT sessions/session-1/project",
		"GET sessions/session-1/trace_export", "POST retrieve_futures", "POST create_custom_loss",
		"POST join_sampling_session", "POST save_weights_external", "POST external_weights_upload_start",
		"POST external_weights_upload_finish",
	} {
		method, at, _ := strings.Cut(path, " ")
		q := trainingRequest{method: method, path: at, key: h.keys["user"]}
		if method == "POST" || method == "PUT" {
			q.body = "{}"
		}
		r := h.send(q)
		require.NotContains(t, string(r.body), "NO_SUCH_PATH", path)
		require.Contains(t, []int{200, 400, 404}, r.status, "%s: %s", path, r.body)
		if strings.Contains(string(r.body), "NOT_SUPPORTED") {
			refused++
		}
	}
	require.Equal(t, 13, refused)
}
