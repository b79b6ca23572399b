package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
)

// TestSuspendedAccount checks that the keys of a suspended account can read and release resources,
// but not change anything else, and that no request can start work in the account, not even a
// request of the operator.
func TestSuspendedAccount(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.createTargets()
	s.deploy("d2", 1)
	s.deploy("gone", 0)
	s.deployment("accounts/acme/deployments/gone", domain.DeleteDeployment{IgnoreChecks: true})
	s.deployment("accounts/acme/deployments/gone", domain.FinishDeletion{Keep: domain.RecentUse})
	failed := domain.Name("accounts/acme/supervisedFineTuningJobs/failed")
	require.Equal(t, 200, s.call("POST", acme+"/supervisedFineTuningJobs?supervisedFineTuningJobId=failed", "user",
		`{"dataset": "accounts/acme/datasets/d"}`).status)
	s.do(domain.IntendJob(failed, domain.FailJob{Status: domain.Status{Code: "INTERNAL", Message: "x"}}))
	require.Equal(t, 200, s.call("POST", acme+":suspend", "operator", `{"suspendState": "CREDIT_DEPLETED"}`).status)

	for _, c := range []struct{ method, path, body string }{
		{"POST", "/supervisedFineTuningJobs", `{"dataset": "accounts/acme/datasets/d"}`},
		{"POST", "/dpoJobs", `{"dataset": "accounts/acme/datasets/d"}`},
		{"POST", "/reinforcementFineTuningJobs",
			`{"dataset": "accounts/acme/datasets/d", "evaluator": "accounts/acme/evaluators/e"}`},
		{"POST", "/rlorTrainerJobs", `{"dataset": "accounts/acme/datasets/d"}`},
		{"POST", "/supervisedFineTuningJobs/failed:resume", ``},
		{"POST", "/deployments", `{"baseModel": "accounts/default/models/anneal-base"}`},
		{"PATCH", "/deployments/d1", `{"minReplicaCount": 2}`},
		{"PATCH", "/deployments/d1:scale", `{"replicaCount": 3}`},
		{"POST", "/deployments/gone:undelete", ``},
	} {
		for _, alias := range []string{"user", "operator"} {
			before := s.events()
			a := s.call(c.method, acme+c.path, alias, c.body)
			require.Equal(t, 400, a.status, "%s %s: %s", c.method, c.path, a.body)
			require.Equal(t, "ACCOUNT_SUSPENDED", reasonOf(t, a), "%s %s", c.method, c.path)
			require.Contains(t, a.json(t)["message"], "restores the account")
			require.Equal(t, before, s.events(), "%s %s recorded something", c.method, c.path)
		}
	}
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/datasets", `{"dataset": {}, "datasetId": "more"}`},
		{"PATCH", "/datasets/d", `{"name": "accounts/acme/datasets/d", "displayName": "x"}`},
		{"POST", "/datasets/d:getUploadEndpoint", `{"filenameToSize": {"a.jsonl": "10"}}`},
		{"POST", "/models", `{"modelId": "m", "model": {"baseModel": "accounts/default/models/anneal-base"}}`},
		{"POST", "/secrets", `{"name": "s", "keyName": "K", "value": "v"}`},
		{"PATCH", "/secrets/old", `{"value": "v"}`},
		{"POST", "/deploymentShapes",
			`{"deploymentShapeId": "s", "deploymentShape": {"baseModel": "accounts/default/models/anneal-base"}}`},
		{"POST", "/apiKeys", `{"apiKey": {"role": "user"}}`},
	} {
		before := s.events()
		a := s.call(c.method, acme+c.path, "admin", c.body)
		require.Equal(t, 400, a.status, "%s %s: %s", c.method, c.path, a.body)
		require.Equal(t, "ACCOUNT_SUSPENDED", reasonOf(t, a), "%s %s", c.method, c.path)
		require.Equal(t, before, s.events(), "%s %s recorded something", c.method, c.path)
		a = s.call(c.method, acme+c.path, "operator", c.body)
		require.Equal(t, 200, a.status, "%s %s: the operator may do this: %s", c.method, c.path, a.body)
	}
	for _, body := range []string{`"prompt": "a"`, `"prompt": "a", "stream": true`} {
		a := s.complete(body)
		require.Equal(t, http.StatusPreconditionFailed, a.status, "%s", a.body)
		require.Contains(t, string(a.body), `"code":"PRECONDITION_FAILED"`)
	}
	require.Empty(t, s.replicas.requestIDs())
	for _, c := range []struct{ method, path, body string }{
		{"GET", "", ``}, {"GET", "/datasets", ``}, {"GET", "/datasets/d", ``}, {"GET", "/deployments/d1", ``},
		{"GET", "/secrets", ``},
		{"GET", "/supervisedFineTuningJobs/j", ``}, {"GET", "/events", ``}, {"GET", "/quotas", ``}, {"GET", "/models", ``},
		{"POST", "/deploymentShapeVersions:match",
			`{"createDeploymentRequest": {"deployment": {"baseModel": "accounts/default/models/anneal-base"}}}`},
		{"POST", "/supervisedFineTuningJobs/j:cancel", ``},
		{"DELETE", "/secrets/s", ``},
		{"DELETE", "/supervisedFineTuningJobs/failed", ``},
		{"PATCH", "/deployments/d1:scale", `{"replicaCount": 1}`},
		{"DELETE", "/deployments/d2", ``},
	} {
		require.Equal(t, 200, s.call(c.method, acme+c.path, "admin", c.body).status, "%s %s", c.method, c.path)
	}
	require.Equal(t, 200, s.call("GET", "/inference/v1/models", "inference", "").status)
	require.Equal(t, 200, s.call("POST", "/v1/accounts/other/datasets", "other", `{"dataset": {}}`).status,
		"other accounts are not affected")

	require.Equal(t, 200, s.call("POST", acme+":restore", "operator", "").status)
	a := s.call("POST", acme+"/supervisedFineTuningJobs", "user", `{"dataset": "accounts/acme/datasets/d"}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	a = s.call("POST", "/inference/v1/completions", "inference",
		`{"model": "`+string(s.deploy("d3", 1))+`", "prompt": "a"}`)
	require.Equal(t, 200, a.status, "%s", a.body)
}
