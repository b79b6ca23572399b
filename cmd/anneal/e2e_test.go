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

	"anneal/internal/testutil"
)

const (
	jobName        = "accounts/default/supervisedFineTuningJobs/codes"
	deploymentName = "accounts/default/deployments/codes"
)

// TestMainJob checks the main workflow: a dataset becomes a model, the model is served, and
// subscribers receive every event.
func TestMainJob(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir())
	user, wires, watermill := s.user(), s.tail(), s.tailWithWatermill()

	t.Run("the server is ready as documented", func(t *testing.T) { checkReady(t, s) })
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
		requireCompleteCurve(t, user.lossCurve("codes"), 15)
	})
	t.Run("the model is served", func(t *testing.T) {
		made := user.must(http.MethodPost, "/deployments?deploymentId=codes",
			object{"baseModel": "accounts/default/models/codes", "minReplicaCount": 1})
		require.Equal(t, "CREATING", made["state"])
		ready := user.until("/deployments/codes", "state", "READY")
		require.EqualValues(t, 1, at(ready, "replicaStats.readyReplicaCount"))
		streamsTheSame(t, user, "accounts/default/models/codes")
	})
	t.Run("a deployment that is scaled to zero starts at the first request",
		func(t *testing.T) { scalesFromZero(t, user) })
	t.Run("subscribers receive every event once and in order",
		func(t *testing.T) { receivedOnce(t, user, wires, watermill) })
	t.Run("every event is as its schema describes", func(*testing.T) { s.checkEvents() })
	t.Run("readers can do nothing else", func(t *testing.T) { readersOnlyRead(t, s) })
	t.Run("other accounts have no access", func(t *testing.T) { otherAccountIsRefused(t, s) })
	t.Run("the log can be verified", func(t *testing.T) {
		require.Contains(t, s.run("log", "verify").ok(t), "running server")
		require.Contains(t, s.run("log", "verify", "--data", s.dir, "-o", "json").ok(t), `"equal": true`)
	})
	t.Run("a restart continues from the first run", func(t *testing.T) { restarts(t, s, wires) })
}

