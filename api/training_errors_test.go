package api

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/blobs/operations"
	"anneal/domain"
	"anneal/projections"
)

// TestTrainingKeys checks which keys the training service of a job accepts, in which headers.
func TestTrainingKeys(t *testing.T) {
	h := newTrainingHarness(t)
	_, other := h.createService("other")
	ask := func(header map[string]string) response {
		if header["X-API-Key"] == "" {
			header["X-API-Key"] = ""
		}
		return h.send(trainingRequest{method: "GET", path: "training_runs", header: header})
	}
	user := h.keys["user"]
	for _, header := range []map[string]string{{"X-API-Key": user}, {"X-API-Key": "tml-" + user},
		{"Authorization": "Bearer " + user}, {"Authorization": "Bearer tml-" + user},
		{"X-API-Key": user, "Authorization": "Bearer nonsense"}, {"X-API-Key": h.keys["operator"]},
		{"X-API-Key": user, "Host": other}} {
		h.must(ask(header))
	}
	h.refuses(ask(map[string]string{}), 401, "API_KEY_MISSING", "X-API-Key: API_KEY")
	h.refuses(ask(map[string]string{"X-API-Key": "tml-nonsense"}), 401, "API_KEY_MALFORMED")
	changed := []byte(user)
	changed[len(user)-9] ^= 1 // another letter or digit
	h.refuses(ask(map[string]string{"X-API-Key": string(changed)}), 401, "API_KEY_MALFORMED")
	h.refuses(ask(map[string]string{"X-API-Key": h.keys["other"]}), 403, "OTHER_ACCOUNT")
	h.refuses(ask(map[string]string{"X-API-Key": h.keys["inference"]}), 403, "ROLE")
	h.refuses(h.send(trainingRequest{method: "GET", path: "nonsense", key: user}), 404, "NO_SUCH_PATH", "api/v1/nonsense")
	h.refuses(h.send(trainingRequest{method: "DELETE", path: "create_session", key: user}), 405, request.ReasonMethod)
	plain := h.call("GET", "/api/v1/healthz", "user", "")
	require.Equal(t, 404, plain.status, "the server's own host name serves no training service")
	for _, path := range []string{"retrieve_futures", "forward_backward_custom", "cancel_sample",
		"training_runs/a/checkpoints/weights/b/publish", "load_external_weights"} {
		h.refuses(h.post(path, map[string]any{}), 400, "NOT_SUPPORTED", "not supported")
	}
}

