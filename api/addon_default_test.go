package api

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
)

// loadAddon loads an addon into a deployment of acme through the API, and returns the response.
func (s *harness) loadAddon(id, model, deployment string, isDefault bool) response {
	return s.call(http.MethodPost, acme+"/deployedModels?deployedModelId="+id, "user", fmt.Sprintf(
		`{"model": "accounts/acme/models/%s", "deployment": "accounts/acme/deployments/%s", "default": %t}`, model,
		deployment, isDefault))
}

// defaults returns the IDs of the deployed models of acme that the API shows as the default.
func (s *harness) defaults() (ids []string) {
	s.Helper()
	list := s.ok(http.MethodGet, acme+"/deployedModels?filter=default%3Dtrue", "").json(s.TB)
	for _, item := range list["deployedModels"].([]any) {
		one := item.(map[string]any)
		require.Equal(s, true, one["default"])
		ids = append(ids, domain.Name(one["name"].(string)).ID())
	}
	return ids
}

// TestDefaultIsTakenInOneEvent checks that one event makes an addon the default and ends the
// default of the previous one, in a create and in an update, so that requests that name only the
// deployment never reach the base model in between.
func TestDefaultIsTakenInOneEvent(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for _, model := range []string{"one", "two"} {
		executeAction(s, []string{"addon", "accounts/acme/models/" + model})
	}
	s.deployForAddons("d")
	loaded := domain.MarkModelDeployed{}
	require.Equal(t, http.StatusOK, s.loadAddon("a", "one", "d", true).status)
	s.addon("accounts/acme/deployedModels/a", loaded)
	require.Equal(t, []string{"a"}, s.defaults())

	before := s.events()
	b := s.loadAddon("b", "two", "d", true)
	require.Equal(t, http.StatusOK, b.status, "%s", b.body)
	require.Equal(t, before+1, s.events(), "one event")
	require.Equal(t, true, b.json(t)["default"])
	require.Equal(t, []string{"b"}, s.defaults())
	s.addon("accounts/acme/deployedModels/b", loaded)

	answers := func(want string) {
		t.Helper()
		s.takeAddons()
		a := s.call(http.MethodPost, "/inference/v1/completions", "inference",
			`{"model": "accounts/acme/deployments/d", "prompt": "a b"}`)
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		got := s.takeAddons()
		require.Len(t, got, 1)
		require.Contains(t, got[0], want)
	}
	answers("deployedModels/b@")

	before = s.events()
	a := s.call(http.MethodPatch, acme+"/deployedModels/a", "user", `{"default": true}`)
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	require.Equal(t, true, a.json(t)["default"])
	require.Equal(t, before+1, s.events(), "one event")
	require.Equal(t, []string{"a"}, s.defaults())
	answers("deployedModels/a@")
	require.Equal(t, http.StatusOK,
		s.call(http.MethodPatch, acme+"/deployedModels/a", "user", `{"default": true}`).status)
	require.Equal(t, before+1, s.events(), "the addon is the default already")

	renamed := s.call(http.MethodPatch, acme+"/deployedModels/b", "user", `{"displayName": "B"}`)
	require.Equal(t, false, renamed.json(t)["default"], "another change does not take the default back")
	require.Equal(t, []string{"a"}, s.defaults())

	s.runPlans()
	for name, want := range map[domain.Name]bool{"accounts/acme/deployedModels/a": true,
		"accounts/acme/deployedModels/b": false} {
		row, _ := s.world.View().DeployedModels.Get(name)
		require.Equal(t, want, row.State.Default, "the scheduler records who lost the default")
	}
	require.Equal(t, http.StatusOK,
		s.call(http.MethodPatch, acme+"/deployedModels/a", "user", `{"default": false}`).status)
	require.Empty(t, s.defaults(), "the former default does not become the default again")
}

