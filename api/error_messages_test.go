package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/engines"
)

func TestAudioErrorsHaveInferenceFormat(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for _, path := range []string{"/v1/audio/nothing", "/inference/v1/audio/nothing"} {
		a := s.call("GET", path, "inference", "")
		require.Equal(t, http.StatusNotFound, a.status)
		require.Contains(t, a.json(t), "error")
	}
}

// TestMethodNotAllowed checks that the error for a method that a path does not allow lists the
// methods of the path. A custom verb is part of the path.
func TestMethodNotAllowed(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for _, one := range []struct{ method, path, allow string }{
		{"PUT", "/v1/accounts/acme/models/one", "GET, HEAD, PATCH, DELETE, OPTIONS"},
		{"GET", "/v1/accounts/acme/models/one:prepare", "POST, OPTIONS"},
		{"HEAD", "/v1/accounts/acme/models/one:prepare", "POST, OPTIONS"},
		{"DELETE", "/v1/accounts/acme/datasets/one:preview", "GET, HEAD, OPTIONS"},
		{"POST", "/v1/accounts/acme/deployments/one:scale", "PATCH, OPTIONS"},
		{"GET", "/inference/v1/chat/completions", "POST, OPTIONS"},
		{"POST", "/healthz", "GET, HEAD, OPTIONS"},
	} {
		a := s.call(one.method, one.path, "admin", "")
		require.Equal(t, http.StatusMethodNotAllowed, a.status, "%s %s: %s", one.method, one.path, a.body)
		require.Equal(t, one.allow, a.header.Get("Allow"), "%s %s", one.method, one.path)
		if one.method != http.MethodHead {
			require.Contains(t, string(a.body), "use one of "+one.allow)
		}
	}
	for _, method := range []string{"GET", "POST", "DELETE"} {
		a := s.call(method, "/v1/accounts/acme/models/one:fly", "user", "")
		require.Equal(t, http.StatusNotFound, a.status, "%s", a.body)
		require.Contains(t, a.json(t)["message"], method+` ":fly"`)
		require.Empty(t, a.header.Get("Allow"))
	}
}

// TestPromptErrorsNameFields checks that an engine's error about a prompt refers to the fields of
// the request.
func TestPromptErrorsNameFields(t *testing.T) {
	s := servingHarness(t, 1)
	s.replicas.respond = func(_ context.Context, _ domain.Replica, req engines.CompletionRequest,
		_ func(engines.Chunk) error) (engines.Usage, error) {
		switch {
		case strings.HasPrefix(req.Prompt, "long"):
			return engines.Usage{}, domain.Errorf(domain.InvalidArgument,
				"prompt: has 600 tokens and fills the model's window of 512; shorten it")
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
			a := s.complete(fmt.Sprintf(`"prompt": %s, "context_length_exceeded_behavior": %q, "max_tokens": 1`, c.prompt,
				behaviour))
			require.Equal(t, http.StatusBadRequest, a.status, "%s", a.body)
			body := a.json(t)["error"].(map[string]any)
			require.Contains(t, body["message"], c.message)
			require.Equal(t, "prompt", body["param"])
			require.Equal(t, "invalid_request_error", body["type"])
		}
	}
}

