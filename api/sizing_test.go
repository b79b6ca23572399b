package api

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// large registers a public model with 70 billion parameters, and an addon of that model.
func (s *harness) large() {
	s.Helper()
	const name = "accounts/default/models/large"
	s.do(domain.Intend(domain.Models, name,
		domain.RegisterModel{ModelSpec: domain.ModelSpec{Kind: domain.BaseModel, Public: true},
			ModelMetadata: domain.ModelMetadata{ModelType: "llama", ParameterCount: 70e9, ContextLength: 8192},
			Files:         domain.Files{Prefix: "models/default/large/"}}))
	s.do(domain.Intend(domain.Models, "accounts/acme/models/addon", domain.RegisterModel{ModelSpec: domain.ModelSpec{
		Kind: domain.PEFTAddon, BaseModel: name}, Files: domain.Files{Prefix: "models/acme/addon/"}}))
}

func TestReplicaSizing(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.large()
	const deployments, shapes = "/v1/accounts/acme/deployments", "/v1/accounts/acme/deploymentShapes"
	for _, line := range []struct {
		name, method, path, body string
		count                    float64 // accelerators per replica; 0 when the create is rejected
		message                  string
	}{
		{name: "the default", method: "POST", path: deployments + "?deploymentId=large",
			body: `{"baseModel": "accounts/default/models/large", "acceleratorType": "VENDOR_A_H100_80GB"}`, count: 4},
		{name: "the default of an addon is its base's", method: "POST", path: deployments,
			body:  `{"baseModel": "accounts/acme/models/addon", "acceleratorType": "VENDOR_A_H100_80GB", "precision": "FP8"}`,
			count: 2},
		{name: "of a small model", method: "POST", path: deployments,
			body: `{"baseModel": "accounts/default/models/anneal-base", "acceleratorType": "VENDOR_A_L4_24GB"}`, count: 1},
		{name: "too few", method: "POST", path: deployments,
			body: `{"baseModel": "accounts/default/models/large", "acceleratorType": "VENDOR_A_H100_80GB", ` +
				`"acceleratorCount": 2, "maxContextLength": 9000}`,
			message: "maxContextLength: is 9000, but must be at most 8192, the model's context length; 0 stands for that " +
				"length; acceleratorCount: is 2, but the model needs about"},
		{name: "too few, with validation disabled", method: "POST", path: deployments,
			body: `{"baseModel": "accounts/default/models/large", "acceleratorType": "VENDOR_A_H100_80GB", ` +
				`"acceleratorCount": 2, "disableDeploymentSizeValidation": true}`, count: 2},
		{name: "an update to too few", method: "PATCH", path: deployments + "/large", body: `{"acceleratorCount": 1}`,
			message: "acceleratorCount: is 1, but the model needs about"},
		{name: "an update back to the default", method: "PATCH",
			path: deployments + "/large?updateMask=acceleratorCount,acceleratorType",
			body: `{"acceleratorType": "VENDOR_A_H200_141GB"}`, count: 2},
		{name: "an unrelated update", method: "PATCH", path: deployments + "/large",
			body: `{"displayName": "Large"}`, count: 2},
		{name: "a shape's default", method: "POST", path: shapes,
			body: `{"deploymentShapeId": "large", "deploymentShape": {"baseModel": "accounts/default/models/large"}}`, count: 4},
		{name: "a shape of too few", method: "POST", path: shapes,
			body:    `{"deploymentShape": {"baseModel": "accounts/default/models/large", "acceleratorCount": 1}}`,
			message: "deploymentShape.acceleratorCount: is 1, but"},
		{name: "a shape on what cannot", method: "POST", path: shapes,
			body:    `{"deploymentShape": {"baseModel": "accounts/default/models/large", "precision": "FP8"}}`,
			message: "deploymentShape.precision: VENDOR_A_A100_80GB does not compute in FP8"},
		{name: "a shape's update to too few", method: "PATCH", path: shapes + "/large", body: `{"acceleratorCount": 1}`,
			message: "acceleratorCount: is 1, but"},
		{name: "a template", method: "POST", path: deployments,
			body: `{"baseModel": "accounts/default/models/anneal-base", "deploymentTemplate": "fast", "draftTokenCount": -2}`,
			message: "deploymentTemplate: is only for accounts of type ENTERPRISE: leave it out, and set the fields of the " +
				"deployment directly; " +
				"draftTokenCount: must not be negative"},
		{name: "a count alone", method: "POST", path: deployments,
			body: `{"baseModel": "accounts/default/models/anneal-base", "acceleratorCount": 2}`, count: 2},
	} {
		got := s.call(line.method, line.path, "admin", line.body)
		if line.message != "" {
			require.Equal(t, 400, got.status, "%s: %s", line.name, got.body)
			require.Contains(t, got.json(t)["message"], line.message, line.name)
			continue
		}
		require.Equal(t, 200, got.status, "%s: %s", line.name, got.body)
		require.Equal(t, line.count, got.json(t)["acceleratorCount"], line.name)
	}
	s.do(domain.Intend(domain.Accounts, "accounts/acme", domain.UpdateAccount{AccountSpec: domain.AccountSpec{
		AccountType: domain.Enterprise}}))
	create := func(more string) response {
		return s.call("POST", deployments, "user", `{"baseModel": "accounts/default/models/anneal-base", `+
			`"deploymentTemplate": "fast", "pricingPlanId": "the plan of March"`+more+`}`)
	}
	got := create("")
	require.Equal(t, 400, got.status)
	require.Contains(t, got.json(t)["message"],
		`deploymentTemplate: "fast" is not a deployment template of this installation`)
	operator := func(method, path, body string) response {
		a := s.call(method, path, "operator", body)
		require.Equal(t, 200, a.status, "%s", a.body)
		return a
	}
	const templates = "/v1/accounts/default/deploymentShapes"
	operator("POST", templates, `{"deploymentShapeId": "fast", "deploymentShape": {"baseModel": `+
		`"accounts/default/models/anneal-base", "ngramSpeculationLength": 3, "draftTokenCount": 5}}`)
	require.Equal(t, 400, create("").status, "the version is neither validated nor public")
	version := operator("GET", templates+"/fast/versions",
		"").json(t)["deploymentShapeVersions"].([]any)[0].(map[string]any)
	operator("PATCH", "/v1/"+version["name"].(string), `{"validated": true, "public": true}`)
	got = create("")
	require.Equal(t, 200, got.status, "%s", got.body)
	made := got.json(t)
	require.Equal(t, []any{"fast", version["name"], 3.0, 5.0}, []any{made["deploymentTemplate"], made["deploymentShape"],
		made["ngramSpeculationLength"], made["draftTokenCount"]})
	require.Equal(t, 200, create(`, "deploymentShape": "`+version["name"].(string)+`"`).status)
	require.Equal(t, 400, create(`, "deploymentShape": "accounts/acme/deploymentShapes/large"`).status)
	changed := s.call("PATCH", "/v1/"+made["name"].(string), "user", `{"deploymentTemplate": "slow"}`)
	require.Equal(t, 400, changed.status)
	require.Contains(t, changed.json(t)["message"], "deploymentTemplate: cannot be changed after creation")
}

