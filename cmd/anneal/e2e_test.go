package main_test

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

const (
	jobName        = "accounts/default/supervisedFineTuningJobs/codes"
	deploymentName = "accounts/default/deployments/codes"
)

// The main job of the platform: a dataset becomes a model, the model answers,
// and whoever listens hears all of it.
func TestMainJob(t *testing.T) {
	s := serve(t, t.TempDir())
	user, wires, watermill := s.user(), s.tail(), s.tailWithWatermill()

	t.Run("what the server promises when it is ready", func(t *testing.T) { readyAsPromised(t, s) })
	t.Run("a dataset becomes a model", func(t *testing.T) {
		user.dataset("codes", 60)
		require.Equal(t, "60", user.get("/datasets/codes")["exampleCount"])
		user.job("codes", "codes", 1)
		job := user.until("/supervisedFineTuningJobs/codes", "state", "JOB_STATE_COMPLETED")
		require.Equal(t, "OK", at(job, "status.code"))
		require.NotEmpty(t, job["completedTime"])
		model := user.get("/models/codes")
		require.Equal(t, "READY", model["state"])
		require.Equal(t, baseModel, model["baseModel"])
		wholeCurve(t, user.lossCurve("codes"), 15)
	})
	t.Run("the model answers", func(t *testing.T) {
		made := user.must(http.MethodPost, "/deployments?deploymentId=codes", object{"baseModel": "accounts/default/models/codes", "minReplicaCount": 1})
		require.Equal(t, "CREATING", made["state"])
		ready := user.until("/deployments/codes", "state", "READY")
		require.EqualValues(t, 1, at(ready, "replicaStats.readyReplicaCount"))
		answersTheSame(t, user, "accounts/default/models/codes")
	})
	t.Run("a deployment that sleeps is woken by the first request", func(t *testing.T) { wakes(t, user) })
	t.Run("subscribers hear everything once and in order", func(t *testing.T) { heardOnce(t, user, wires, watermill) })
	t.Run("readers can do nothing else", func(t *testing.T) { readersOnlyRead(t, s) })
	t.Run("other accounts are kept out", func(t *testing.T) { keptOut(t, s) })
	t.Run("the log can be verified", func(t *testing.T) {
		require.Contains(t, s.run("log", "verify").ok(t), "running server")
		require.Contains(t, s.run("log", "verify", "--data", s.dir, "-o", "json").ok(t), `"equal": true`)
	})
	t.Run("a second start goes on where the first was", func(t *testing.T) { goesOn(t, s, wires) })
}

func readyAsPromised(t *testing.T, s *plane) {
	require.Equal(t, 1, strings.Count(s.stdout.whole(), "\n"), "one line when it is ready: %q", s.stdout.whole())
	for _, file := range []string{"context.json", "operator.json"} {
		info, err := os.Stat(filepath.Join(s.dir, file))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), file)
	}
	require.Equal(t, "default", s.context.Account)
	require.NotEmpty(t, s.context.NATSUser)
	require.NotEmpty(t, s.context.NATSPassword)
	anyone := s.as("", "")
	for _, path := range []string{"//readyz", "//healthz"} {
		require.Equal(t, "ok", anyone.get(path)["status"])
	}
	res, err := anyone.send(http.MethodGet, "//metrics", nil)
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, http.StatusOK, res.StatusCode)
	model := s.user().get("//v1/" + baseModel)
	require.Equal(t, "READY", model["state"])
	require.Equal(t, true, model["public"])
}

// answersTheSame asks at temperature 0, at once and as a stream.
func answersTheSame(t *testing.T, user caller, model string) {
	t.Helper()
	question := object{"model": model, "prompt": "Packing code for 15 pink chairs, customer Rosa", "max_tokens": 16, "temperature": 0, "ignore_eos": true}
	status, answer, err := user.ask(http.MethodPost, "//inference/v1/completions", question)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status, "%v", answer)
	require.Equal(t, "text_completion", answer["object"])
	require.EqualValues(t, 16, at(answer, "usage.completion_tokens"))
	text := textOf(t, answer)
	require.NotEmpty(t, text)

	question["stream"] = true
	res, err := user.send(http.MethodPost, "//inference/v1/completions", question)
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Contains(t, res.Header.Get("Content-Type"), "text/event-stream")
	var streamed, finish string
	var done bool
	for scanner := bufio.NewScanner(res.Body); scanner.Scan(); {
		data, found := strings.CutPrefix(scanner.Text(), "data: ")
		if !found {
			continue
		}
		require.False(t, done, "something follows [DONE]: %s", data)
		if done = data == "[DONE]"; done {
			continue
		}
		var chunk object
		require.NoError(t, json.Unmarshal([]byte(data), &chunk), data)
		streamed += textOf(t, chunk)
		if reason, _ := chunk["choices"].([]any)[0].(object)["finish_reason"].(string); reason != "" {
			finish = reason
			require.EqualValues(t, 16, at(chunk, "usage.completion_tokens"), "the last chunk carries the usage")
		} else {
			require.Nil(t, chunk["usage"])
		}
	}
	require.True(t, done)
	require.Equal(t, "length", finish)
	require.Equal(t, text, streamed)
}