// TestTrainingRequestsAreChecked sends requests that are refused, each with the field, the value
// and the way out.
func TestTrainingRequestsAreChecked(t *testing.T) {
	h := newTrainingHarness(t)
	h.execute()
	session, run := h.begin()
	with := func(body map[string]any, key string, value any) map[string]any {
		changed := map[string]any{}
		for k, v := range body {
			changed[k] = v
		}
		changed[key] = value
		return changed
	}
	pass := passOf(run, 1, []int32{1, 2}, []int32{2, 3})
	sampling := map[string]any{"base_model": "default/anneal-base", "prompt": map[string]any{"chunks": []any{
		map[string]any{"tokens": []int32{1}}}}, "sampling_params": map[string]any{"max_tokens": 1}}
	for _, c := range []struct {
		path   string
		body   any
		status int
		reason string
		says   string
	}{
		{"create_session", `{"tags": 3}`, 400, "INVALID_FIELDS", "tags"},
		{"create_session", `{"tags": ["a"`, 400, "BODY_NOT_VALID", "JSON"},
		{"create_session", `{"user_metadata": {"a": 1}}`, 400, "INVALID_FIELDS", "user_metadata"},
		{"create_session", strings.Repeat(" ", 3<<20), 413, "BODY_TOO_LARGE", "2097152"},
		{"session_heartbeat", `{"session_id": "ts-none"}`, 404, "SESSION_NOT_FOUND", `"ts-none"`},
		{"session_heartbeat", `{"session_id": "../../x"}`, 404, "SESSION_NOT_FOUND", "create a session"},
		{"create_model", with(createModel(session, 9), "session_id", "ts-none"), 404, "SESSION_NOT_FOUND", ""},
		{"create_model", with(createModel(session, 9), "base_model", "acme/other"), 400, "INVALID_FIELDS",
			`"default/anneal-base"`},
		{"create_model", with(createModel(session, 9), "lora_config", map[string]any{"rank": 65}), 400, "INVALID_FIELDS",
			"rank"},
		{"create_model", with(createModel(session, 9), "lora_config", map[string]any{"rank": 8, "seed": -1}), 400,
			"INVALID_FIELDS", "lora_config.seed"},
		{"create_model", with(createModel(session, 0), "lora_config", map[string]any{"rank": 9}), 400, "INVALID_FIELDS",
			"model_seq_id: is 0, which was used before"},
		{"forward_backward", with(pass, "model_id", "ts-none-0"), 404, "RUN_NOT_FOUND", "create a model"},
		{"forward_backward", with(pass, "seq_id", 0), 400, "INVALID_FIELDS", "seq_id"},
		{"forward_backward", passOf(run, 1, []int32{1, 2}, []int32{2}), 400, "INVALID_FIELDS", "target_tokens"},
		{"optim_step", map[string]any{"model_id": run, "seq_id": 1}, 400, "INVALID_FIELDS", "adam_params"},
		{"save_weights", map[string]any{"model_id": run, "seq_id": 1, "path": "../x"}, 400, "INVALID_FIELDS", "path"},
		{"save_weights_for_sampler", map[string]any{"model_id": run, "seq_id": 1, "path": "sampling-session-3"}, 400,
			"INVALID_FIELDS", "reserved"},
		{"load_weights", map[string]any{"model_id": run, "seq_id": 2, "path": "tinker://" + run + "/weights/a"}, 400,
			"INVALID_FIELDS", "seq_id"},
		{"load_weights", map[string]any{"model_id": run, "seq_id": 1, "path": "tinker://" + run + "/weights/a"}, 404,
			"CHECKPOINT_NOT_FOUND", "list checkpoints"},
		{"weights_info", map[string]any{"tinker_path": "s3://x"}, 400, "INVALID_FIELDS", "tinker_path"},
		{"asample", with(sampling, "base_model", "acme/other"), 400, "INVALID_FIELDS", "base_model"},
		{"asample", with(sampling, "num_samples", 0), 400, "INVALID_FIELDS", "num_samples"},
		{"asample", map[string]any{"sampling_session_id": session + ":sample:0:AA", "seq_id": 0,
			"prompt": sampling["prompt"], "sampling_params": sampling["sampling_params"]}, 400, "INVALID_FIELDS",
			"model_path"},
		{"create_sampling_session", map[string]any{"session_id": session, "sampling_session_seq_id": 0,
			"model_path": "tinker://" + run + "/sampler_weights/none"}, 404, "CHECKPOINT_NOT_FOUND", ""},
		{"retrieve_future", `{"request_id": "run:` + run + `:77"}`, 410, "RESULT_EXPIRED", "operation 77"},
		{"retrieve_future", `{"request_id": "run:../../x:1"}`, 404, "REQUEST_NOT_FOUND", "request_id"},
		{"retrieve_future", `{"request_id": "sample:none:1"}`, 410, "RESULT_EXPIRED", ""},
		{"retrieve_future", `{"request_id": "unload:` + run + `:0"}`, 404, "REQUEST_NOT_FOUND", "not unloaded"},
	} {
		h.refuses(h.post(c.path, c.body), c.status, c.reason)
		says := strings.ReplaceAll(c.says, `"`, `\"`)
		require.Contains(t, string(h.post(c.path, c.body).body), says, "%s %v", c.path, c.body)
	}
	h.refuses(h.get("training_runs?limit=0"), 400, "INVALID_FIELDS", "limit")
	h.refuses(h.get("training_runs?offset=x"), 400, "INVALID_FIELDS", `offset: must be one integer, is "x"`)
	h.refuses(h.get("samplers/nonsense"), 404, "SAMPLER_NOT_FOUND")

	diverged := h.future(h.post("forward_backward", passOf(run, 1, []int32{1, 40}, []int32{2, 99})))
	require.Equal(t, "user", diverged["category"], "%v", diverged)
	require.Contains(t, diverged["error"], "99")
}

