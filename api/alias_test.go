package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
)

const ear = domain.Name("accounts/acme/models/ear")

// deploySpeech creates a deployment of a speech model with one ready replica.
func (s *harness) deploySpeech(id string, aliases ...string) domain.Name {
	s.Helper()
	s.do(registerSpeech(ear))
	return s.deploy(id, 1, func(spec *domain.DeploymentSpec) {
		spec.BaseModel, spec.SpeechFormat, spec.Aliases = string(ear), domain.SpeechSimulated, aliases
	})
}

// TestAliasesOfEveryAccount checks that an alias that the operator sets for a deployment works with
// the keys of every account.
func TestAliasesOfEveryAccount(t *testing.T) {
	s := newHarness(t, request.Limits{})
	name := s.deploy("d1", 1)
	send := func(alias, model string) response {
		return s.call("POST", "/inference/v1/completions", alias,
			fmt.Sprintf(`{"model": %q, "prompt": "a b", "max_tokens": 2}`, model))
	}
	require.Equal(t, 404, send("other", "speech-v3").status)
	require.Contains(t, string(send("other", "speech-v3").body), "pocketsphinx-en-us")
	require.NotContains(t, string(send("other", "gpt").body), "pocketsphinx")

	refused := s.call("PATCH", "/v1/"+string(name), "admin", `{"aliases": ["smart"]}`)
	require.Equal(t, 400, refused.status)
	require.Contains(t, string(refused.body), "only the operator")
	require.Equal(t, 200, s.call("PATCH", "/v1/"+string(name), "operator", `{"aliases": ["smart"]}`).status)
	require.Equal(t, 200, s.call("PATCH", "/v1/"+string(name), "admin",
		`{"displayName": "D", "aliases": ["smart"]}`).status, "a user may send unchanged aliases")
	require.Equal(t, "a b ", textOf(t, send("other", "smart")))
	require.Contains(t, string(s.call("GET", "/inference/v1/models", "other", "").body), `"id":"smart"`)

	// An alias belongs to at most one live deployment.
	body := `{"baseModel": "accounts/default/models/anneal-base", "aliases": ["smart"]}`
	taken := s.call("POST", "/v1/accounts/acme/deployments?deploymentId=d2", "operator", body)
	require.Equal(t, 400, taken.status)
	require.Contains(t, string(taken.body), "smart is bound to "+string(name))
	require.Equal(t, 200, s.call("DELETE", "/v1/"+string(name)+"?ignoreChecks=true", "admin", "").status)
	require.Equal(t, 404, send("other", "smart").status, "the alias of a deleted deployment is free")
	for range 2 { // first the replica ends, then the deployment is DELETED
		for id := range mustRow(s, name).Replicas {
			s.deployment(name, domain.RemoveReplica{ID: id, Reason: "deleted"})
		}
	}
	s.deployment(name, domain.FinishDeletion{})
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/deployments?deploymentId=d2", "operator", body).status)
	back := s.call("POST", "/v1/"+string(name)+":undelete", "admin", "")
	require.Equal(t, 400, back.status)
	require.Contains(t, string(back.body), "cannot be undeleted: aliases: smart is bound to "+
		"accounts/acme/deployments/d2")
}