func wakes(t *testing.T, user caller) {
	made := user.must(http.MethodPost, "/deployments?deploymentId=sleeper", object{"baseModel": baseModel})
	require.EqualValues(t, 0, made["minReplicaCount"])
	asleep := user.until("/deployments/sleeper", "state", "READY")
	require.EqualValues(t, 0, at(asleep, "replicaStats.readyReplicaCount"))
	status, answer, err := user.complete("accounts/default/deployments/sleeper", "hello")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status, "%v", answer)
	require.EqualValues(t, 1, at(user.get("/deployments/sleeper"), "replicaStats.readyReplicaCount"))
}

// heardOnce compares what both subscribers heard with what the log says.
func heardOnce(t *testing.T, user caller, wires, watermill *ears) {
	recorded := user.history()
	require.NotEmpty(t, recorded)
	last := positionOf(t, recorded[len(recorded)-1])

	all := wires.upTo(t, last)
	require.Len(t, all, int(last), "every position exactly once")
	for i, h := range all {
		require.EqualValues(t, i+1, h.position)
		require.NotEmpty(t, h.id)
	}
	var ofDefault []heard
	for _, h := range all {
		if strings.HasPrefix(h.subject, "accounts/default/") || h.subject == "accounts/default" {
			ofDefault = append(ofDefault, h)
		}
	}
	require.Len(t, ofDefault, len(recorded))
	bridged := watermill.upTo(t, last)
	require.Len(t, bridged, len(recorded))
	for i, event := range recorded {
		require.Equal(t, event["id"], ofDefault[i].id, "event %d", i)
		require.Equal(t, event["type"], ofDefault[i].kind, "event %d", i)
		require.Equal(t, event["id"], bridged[i].id, "event %d", i)
		require.Equal(t, event["subject"], bridged[i].subject, "event %d", i)
	}

	job := slices.DeleteFunc(kinds(all, jobName), func(kind string) bool { return kind == "supervisedFineTuningJob.checkpointed.v1" })
	require.Equal(t, []string{"supervisedFineTuningJob.created.v1", "supervisedFineTuningJob.validating.v1", "supervisedFineTuningJob.queued.v1",
		"supervisedFineTuningJob.started.v1", "supervisedFineTuningJob.writing.v1", "supervisedFineTuningJob.resultsStored.v1",
		"supervisedFineTuningJob.completed.v1"}, job)
	deployment := slices.DeleteFunc(kinds(all, deploymentName), func(kind string) bool { return kind == "replica.advanced.v1" })
	require.Equal(t, []string{"deployment.created.v1", "replica.placed.v1", "deployment.ready.v1"}, deployment)
}

