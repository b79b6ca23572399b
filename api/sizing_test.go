package api

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/projections"
)

// large registers a model of 70 billion parameters that everybody may use, and
// an addon to it.
func (s *stage) large() {
	s.Helper()
	const name = "accounts/default/models/large"
	s.do(domain.Intend(domain.Models, name, domain.Command[domain.Model](domain.RegisterModel{ModelSpec: domain.ModelSpec{Kind: domain.BaseModel, Public: true},
		ModelFacts: domain.ModelFacts{ModelType: "llama", ParameterCount: 70e9, ContextLength: 8192}, Files: domain.Files{Folder: "models/default/large/"}})))
	s.do(domain.Intend(domain.Models, "accounts/acme/models/addon", domain.Command[domain.Model](domain.RegisterModel{
		ModelSpec: domain.ModelSpec{Kind: domain.PEFTAddon, BaseModel: name}, Files: domain.Files{Folder: "models/acme/addon/"}})))
}

func TestReplicasAreSized(t *testing.T) {
	s := newStage(t, Limits{})
	s.large()
	const deployments, shapes = "/v1/accounts/acme/deployments", "/v1/accounts/acme/deploymentShapes"
	for _, line := range []struct {
		name, method, path, body string
		count                    float64 // 0: refused
		says                     string
	}{
		{name: "the default", method: "POST", path: deployments + "?deploymentId=large", body: `{"baseModel": "accounts/default/models/large", "acceleratorType": "VENDOR_A_H100_80GB"}`, count: 4},
		{name: "the default of an addon is its base's", method: "POST", path: deployments, body: `{"baseModel": "accounts/acme/models/addon", "acceleratorType": "VENDOR_A_H100_80GB", "precision": "FP8"}`, count: 2},
		{name: "of a small model", method: "POST", path: deployments, body: `{"baseModel": "accounts/default/models/anneal-base", "acceleratorType": "VENDOR_A_L4_24GB"}`, count: 1},
		{name: "too few", method: "POST", path: deployments, body: `{"baseModel": "accounts/default/models/large", "acceleratorType": "VENDOR_A_H100_80GB", "acceleratorCount": 2, "maxContextLength": 9000}`,
			says: "maxContextLength: must be at most 8192, the model's context window; 0 stands for that; acceleratorCount: is 2, but the model takes about"},
		{name: "too few, and nobody minds", method: "POST", path: deployments, body: `{"baseModel": "accounts/default/models/large", "acceleratorType": "VENDOR_A_H100_80GB", "acceleratorCount": 2, "disableDeploymentSizeValidation": true}`, count: 2},
		{name: "an update to too few", method: "PATCH", path: deployments + "/large", body: `{"acceleratorCount": 1}`, says: "acceleratorCount: is 1, but the model takes about"},
		{name: "an update back to the default", method: "PATCH", path: deployments + "/large?updateMask=acceleratorCount,acceleratorType", body: `{"acceleratorType": "VENDOR_A_H200_141GB"}`, count: 2},
		{name: "an update that has nothing to do with it", method: "PATCH", path: deployments + "/large", body: `{"displayName": "Large"}`, count: 2},
		{name: "a shape's default", method: "POST", path: shapes, body: `{"deploymentShapeId": "large", "deploymentShape": {"baseModel": "accounts/default/models/large"}}`, count: 4},
		{name: "a shape of too few", method: "POST", path: shapes, body: `{"deploymentShape": {"baseModel": "accounts/default/models/large", "acceleratorCount": 1}}`, says: "deploymentShape.acceleratorCount: is 1, but"},
		{name: "a shape on what cannot", method: "POST", path: shapes, body: `{"deploymentShape": {"baseModel": "accounts/default/models/large", "precision": "FP8"}}`, says: "deploymentShape.precision: VENDOR_A_A100_80GB does not compute in FP8"},
		{name: "a shape's update to too few", method: "PATCH", path: shapes + "/large", body: `{"acceleratorCount": 1}`, says: "acceleratorCount: is 1, but"},
		{name: "a template", method: "POST", path: deployments, body: `{"baseModel": "accounts/default/models/anneal-base", "deploymentTemplate": "fast", "draftTokenCount": -2}`,
			says: "deploymentTemplate: is for accounts of type ENTERPRISE: leave it out, and give the settings themselves; draftTokenCount: must not be negative"},
		{name: "a count alone", method: "POST", path: deployments, body: `{"baseModel": "accounts/default/models/anneal-base", "acceleratorCount": 2}`, count: 2},
	} {
		got := s.call(line.method, line.path, "admin", line.body)
		if line.says != "" {
			require.Equal(t, 400, got.status, "%s: %s", line.name, got.body)
			require.Contains(t, got.json(t)["message"], line.says, line.name)
			continue
		}
		require.Equal(t, 200, got.status, "%s: %s", line.name, got.body)
		require.Equal(t, line.count, got.json(t)["acceleratorCount"], line.name)
	}
	s.do(domain.Intend(domain.Accounts, "accounts/acme", domain.Command[domain.Account](domain.UpdateAccount{AccountSpec: domain.AccountSpec{AccountType: domain.Enterprise}})))
	got := s.call("POST", deployments, "user", `{"baseModel": "accounts/default/models/anneal-base", "deploymentTemplate": "fast", "pricingPlanId": "the plan of March"}`)
	require.Equal(t, 200, got.status, "%s", got.body)
}