// TestListedModelsAreCallable checks that inference requests accept exactly the models that the
// list of models shows as deployed.
func TestListedModelsAreCallable(t *testing.T) {
	const base = "accounts/default/models/anneal-base"
	s := newHarness(t, request.Limits{})
	listed := func(key string) (deployed []string) {
		for _, one := range s.call("GET", "/inference/v1/models", key, "").json(t)["data"].([]any) {
			m := one.(map[string]any)
			id, answers := m["id"].(string), m["deployed"].(bool)
			response := s.call("POST", "/inference/v1/completions", key,
				fmt.Sprintf(`{"model": %q, "prompt": "a b", "max_tokens": 2}`, id))
			require.Equal(t, answers, response.status == 200, "%s asks %s: %s", key, id, response.body)
			if answers {
				deployed = append(deployed, id)
			}
			if id == "smart" {
				require.Equal(t, "accounts/acme/deployments/d1", m["deployment"])
			} else {
				require.NotContains(t, m, "deployment")
			}
		}
		return deployed
	}
	for _, key := range []string{"admin", "other", "operator"} {
		require.Empty(t, listed(key), key)
	}
	name := s.deploy("d1", 1)
	require.Equal(t, []string{base}, listed("admin"))
	require.Empty(t, listed("other"), "it is another account's")
	require.Empty(t, listed("operator"), "the operator asks in the model's account")

	// A request of any account reaches a deployment with an alias by the name of the model too.
	alias := func(names string) {
		require.Equal(t, 200, s.call("PATCH", "/v1/"+string(name), "operator", `{"aliases": [`+names+`]}`).status)
	}
	alias(`"smart"`)
	for _, key := range []string{"admin", "other", "operator"} {
		require.ElementsMatch(t, []string{base, "smart"}, listed(key), key)
	}
	alias("")
	require.Empty(t, listed("other"))

	// A request reaches a deployment with disableAutoDeploy neither by the name of the model nor by
	// an alias.
	s = newHarness(t, request.Limits{})
	s.deploy("d1", 1, func(spec *domain.DeploymentSpec) { spec.DisableAutoDeploy, spec.Aliases = true, []string{"smart"} })
	for _, key := range []string{"admin", "other"} {
		require.Equal(t, []string{"smart"}, listed(key), key)
	}
}

// TestSpeechModelsRejectPrompts checks that a speech model rejects prompts, settings of text models
// and training.
func TestSpeechModelsRejectPrompts(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.deploySpeech("ear", "speech-v3")
	refused := s.call("POST", "/inference/v1/completions", "other", `{"model": "speech-v3", "prompt": "a"}`)
	require.Equal(t, 400, refused.status)
	require.Contains(t, string(refused.body), "cannot complete prompts: send recordings to /v1/audio/transcriptions")

	made := s.call("POST", "/v1/accounts/acme/models", "admin",
		`{"modelId": "whisper", "model": {"speech": {"format": "faster-whisper", "vadModels": {"silero": "silero"}}}}`)
	require.Equal(t, 200, made.status, "%s", made.body)
	require.Equal(t, domain.SpeechModel, made.json(t)["kind"])
	made = s.call("POST", "/v1/accounts/acme/deployments?deploymentId=whisper", "admin",
		`{"baseModel": "`+string(ear)+`", "speechFormat": "openai"}`)
	require.Equal(t, 200, made.status, "%s", made.body)
	require.Equal(t, "simulated", made.json(t)["speechFormat"], "the model's format, whatever the request has")

	for field, body := range map[string]string{
		"precision":       `{"baseModel": "` + string(ear) + `", "precision": "BF16"}`,
		"draftModel":      `{"baseModel": "accounts/default/models/anneal-base", "draftModel": "` + string(ear) + `"}`,
		"maxReplicaCount": `{"baseModel": "` + string(ear) + `", "minReplicaCount": 2, "maxReplicaCount": 1}`,
	} {
		a := s.call("POST", "/v1/accounts/acme/deployments", "admin", body)
		require.Equal(t, 400, a.status)
		require.Contains(t, string(a.body), field)
	}
	tuned := s.call("POST", "/v1/accounts/acme/supervisedFineTuningJobs", "admin",
		`{"dataset": "accounts/acme/datasets/x", "baseModel": "`+string(ear)+`"}`)
	require.Equal(t, 400, tuned.status)
	require.Contains(t, string(tuned.body), "is a speech model, which cannot be trained: use a text model")
	shape := s.call("POST", "/v1/accounts/acme/deploymentShapes", "admin",
		`{"deploymentShapeId": "s", "deploymentShape": {"baseModel": "`+string(ear)+`"}}`)
	require.Equal(t, 400, shape.status)
	require.True(t, strings.Contains(string(shape.body), "which deployment shapes do not support"), "%s", shape.body)
}