// TestDefaultDecidesBetweenDeployments checks that a request for the model of an addon that two
// deployments have loaded goes to the deployment whose default the addon is.
func TestDefaultDecidesBetweenDeployments(t *testing.T) {
	s := newHarness(t, request.Limits{})
	executeAction(s, []string{"addon", "accounts/acme/models/polite"})
	s.deployForAddons("first")
	s.serveReplica(s.deployForAddons("second")) // has more ready replicas
	for _, id := range []string{"first", "second"} {
		require.Equal(t, http.StatusOK, s.loadAddon("in-"+id, "polite", id, false).status)
		s.addon(domain.Name("accounts/acme/deployedModels/in-"+id), domain.MarkModelDeployed{})
	}
	for _, id := range []string{"first", "second", "first"} {
		for _, other := range []string{"first", "second"} {
			a := s.call(http.MethodPatch, acme+"/deployedModels/in-"+other, "user", fmt.Sprintf(`{"default": %t}`, id == other))
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		}
		a := s.call(http.MethodPost, "/inference/v1/completions", "inference",
			`{"model": "accounts/acme/models/polite", "prompt": "a b", "perf_metrics_in_response": true}`)
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		require.Equal(t, "accounts/acme/deployments/"+id, a.json(t)["perf_metrics"].(map[string]any)["deployment"])
	}
}

// TestUndeleteRestoresAddons checks that an undeleted deployment loads its addons again, the default
// included, and that those that had failed or were being unloaded are not restored.
func TestUndeleteRestoresAddons(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for _, model := range []string{"one", "two", "three", "four"} {
		executeAction(s, []string{"addon", "accounts/acme/models/" + model})
	}
	s.deployment("accounts/acme/deployments/d", domain.CreateDeployment{DeploymentSpec: domain.DeploymentSpec{
		BaseModel: publicBase, EnableAddons: true}})
	for i, model := range []string{"one", "two", "three", "four"} {
		a := s.loadAddon(model, model, "d", i == 1)
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	}
	s.addon("accounts/acme/deployedModels/three", domain.FailDeployedModel{Status: domain.Status{Code: "INTERNAL",
		Message: "broken"}})
	s.runPlans()
	s.addon("accounts/acme/deployedModels/four", domain.UndeployModel{Reason: "unloaded by its user"})

	states := func(query string) map[string]any {
		states := map[string]any{}
		for _, item := range s.ok(http.MethodGet, acme+"/deployedModels"+query, "").json(t)["deployedModels"].([]any) {
			one := item.(map[string]any)
			states[domain.Name(one["name"].(string)).ID()] = one["state"]
		}
		return states
	}
	remove := func(query string) {
		a := s.call(http.MethodDelete, acme+"/deployments/d"+query, "user", "")
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		s.runPlans()
	}
	remove("")
	require.Empty(t, states(""), "lists hide the addons of a deleted deployment")
	require.Equal(t, map[string]any{"one": "UNDEPLOYED", "two": "UNDEPLOYED"}, states("?showDeleted=true"))
	again := s.loadAddon("one", "one", "d", false)
	require.Equal(t, http.StatusConflict, again.status, "the ID stays reserved: %s", again.body)

	require.Equal(t, http.StatusOK, s.call(http.MethodPost, acme+"/deployments/d:undelete", "user", "{}").status)
	s.runPlans()
	require.Equal(t, map[string]any{"one": "DEPLOYED", "two": "DEPLOYED"}, states(""))
	require.Equal(t, []string{"two"}, s.defaults())

	remove("")
	require.Equal(t, http.StatusOK, s.call(http.MethodDelete, acme+"/deployedModels/one", "user", "").status)
	s.runPlans()
	require.Equal(t, map[string]any{"two": "UNDEPLOYED"}, states("?showDeleted=true"), "a user can give up an addon")
	remove("?hard=true")
	require.Empty(t, states("?showDeleted=true"), "nothing is left of a purged deployment")
}