func TestDeploymentReportsWaitingReplicas(t *testing.T) {
	s := newHarness(t, request.Limits{})
	a := s.call("POST", "/v1/accounts/acme/deployments?deploymentId=d1", "user",
		`{"baseModel": "accounts/default/models/anneal-base", "minReplicaCount": 2, "maxReplicaCount": 2}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	status := func() any {
		shown := s.call("GET", "/v1/accounts/acme/deployments/d1", "user", "").json(t)["status"].(map[string]any)
		shown["message"], _, _ = strings.Cut(shown["message"].(string), "; waiting since ") // see TestWaitingDeployments
		return shown
	}
	waits := func(n int) map[string]any {
		return map[string]any{"code": "UNAVAILABLE",
			"message": fmt.Sprintf("%d of 2 replicas are waiting for a node: a replica needs 100m CPU, 128 MiB, 1 x "+
				"VENDOR_A_A100_80GB on a node of "+
				"pool inference that can complete, but no node is registered: start an agent", n)}
	}
	require.Equal(t, waits(2), status())
	const name = "accounts/acme/deployments/d1"
	s.serveReplica(name)
	require.Equal(t, waits(1), status())
	s.serveReplica(name)
	require.Equal(t, map[string]any{"code": "OK", "message": ""}, status())
	require.Equal(t, 200, s.call("DELETE", "/v1/accounts/acme/deployments/d1", "user", "").status)
	require.Equal(t, map[string]any{"code": "OK", "message": ""}, status(), "a deployment in deletion waits for nothing")
}

func TestDeploymentReportsMissingAccelerators(t *testing.T) {
	s := newHarness(t, request.Limits{})
	a := s.call("POST", "/v1/accounts/acme/deployments?deploymentId=d1", "user",
		`{"baseModel": "accounts/default/models/anneal-base", "minReplicaCount": 1,
		"acceleratorType": "VENDOR_A_H100_80GB", "acceleratorCount": 2}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Contains(t, a.json(t)["status"].(map[string]any)["message"],
		"1 of 1 replicas are waiting for a node: a replica needs 100m CPU, 128 MiB, 2 x VENDOR_A_H100_80GB on")
}

func TestUploadIsOrigin(t *testing.T) {
	s := newHarness(t, request.Limits{})
	one := "/v1/accounts/acme/datasets/d"
	require.NotContains(t, s.call("POST", "/v1/accounts/acme/datasets", "user", `{"datasetId": "d"}`).json(t),
		"userUploaded")
	a := s.upload(one+":upload", "user", "file", "rows.jsonl", strings.NewReader(strings.Repeat(`{"text": "a"}`+"\n", 3)))
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Equal(t, map[string]any{}, a.json(t)["userUploaded"])
	a = s.call("PATCH", one, "user", `{"name": "accounts/acme/datasets/d", "splitted": {"sourceDatasetId": "s"}}`)
	require.Equal(t, 400, a.status, "absent: %s", a.body)
	s.makeDataset("s")
	a = s.call("PATCH", one, "user", `{"name": "accounts/acme/datasets/d", "splitted": {"sourceDatasetId": "s"}}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	require.NotContains(t, a.json(t), "userUploaded")
}

// TestInferenceRoleReadsNoEvents checks that the inference role reads models, but no events.
func TestInferenceRoleReadsNoEvents(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.do(register("accounts/acme/models/m", false))
	require.Equal(t, 200, s.call("GET", "/v1/accounts/acme/models/m", "inference", "").status)
	require.Equal(t, 200, s.call("GET", "/v1/accounts/acme/models/m/events", "user", "").status)
	require.Equal(t, 403, s.call("GET", "/v1/accounts/acme/models/m/events", "inference", "").status)
}

// TestOriginsMustExist checks that a dataset whose source dataset does not exist is rejected, and a
// job whose evaluationDataset does not exist.
func TestOriginsMustExist(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.makeDataset("rows")
	s.makeDataset("eval")
	s.makeDataset("filled")
	uploaded := s.upload(acme+"/datasets/filled:upload", "user", "file", "rows.jsonl", strings.NewReader(rowsOfThree))
	require.Equal(t, 200, uploaded.status, "%s", uploaded.body)
	s.ok("POST", acme+"/supervisedFineTuningJobs?supervisedFineTuningJobId=j",
		`{"dataset": "accounts/acme/datasets/rows"}`)
	for field, line := range map[string]struct{ there, gone string }{
		"transformed.sourceDatasetId": {`{"transformed": {"sourceDatasetId": "filled", "filter": ""}}`,
			`{"transformed": {"sourceDatasetId": "none", "filter": ""}}`},
		"splitted.sourceDatasetId": {`{"splitted": {"sourceDatasetId": "accounts/acme/datasets/filled", "fraction": 0.5}}`,
			`{"splitted": {"sourceDatasetId": "accounts/other/datasets/rows", "fraction": 0.5}}`},
		"sourceJobName": {`{"sourceJobName": "accounts/acme/supervisedFineTuningJobs/j"}`,
			`{"sourceJobName": "accounts/acme/supervisedFineTuningJobs/k"}`},
	} {
		a := s.call("POST", acme+"/datasets", "user", `{"dataset": `+line.gone+`}`)
		require.Equal(t, 400, a.status, "%s", a.body)
		require.Regexp(t, "dataset[.]"+field+`: "[^"]+" is not a (dataset|job) of accounts/acme: `, a.json(t)["message"])
		s.ok("POST", acme+"/datasets", `{"dataset": `+line.there+`}`)
		a = s.call("PATCH", acme+"/datasets/rows", "user", `{"name": "accounts/acme/datasets/rows", `+line.gone[1:])
		require.Equal(t, 400, a.status, "%s", a.body)
		require.Regexp(t, field+`: "[^"]+" is not a (dataset|job) of accounts/acme: `, a.json(t)["message"])
	}
	for _, kind := range []string{"supervisedFineTuningJobs", "rlorTrainerJobs"} {
		a := s.call("POST", acme+"/"+kind, "user",
			`{"dataset": "accounts/acme/datasets/rows", "evaluationDataset": "accounts/acme/datasets/none"}`)
		require.Equal(t, 400, a.status, "%s", a.body)
		require.Contains(t, a.json(t)["message"],
			"evaluationDataset: accounts/acme/datasets/none is not a dataset of accounts/acme")
		s.ok("POST", acme+"/"+kind,
			`{"dataset": "accounts/acme/datasets/rows", "evaluationDataset": "accounts/acme/datasets/eval"}`)
	}
}