// TestTrainingOrder checks that operations are executed in the order of their numbers whatever the
// order of arrival, that repeated requests have the same answers, and that another request with a
// used number is refused.
func TestTrainingOrder(t *testing.T) {
	h := newTrainingHarness(t)
	h.execute()
	session, run := h.begin()
	tokens, targets := []int32{1, 2, 3}, []int32{2, 3, 4}
	step := h.post("optim_step", stepOf(run, 3, 0.1))
	second := h.post("forward_backward", passOf(run, 2, targets, tokens))
	first := h.post("forward_backward", passOf(run, 1, tokens, targets))
	require.EqualValues(t, 1, h.future(step)["metrics"].(map[string]any)["step"])
	one, two := h.future(first), h.future(second)
	require.NotEqual(t, one, two)
	again := h.post("forward_backward", passOf(run, 1, tokens, targets))
	require.Equal(t, first.body, again.body)
	require.Equal(t, one, h.future(again))
	reordered := fmt.Sprintf(`{"seq_id": 3, "adam_params": {"learning_rate": 1e-1}, "model_id": %q}`, run)
	require.Equal(t, step.body, h.post("optim_step", reordered).body, "the same request in another encoding")
	reused := h.post("forward_backward", passOf(run, 1, targets, tokens))
	h.refuses(reused, 400, operations.ReasonSequenceReused, "number 1")
	h.refuses(h.post("forward", map[string]any{"model_id": run, "seq_id": 1,
		"forward_input": passOf(run, 1, tokens, targets)["forward_backward_input"]}), 400, operations.ReasonSequenceReused)
	require.EqualValues(t, 2, h.future(h.post("optim_step", stepOf(run, 4, 0.1)))["metrics"].(map[string]any)["step"])
	made := h.post("create_model", createModel(session, 0))
	require.Equal(t, made.body, h.post("create_model", createModel(session, 0)).body)
	runs := h.must(h.get("training_runs"))
	require.Len(t, runs["training_runs"], 1, "a repeated create_model creates no second run")
}

// TestTrainingSurvivesRestarts checks that another server on the same log and files answers
// finished operations as before, holds polls for others, and says why there is no result yet.
func TestTrainingSurvivesRestarts(t *testing.T) {
	h := newTrainingHarness(t)
	h.execute()
	session, run := h.begin()
	submitted := h.post("forward_backward", passOf(run, 1, []int32{1, 2, 3}, []int32{2, 3, 4}))
	before := h.future(submitted)
	h.stop()
	waiting := h.must(h.post("optim_step", stepOf(run, 2, 0.1)))["request_id"]

	restarted := &trainingHarness{job: h.job, host: h.host, journal: operations.New(h.store, nil)}
	restarted.harness = h.another(func(o *Options) {
		o.Direct, o.Journal, o.TrainingHold = "direct.test", restarted.journal, time.Millisecond
	})
	require.Equal(t, before, restarted.future(submitted))
	require.Equal(t, submitted.body, restarted.post("forward_backward", passOf(run, 1, []int32{1, 2, 3},
		[]int32{2, 3, 4})).body)
	poll := restarted.post("retrieve_future", map[string]any{"request_id": waiting})
	require.Equal(t, 408, poll.status)
	require.Equal(t, "try_again", poll.json(t)["type"])
	require.Equal(t, "active", poll.json(t)["queue_state"])
	h.do(domain.Intend(domain.TrainerJobs, h.job, domain.Command[domain.TrainerJob](domain.StopService{Attempt: 1})))
	require.NoError(t, restarted.harness.world.WaitFor(t.Context(), h.last().Position))
	poll = restarted.post("retrieve_future", map[string]any{"request_id": waiting})
	require.Equal(t, "paused_capacity", poll.json(t)["queue_state"])
	require.Contains(t, poll.json(t)["queue_state_reason"], "IDLE")
	state := func() string {
		row, _ := projections.TableOf(restarted.harness.world.View(), domain.TrainerJobs).Get(h.job)
		return row.State.State
	}
	require.Equal(t, domain.JobPendingState, state(), "a poll wakes the job, because its operation waits")
	h.do(domain.Intend(domain.TrainerJobs, h.job, domain.Command[domain.TrainerJob](domain.StopService{Attempt: 1})))
	require.NoError(t, restarted.harness.world.WaitFor(t.Context(), h.last().Position))
	restarted.must(restarted.post("session_heartbeat", map[string]any{"session_id": session}))
	require.Equal(t, domain.JobPendingState, state(), "a heartbeat wakes the job of a live run")

	// the journal is lost
	require.NoError(t, h.store.DeletePrefix(t.Context(), "jobs/acme/"+h.row().CreateEvent+"/journal/"))
	h.refuses(restarted.post("optim_step", stepOf(run, 3, 0.1)), 410, "RUN_CORRUPTED", "the run has no checkpoint")
	failed := restarted.must(restarted.post("retrieve_future", map[string]any{"request_id": waiting}))
	require.Equal(t, "server", failed["category"])
	require.Contains(t, failed["error"], "create another run")
	require.Equal(t, true, restarted.must(restarted.get("training_runs/" + run))["corrupted"])
}