func checkReady(t *testing.T, s *plane) {
	require.Equal(t, 1, strings.Count(s.stdout.output(), "\n"), "one line when it is ready: %q", s.stdout.output())
	for _, file := range []string{"context.json", "operator.json"} {
		info := testutil.Stat(t, filepath.Join(s.dir, file))
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

// streamsTheSame requires the same text at temperature 0 with and without streaming.
func streamsTheSame(t *testing.T, user caller, model string) {
	t.Helper()
	question := object{"model": model, "prompt": "Packing code for 15 pink chairs, customer Rosa", "max_tokens": 16,
		"temperature": 0, "ignore_eos": true}
	status, answer, err := user.do(http.MethodPost, "//inference/v1/completions", question)
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
		require.False(t, done, "data after [DONE]: %s", data)
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

func scalesFromZero(t *testing.T, user caller) {
	made := user.must(http.MethodPost, "/deployments?deploymentId=sleeper", object{"baseModel": baseModel})
	require.EqualValues(t, 0, made["minReplicaCount"])
	asleep := user.until("/deployments/sleeper", "state", "READY")
	require.EqualValues(t, 0, at(asleep, "replicaStats.readyReplicaCount"))
	status, answer, err := user.complete("accounts/default/deployments/sleeper", "hello")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status, "%v", answer)
	require.EqualValues(t, 1, at(user.get("/deployments/sleeper"), "replicaStats.readyReplicaCount"))
}

// receivedOnce requires that both subscribers received every event of the log exactly once.
func receivedOnce(t *testing.T, user caller, wires, watermill *recorder) {
	recorded := user.history()
	require.NotEmpty(t, recorded)
	last := positionOf(t, recorded[len(recorded)-1])

	all := wires.upTo(t, last)
	require.Len(t, all, int(last), "every position exactly once")
	for i, h := range all {
		require.EqualValues(t, i+1, h.position)
		require.NotEmpty(t, h.id)
	}
	var ofDefault []receivedEvent
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

	job := slices.DeleteFunc(kinds(all, jobName),
		func(kind string) bool { return kind == "supervisedFineTuningJob.checkpointed.v1" })
	require.Equal(t, []string{"supervisedFineTuningJob.created.v1", "supervisedFineTuningJob.started.v1",
		"supervisedFineTuningJob.writing.v1",
		"supervisedFineTuningJob.resultsStored.v1",
		"supervisedFineTuningJob.completed.v1"}, job)
	deployment := slices.DeleteFunc(kinds(all, deploymentName),
		func(kind string) bool { return kind == "replica.advanced.v1" })
	require.Equal(t, []string{"deployment.created.v1", "replica.placed.v1", "deployment.ready.v1"}, deployment)
}

// readersOnlyRead requires that a reader's credentials cannot change the log.
func readersOnlyRead(t *testing.T, s *plane) {
	errs := make(chan error, 16)
	nc := s.reader(s.context, errs)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	before := s.user().get("//readyz")["position"]

	for _, subject := range []string{"events.default.datasets.forged", "EVENTS", "agents.local.beat",
		"$JS.API.STREAM.PURGE.EVENTS", "$JS.API.STREAM.DELETE.EVENTS",
		"$JS.API.STREAM.UPDATE.EVENTS", "$JS.API.STREAM.CREATE.MINE", "$JS.API.STREAM.MSG.DELETE.EVENTS", "$KV.keys.x",
		"tasks.dataset-validation"} {
		require.NoError(t, nc.Publish(subject, []byte("{}")))
		require.NoError(t, nc.Flush())
		select {
		case err := <-errs:
			require.ErrorIs(t, err, nats.ErrPermissionViolation)
			require.Contains(t, err.Error(), subject)
		case <-time.After(patience):
			require.Fail(t, "a reader can publish", subject)
		}
	}
	info, err := js.Stream(t.Context(), "EVENTS")
	require.NoError(t, err)
	require.NotNil(t, info.CachedInfo().Config.Mirror, "readers see a mirror")
	durable, err := info.CreateOrUpdateConsumer(t.Context(),
		jetstream.ConsumerConfig{Durable: "mine", FilterSubject: "events.default.deployments.>"})
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
	require.EqualValues(t, 16, used["completionTokens"], "of the first response")

	_, err = nats.Connect(s.context.NATSURL, nats.UserInfo(s.context.NATSUser, "wrong"))
	require.ErrorIs(t, err, nats.ErrAuthorization)
	_, err = nats.Connect(s.context.NATSURL)
	require.ErrorIs(t, err, nats.ErrAuthorization)
}

// otherAccountIsRefused creates an account as the operator would, and requires that requests with
// the account's key for resources of another account are rejected.
func otherAccountIsRefused(t *testing.T, s *plane) {
	var made struct{ Account, APIKey string }
	require.NoError(t, json.Unmarshal([]byte(s.run("account", "create", "acme", "-o", "json", "--data", s.dir).ok(t)),
		&made))
	require.Equal(t, "acme", made.Account)
	acme := s.as("acme", made.APIKey)
	require.Empty(t, acme.list("/datasets", "datasets"))
	require.Equal(t, "READY", acme.get("//v1/" + baseModel)["state"], "every account can read the base model")

	intruder := s.as("default", made.APIKey)
	for _, path := range []string{"", "/datasets", "/datasets/codes", "/datasets/nowhere", "/datasets/codes:preview",
		"/supervisedFineTuningJobs/codes",
		"/models/codes", "/deployments/codes", "/events", "/deployments/codes/events", "/secrets", "/apiKeys"} {
		status, answer, err := intruder.do(http.MethodGet, path, nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusForbidden, status, "GET %s: %v", path, answer)
		require.NotEmpty(t, answer["message"])
	}
	for _, model := range []string{"accounts/default/models/codes", "accounts/default/deployments/codes",
		"default/codes"} {
		status, answer, err := acme.complete(model, "hello")
		require.NoError(t, err)
		require.Contains(t, []int{http.StatusForbidden, http.StatusNotFound}, status, "%s: %v", model, answer)
	}
	status, _, err := intruder.do(http.MethodDelete, "/datasets/codes", nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusForbidden, status)
	require.Equal(t, "READY", s.user().get("/datasets/codes")["state"])
}

func restarts(t *testing.T, s *plane, wires *recorder) {
	before := s.context
	require.Zero(t, s.end(), "SIGTERM ends it cleanly")
	require.Contains(t, s.run("log", "verify", "--data", s.dir).ok(t), "snapshot")
	s.start()
	require.Equal(t, before.APIKey, s.context.APIKey)
	require.Equal(t, before.NATSURL, s.context.NATSURL, "subscribers reconnect at the same address")
	require.Equal(t, before.NATSPassword, s.context.NATSPassword)
	user := s.user()
	require.Equal(t, "60", user.get("/datasets/codes")["exampleCount"])
	require.Equal(t, "JOB_STATE_COMPLETED", user.get("/supervisedFineTuningJobs/codes")["state"])
	user.until("/deployments/codes", "replicaStats.readyReplicaCount", 1.0)
	streamsTheSame(t, user, "accounts/default/models/codes")

	recorded := user.history()
	last := positionOf(t, recorded[len(recorded)-1])
	require.Len(t, wires.upTo(t, last), int(last), "the earlier subscriber receives the later events, each once")
	require.Zero(t, s.end())
}
