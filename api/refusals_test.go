package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
)

func TestAudioHasTheInferenceShapeEvenWhereNothingIs(t *testing.T) {
	s := newStage(t, Limits{})
	for _, path := range []string{"/v1/audio/nothing", "/inference/v1/audio/nothing"} {
		a := s.call("GET", path, "inference", "")
		require.Equal(t, http.StatusNotFound, a.status)
		require.Contains(t, a.json(t), "error")
	}
}

// A path that exists says which methods it has; a verb is part of its path.
func TestWrongMethodsAreToldTheRightOnes(t *testing.T) {
	s := newStage(t, Limits{})
	for _, one := range []struct{ method, path, allow string }{
		{"PUT", "/v1/accounts/acme/models/one", "GET, HEAD, PATCH, DELETE"},
		{"OPTIONS", "/v1/accounts/acme/models", "GET, HEAD, POST"},
		{"GET", "/v1/accounts/acme/models/one:prepare", "POST"},
		{"HEAD", "/v1/accounts/acme/models/one:prepare", "POST"},
		{"DELETE", "/v1/accounts/acme/datasets/one:preview", "GET, HEAD"},
		{"POST", "/v1/accounts/acme/deployments/one:scale", "PATCH"},
		{"GET", "/inference/v1/chat/completions", "POST"},
		{"POST", "/healthz", "GET, HEAD"},
	} {
		a := s.call(one.method, one.path, "admin", "")
		require.Equal(t, http.StatusMethodNotAllowed, a.status, "%s %s: %s", one.method, one.path, a.body)
		require.Equal(t, one.allow, a.header.Get("Allow"), "%s %s", one.method, one.path)
		if one.method != http.MethodHead {
			require.Contains(t, string(a.body), "it answers "+one.allow)
		}
	}
	for _, method := range []string{"GET", "POST", "DELETE"} {
		a := s.call(method, "/v1/accounts/acme/models/one:fly", "user", "")
		require.Equal(t, http.StatusNotFound, a.status, "%s", a.body)
		require.Contains(t, a.json(t)["message"], method+` ":fly"`)
		require.Empty(t, a.header.Get("Allow"))
	}
}

// An engine's refusal of a prompt is told in the words of the request.
func TestRefusedPromptsAreNamed(t *testing.T) {
	s := newStage(t, Limits{})
	s.deploy("d1", 1)
	s.replicas.sing = func(_ context.Context, _ domain.Replica, req engines.CompletionRequest, _ func(engines.Chunk) error) (engines.Usage, error) {
		switch {
		case strings.HasPrefix(req.Prompt, "long"):
			return engines.Usage{}, domain.Errorf(domain.InvalidArgument, "prompt: has 600 tokens and fills the model's window of 512; shorten it")
		case len(req.PromptTokens) > 1:
			return engines.Usage{}, domain.Errorf(domain.InvalidArgument, "promptTokens[1]: must be 0 to 511, is 99999")
		}
		return engines.Usage{PromptTokens: 1}, nil
	}
	for _, c := range []struct{ prompt, message string }{
		{`[1, 99999]`, "prompt[1]: must be 0 to 511"},
		{`[[1], [1, 99999]]`, "prompt[1][1]: must be 0 to 511"},
		{`"long"`, "prompt: has 600 tokens"},
		{`["short", "long"]`, "prompt[1]: has 600 tokens"},
	} {
		for _, behaviour := range []string{"truncate", "error"} {
			a := s.complete(fmt.Sprintf(`"prompt": %s, "context_length_exceeded_behavior": %q, "max_tokens": 1`, c.prompt, behaviour))
			require.Equal(t, http.StatusBadRequest, a.status, "%s", a.body)
			refusal := a.json(t)["error"].(map[string]any)
			require.Contains(t, refusal["message"], c.message)
			require.Equal(t, "prompt", refusal["param"])
			require.Equal(t, "invalid_request_error", refusal["type"])
		}
	}
}

