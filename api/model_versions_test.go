package api

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
)

// TestModelVersionsAreSetByServer checks that a request cannot set activeModelVersion and
// targetModelVersion, and that they follow what replicas load and serve.
func TestModelVersionsAreSetByServer(t *testing.T) {
	s := newHarness(t, request.Limits{})
	const path, other = acme + "/deployments/d", `"activeModelVersion": "other", "targetModelVersion": "other"`
	shows := func(a response, active, target any) {
		t.Helper()
		require.Equal(t, 200, a.status, "%s", a.body)
		d := a.json(t)
		require.Equal(t, []any{active, target}, []any{d["activeModelVersion"], d["targetModelVersion"]})
	}
	get := func() response { return s.call("GET", path, "user", "") }
	created := s.call("POST", acme+"/deployments?deploymentId=d", "user",
		`{"baseModel": "accounts/default/models/anneal-base", "minReplicaCount": 1, "enableHotLoad": true, `+other+`}`)
	const base, job = "accounts/default/models/anneal-base", "accounts/acme/rlorTrainerJobs/j"
	shows(created, nil, base)
	const name = domain.Name("accounts/acme/deployments/d")
	s.serve(name)
	shows(get(), base, base)
	before := s.world.Position()
	shows(s.call("PATCH", path, "user", `{`+other+`}`), base, base)
	require.Equal(t, before, s.world.Position(), "no rollout begins")
	for _, field := range []string{"activeModelVersion", "targetModelVersion"} {
		a := s.call("PATCH", path+"?updateMask="+field, "user", `{`+other+`}`)
		require.Equal(t, 400, a.status, "%s", a.body)
		require.Contains(t, a.json(t)["message"], "can only be set by the server")
	}
	s.deployment(name, domain.OfferWeights{HotWeights: hotWeights(2)})
	shows(get(), base, job+"@1.2")
	s.deployment(name, domain.SwapWeights{ID: hotWeights(2).ID(), Replicas: []string{"r1"}})
	shows(get(), job+"@1.2", job+"@1.2")
	finished := hotWeights(3)
	finished.Model = "accounts/acme/models/tuned"
	s.swap(name, finished)
	shows(get(), "accounts/acme/models/tuned", "accounts/acme/models/tuned")
	s.deployment(name, domain.DeleteDeployment{IgnoreChecks: true})
	shows(get(), "accounts/acme/models/tuned", nil)
}