// readersOnlyRead tries what a holder of the reader's credentials could want
// to do to the log.
func readersOnlyRead(t *testing.T, s *plane) {
	refusals := make(chan error, 16)
	nc := s.reader(s.context, refusals)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	before := s.user().get("//readyz")["position"]

	for _, subject := range []string{"events.default.datasets.forged", "EVENTS", "desk.beat", "$JS.API.STREAM.PURGE.EVENTS", "$JS.API.STREAM.DELETE.EVENTS",
		"$JS.API.STREAM.UPDATE.EVENTS", "$JS.API.STREAM.CREATE.MINE", "$JS.API.STREAM.MSG.DELETE.EVENTS", "$KV.keys.x", "tasks.dataset-validation"} {
		require.NoError(t, nc.Publish(subject, []byte("{}")))
		require.NoError(t, nc.Flush())
		select {
		case err := <-refusals:
			require.ErrorIs(t, err, nats.ErrPermissionViolation)
			require.Contains(t, err.Error(), subject)
		case <-time.After(patience):
			require.Fail(t, "a reader may publish", subject)
		}
	}
	info, err := js.Stream(t.Context(), "EVENTS")
	require.NoError(t, err)
	require.NotNil(t, info.CachedInfo().Config.Mirror, "readers see a mirror")
	durable, err := info.CreateOrUpdateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "mine", FilterSubject: "events.default.deployments.>"})
	require.NoError(t, err)
	batch, err := durable.Fetch(1, jetstream.FetchMaxWait(patience))
	require.NoError(t, err)
	m := <-batch.Messages()
	require.NotNil(t, m, "%v", batch.Error())
	require.Equal(t, "deployment.created.v1", m.Headers().Get("ce-type"))
	require.NoError(t, m.DoubleAck(t.Context()))
	require.Equal(t, before, s.user().get("//readyz")["position"], "nothing was written")
	usage, err := js.OrderedConsumer(t.Context(), "USAGE", jetstream.OrderedConsumerConfig{})
	require.NoError(t, err)
	m, err = usage.Next(jetstream.FetchMaxWait(patience))
	require.NoError(t, err)
	require.Equal(t, "usage.default.completion", m.Subject())
	var used object
	require.NoError(t, json.Unmarshal(m.Data(), &used))
	require.Equal(t, true, used["complete"])
	require.EqualValues(t, 16, used["completionTokens"], "of the first answer")

	_, err = nats.Connect(s.context.NATSURL, nats.UserInfo(s.context.NATSUser, "wrong"))
	require.ErrorIs(t, err, nats.ErrAuthorization)
	_, err = nats.Connect(s.context.NATSURL)
	require.ErrorIs(t, err, nats.ErrAuthorization)
}

// keptOut makes an account as the operator would, and lets its key knock at
// the doors of another.
func keptOut(t *testing.T, s *plane) {
	var made struct{ Account, APIKey string }
	require.NoError(t, json.Unmarshal([]byte(s.run("account", "create", "acme", "-o", "json", "--data", s.dir).ok(t)), &made))
	require.Equal(t, "acme", made.Account)
	acme := s.as("acme", made.APIKey)
	require.Empty(t, acme.list("/datasets", "datasets"))
	require.Equal(t, "READY", acme.get("//v1/" + baseModel)["state"], "the base model is in every account's sight")

	intruder := s.as("default", made.APIKey)
	for _, path := range []string{"", "/datasets", "/datasets/codes", "/datasets/nowhere", "/datasets/codes:preview", "/supervisedFineTuningJobs/codes",
		"/models/codes", "/deployments/codes", "/events", "/deployments/codes/events", "/secrets", "/apiKeys"} {
		status, answer, err := intruder.ask(http.MethodGet, path, nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusForbidden, status, "GET %s: %v", path, answer)
		require.NotEmpty(t, answer["message"])
	}
	for _, model := range []string{"accounts/default/models/codes", "accounts/default/deployments/codes", "default/codes"} {
		status, answer, err := acme.complete(model, "hello")
		require.NoError(t, err)
		require.Contains(t, []int{http.StatusForbidden, http.StatusNotFound}, status, "%s: %v", model, answer)
	}
	status, _, err := intruder.ask(http.MethodDelete, "/datasets/codes", nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusForbidden, status)
	require.Equal(t, "READY", s.user().get("/datasets/codes")["state"])
}

func goesOn(t *testing.T, s *plane, wires *ears) {
	before := s.context
	require.Zero(t, s.end(), "SIGTERM ends it cleanly")
	require.Contains(t, s.run("log", "verify", "--data", s.dir).ok(t), "snapshot")
	s.start()
	require.Equal(t, before.APIKey, s.context.APIKey)
	require.Equal(t, before.NATSURL, s.context.NATSURL, "subscribers find it where it was")
	require.Equal(t, before.NATSPassword, s.context.NATSPassword)
	user := s.user()
	require.Equal(t, "60", user.get("/datasets/codes")["exampleCount"])
	require.Equal(t, "JOB_STATE_COMPLETED", user.get("/supervisedFineTuningJobs/codes")["state"])
	user.until("/deployments/codes", "replicaStats.readyReplicaCount", 1.0)
	answersTheSame(t, user, "accounts/default/models/codes")

	recorded := user.history()
	last := positionOf(t, recorded[len(recorded)-1])
	require.Len(t, wires.upTo(t, last), int(last), "the subscriber from before hears what came after, each once")
	require.Zero(t, s.end())
}