func TestADeploymentSaysThatItsReplicasWait(t *testing.T) {
	s := newStage(t, Limits{})
	a := s.call("POST", "/v1/accounts/acme/deployments?deploymentId=d1", "user", `{"baseModel": "accounts/default/models/anneal-base", "minReplicaCount": 2, "maxReplicaCount": 2}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	status := func() any { return s.call("GET", "/v1/accounts/acme/deployments/d1", "user", "").json(t)["status"] }
	waits := func(n int) map[string]any {
		return map[string]any{"code": "UNAVAILABLE", "message": fmt.Sprintf("%d of 2 replicas wait for a place on a node: it needs 100m CPU, 128 MiB on a node of pool inference that can complete, and there is no node: start an agent", n)}
	}
	require.Equal(t, waits(2), status())
	const name = "accounts/acme/deployments/d1"
	s.serveReplica(name)
	require.Equal(t, waits(1), status())
	s.serveReplica(name)
	require.Equal(t, map[string]any{"code": "OK", "message": ""}, status())
	require.Equal(t, 200, s.call("DELETE", "/v1/accounts/acme/deployments/d1", "user", "").status)
	require.Equal(t, map[string]any{"code": "OK", "message": ""}, status(), "what is being deleted waits for nothing")
}

func TestADeploymentSaysWhichAcceleratorsItWaitsFor(t *testing.T) {
	s := newStage(t, Limits{})
	a := s.call("POST", "/v1/accounts/acme/deployments?deploymentId=d1", "user", `{"baseModel": "accounts/default/models/anneal-base", "minReplicaCount": 1,
		"acceleratorType": "VENDOR_A_H100_80GB", "acceleratorCount": 2}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Contains(t, a.json(t)["status"].(map[string]any)["message"], "1 of 1 replicas wait for a place on a node: it needs 100m CPU, 128 MiB, 2 x VENDOR_A_H100_80GB on")
}

func TestAnUploadIsAnOrigin(t *testing.T) {
	s := newStage(t, Limits{})
	one := "/v1/accounts/acme/datasets/d"
	require.NotContains(t, s.call("POST", "/v1/accounts/acme/datasets", "user", `{"datasetId": "d"}`).json(t), "userUploaded")
	a := s.upload(one+":upload", "user", "file", "rows.jsonl", strings.NewReader(strings.Repeat(`{"text": "a"}`+"\n", 3)))
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Equal(t, map[string]any{}, a.json(t)["userUploaded"])
	a = s.call("PATCH", one, "user", `{"name": "accounts/acme/datasets/d", "splitted": {"sourceDatasetId": "s"}}`)
	require.Equal(t, 400, a.status, "it is not there: %s", a.body)
	s.makeDataset("s")
	a = s.call("PATCH", one, "user", `{"name": "accounts/acme/datasets/d", "splitted": {"sourceDatasetId": "s"}}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	require.NotContains(t, a.json(t), "userUploaded")
}

// The inference role reads models, and nobody's history.
func TestTheInferenceRoleSeesNoHistory(t *testing.T) {
	s := newStage(t, Limits{})
	s.do(register("accounts/acme/models/m", false))
	require.Equal(t, 200, s.call("GET", "/v1/accounts/acme/models/m", "inference", "").status)
	require.Equal(t, 200, s.call("GET", "/v1/accounts/acme/models/m/events", "user", "").status)
	require.Equal(t, 403, s.call("GET", "/v1/accounts/acme/models/m/events", "inference", "").status)
}

// What a dataset is said to come from, and what a job names, must be there.
func TestNamedOriginsMustBeThere(t *testing.T) {
	s := newStage(t, Limits{})
	s.makeDataset("rows")
	s.makeDataset("eval")
	s.ok("POST", acme+"/supervisedFineTuningJobs?supervisedFineTuningJobId=j", `{"dataset": "accounts/acme/datasets/rows"}`)
	for field, line := range map[string]struct{ there, gone string }{
		"transformed.sourceDatasetId": {`{"transformed": {"sourceDatasetId": "rows", "filter": ""}}`, `{"transformed": {"sourceDatasetId": "none", "filter": ""}}`},
		"splitted.sourceDatasetId":    {`{"splitted": {"sourceDatasetId": "accounts/acme/datasets/rows"}}`, `{"splitted": {"sourceDatasetId": "accounts/other/datasets/rows"}}`},
		"sourceJobName":               {`{"sourceJobName": "accounts/acme/supervisedFineTuningJobs/j"}`, `{"sourceJobName": "accounts/acme/supervisedFineTuningJobs/k"}`},
	} {
		a := s.call("POST", acme+"/datasets", "user", `{"dataset": `+line.gone+`}`)
		require.Equal(t, 400, a.status, "%s", a.body)
		require.Contains(t, a.json(t)["message"], "dataset."+field+": names no ")
		s.ok("POST", acme+"/datasets", `{"dataset": `+line.there+`}`)
		a = s.call("PATCH", acme+"/datasets/rows", "user", `{"name": "accounts/acme/datasets/rows", `+line.gone[1:])
		require.Equal(t, 400, a.status, "%s", a.body)
		require.Contains(t, a.json(t)["message"], field+": names no ")
	}
	for _, kind := range []string{"supervisedFineTuningJobs", "rlorTrainerJobs"} {
		a := s.call("POST", acme+"/"+kind, "user", `{"dataset": "accounts/acme/datasets/rows", "evaluationDataset": "accounts/acme/datasets/none"}`)
		require.Equal(t, 400, a.status, "%s", a.body)
		require.Contains(t, a.json(t)["message"], "evaluationDataset: names no dataset of accounts/acme")
		s.ok("POST", acme+"/"+kind, `{"dataset": "accounts/acme/datasets/rows", "evaluationDataset": "accounts/acme/datasets/eval"}`)
	}
}