func TestDeprecatedSettingsAreWarnedOf(t *testing.T) {
	s := newStage(t, Limits{})
	got := s.call("POST", "/v1/accounts/acme/deploymentShapes", "admin", `{"deploymentShape": {"baseModel": "accounts/default/models/anneal-base",
		"enableAddons": true, "draftModel": "accounts/default/models/anneal-base", "disableSpeculativeDecoding": true}}`)
	require.Equal(t, 200, got.status, "%s", got.body)
	require.Equal(t, []string{"enableAddons is deprecated in a deployment shape: set it on the deployment", "draftModel is deprecated in a deployment shape: set it on the deployment",
		"disableSpeculativeDecoding is deprecated in a deployment shape: it has no effect"}, got.header.Values("anneal-warning"))
	got = s.call("POST", "/v1/accounts/acme/deployments", "user", `{"baseModel": "accounts/default/models/anneal-base", "directRouteApiKeys": ["k"], "directRouteType": "INTERNET"}`)
	require.Equal(t, 200, got.status, "%s", got.body)
	require.Equal(t, []string{"directRouteType: kept, but this server has no domain for direct routes: its operator starts it with --direct-domain"}, got.header.Values("anneal-warning"))
}

// A server may set the time that jobs have, and the shortest idle time.
func TestServerSettings(t *testing.T) {
	s := newStage(t, Limits{JobTime: time.Hour, ScaleToZero: time.Second})
	made := s.call("POST", "/v1/accounts/acme/datasets", "user", `{"dataset": {}, "datasetId": "rows"}`)
	require.Equal(t, 200, made.status, "%s", made.body)
	const row = `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}` + "\n"
	uploaded := s.upload("/v1/accounts/acme/datasets/rows:upload", "user", "file", "rows.jsonl", strings.NewReader(strings.Repeat(row, 9)))
	require.Equal(t, 200, uploaded.status, "%s", uploaded.body)
	got := s.call("POST", "/v1/accounts/acme/supervisedFineTuningJobs?supervisedFineTuningJobId=j1", "user", `{"dataset": "accounts/acme/datasets/rows"}`)
	require.Equal(t, 200, got.status, "%s", got.body)
	job, ok := projections.TableOf(s.world.View(), domain.SupervisedJobs).Get("accounts/acme/supervisedFineTuningJobs/j1")
	require.True(t, ok)
	require.WithinDuration(t, job.CreateTime.Add(time.Hour), *job.State.Deadline, time.Minute)
	for window, status := range map[string]int{"1s": 200, "0.5s": 400} {
		got := s.call("POST", "/v1/accounts/acme/deployments", "user", `{"baseModel": "accounts/default/models/anneal-base", "autoscalingPolicy": {"scaleToZeroWindow": "`+window+`"}}`)
		require.Equal(t, status, got.status, "%s", got.body)
	}
}