// TestTrainingCheckpoints checks the lists, the expiry, the archive and the deletion of
// checkpoints.
func TestTrainingCheckpoints(t *testing.T) {
	h := newTrainingHarness(t)
	h.execute()
	session, run := h.begin()
	h.future(h.post("save_weights", map[string]any{"model_id": run, "seq_id": 1, "path": "a", "ttl_seconds": 100_000}))
	h.future(h.post("save_weights_for_sampler", map[string]any{"model_id": run, "seq_id": 2, "path": "b"}))
	h.future(h.post("save_weights_for_sampler", map[string]any{"model_id": run, "seq_id": 3,
		"sampling_session_seq_id": 4}))
	list := h.must(h.get("checkpoints"))["checkpoints"].([]any)
	require.Len(t, list, 2, "ephemeral checkpoints are not listed")
	require.Equal(t, list, h.must(h.get("training_runs/" + run + "/checkpoints"))["checkpoints"])
	require.Equal(t, "sampler", list[0].(map[string]any)["checkpoint_type"])
	require.NotEmpty(t, list[1].(map[string]any)["expires_at"])
	require.Len(t, h.must(h.get("checkpoints?limit=1&offset=1"))["checkpoints"], 1)
	path := "training_runs/" + run + "/checkpoints/weights/a"
	h.must(h.send(trainingRequest{method: "PUT", path: path + "/ttl", key: h.keys["user"],
		body: map[string]any{"ttl_seconds": nil}}))
	info := h.must(h.post("weights_info", map[string]any{"tinker_path": "tinker://" + run + "/weights/a"}))
	require.EqualValues(t, 8, info["lora_rank"])
	about := h.must(h.get("training_runs/" + run))
	require.Equal(t, "weights/a", about["last_checkpoint"].(map[string]any)["checkpoint_id"])
	require.Nil(t, about["last_checkpoint"].(map[string]any)["expires_at"])
	require.Equal(t, []any{session}, h.must(h.get("sessions"))["sessions"])
	require.Equal(t, []any{run}, h.must(h.get("sessions/" + session))["training_run_ids"])

	sampler := "training_runs/" + run + "/checkpoints/sampler_weights/b/archive"
	redirect := h.get(sampler)
	require.Equal(t, 302, redirect.status)
	require.NotEmpty(t, redirect.header.Get("Expires"))
	at := redirect.header.Get("Location")
	require.True(t, strings.HasPrefix(at, "https://"+h.host+"/"), "the scheme of the server's URL: %s", at)
	at = strings.Replace(at, "https:", "http:", 1)
	download := h.send(trainingRequest{method: "GET", path: at})
	require.Equal(t, 200, download.status, "%s", download.body)
	var names []string
	for archive := tar.NewReader(bytes.NewReader(download.body)); ; {
		file, err := archive.Next()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		names = append(names, file.Name)
	}
	require.Contains(t, names, "adapter_config.json")
	changed, err := url.Parse(at)
	require.NoError(t, err)
	query := changed.Query()
	query.Set("expires", "9999999999")
	changed.RawQuery = query.Encode()
	h.refuses(h.send(trainingRequest{method: "GET", path: changed.String()}), 403, "URL_NOT_VALID")
	h.refuses(h.send(trainingRequest{method: "GET", path: strings.Replace(at, "sampler_weights/b", "weights/a", 1)}), 403,
		"URL_NOT_VALID")

	sampling := h.must(h.post("create_sampling_session", map[string]any{"session_id": session,
		"sampling_session_seq_id": 9, "model_path": "tinker://" + run + "/sampler_weights/b"}))["sampling_session_id"]
	ask := map[string]any{"sampling_session_id": sampling, "seq_id": 0, "num_samples": 1,
		"prompt":          map[string]any{"chunks": []any{map[string]any{"type": "encoded_text", "tokens": []int{1, 2}}}},
		"sampling_params": map[string]any{"max_tokens": 2}}
	asked := h.post("asample", ask)
	drawn := h.future(asked)
	h.must(h.send(trainingRequest{method: "DELETE", path: strings.TrimSuffix(sampler, "/archive"), key: h.keys["user"]}))
	h.future(h.post("save_weights_for_sampler", map[string]any{"model_id": run, "seq_id": 4, "path": "b"}))
	again := h.post("asample", ask)
	require.Equal(t, asked.body, again.body, "the path has other files now, but the request is the same")
	require.Equal(t, drawn, h.future(again))

	h.must(h.send(trainingRequest{method: "DELETE", path: path, key: h.keys["user"]}))
	h.refuses(h.send(trainingRequest{method: "DELETE", path: path, key: h.keys["user"]}), 404, "CHECKPOINT_NOT_FOUND")
	require.Len(t, h.must(h.get("checkpoints"))["checkpoints"], 1)
}