func TestDeprecationWarnings(t *testing.T) {
	s := newHarness(t, request.Limits{})
	got := s.call("POST", "/v1/accounts/acme/deploymentShapes", "admin",
		`{"deploymentShape": {"baseModel": "accounts/default/models/anneal-base",
		"enableAddons": true, "draftModel": "accounts/default/models/anneal-base", "disableSpeculativeDecoding": true}}`)
	require.Equal(t, 200, got.status, "%s", got.body)
	require.Equal(t, []string{"enableAddons of a deployment shape is deprecated: set it in the deployment",
		"draftModel of a deployment shape is deprecated: set it in the deployment",
		"disableSpeculativeDecoding: accepted, but has no effect: it is deprecated: create the deployment with the " +
			"parameter disableSpeculativeDecoding"},
		got.header.Values("anneal-warning"))
	got = s.call("POST", "/v1/accounts/acme/deployments", "user",
		`{"baseModel": "accounts/default/models/anneal-base", "directRouteApiKeys": ["k"], "directRouteType": "INTERNET"}`)
	require.Equal(t, 200, got.status, "%s", got.body)
	require.Equal(t, []string{
		"directRouteType: accepted, but has no effect on a server without a domain for direct routes: the operator " +
			"must start the server with --direct-domain to have direct routes"}, got.header.Values("anneal-warning"))
}

// TestServerSettings checks that the limits JobTime and ScaleToZero of a server apply.
func TestServerSettings(t *testing.T) {
	s := newHarness(t, request.Limits{JobTime: time.Hour, ScaleToZero: time.Second})
	made := s.call("POST", "/v1/accounts/acme/datasets", "user", `{"dataset": {}, "datasetId": "rows"}`)
	require.Equal(t, 200, made.status, "%s", made.body)
	const row = `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}` + "\n"
	uploaded := s.upload("/v1/accounts/acme/datasets/rows:upload", "user", "file", "rows.jsonl",
		strings.NewReader(strings.Repeat(row, 9)))
	require.Equal(t, 200, uploaded.status, "%s", uploaded.body)
	got := s.call("POST", "/v1/accounts/acme/supervisedFineTuningJobs?supervisedFineTuningJobId=j1", "user",
		`{"dataset": "accounts/acme/datasets/rows"}`)
	require.Equal(t, 200, got.status, "%s", got.body)
	job, ok := projections.TableOf(s.world.View(), domain.SupervisedJobs).Get("accounts/acme/supervisedFineTuningJobs/j1")
	require.True(t, ok)
	require.WithinDuration(t, job.CreateTime.Add(time.Hour), *job.State.Deadline, time.Minute)
	for window, status := range map[string]int{"1s": 200, "0.5s": 400} {
		got := s.call("POST", "/v1/accounts/acme/deployments", "user",
			`{"baseModel": "accounts/default/models/anneal-base", "autoscalingPolicy": {"scaleToZeroWindow": "`+window+`"}}`)
		require.Equal(t, status, got.status, "%s", got.body)
	}
}
