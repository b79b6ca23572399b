package api

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
)

// family returns a harness with related models and deployment shapes, for tests of
// deploymentShapeVersions:match and of creating deployments. All shapes except "raw" are marked as
// validated.
func family(t *testing.T) *harness {
	s := newHarness(t, request.Limits{})
	const large = 8_000_000_000
	s.model("accounts/acme/models/base", domain.BaseModel, "",
		domain.ModelMetadata{ModelType: "llama", ParameterCount: large})
	s.model("accounts/acme/models/lora", domain.PEFTAddon, "accounts/acme/models/base",
		domain.ModelMetadata{ModelType: "llama", LoraRank: 8})
	s.model("accounts/acme/models/tuned", domain.BaseModel, "accounts/acme/models/base",
		domain.ModelMetadata{ModelType: "llama", ParameterCount: large})
	s.model("accounts/acme/models/small", domain.BaseModel, "",
		domain.ModelMetadata{ModelType: "llama", ParameterCount: large / 8})
	s.model("accounts/acme/models/qwen", domain.BaseModel, "",
		domain.ModelMetadata{ModelType: "qwen3", ParameterCount: large})
	s.model("accounts/acme/models/vectors", domain.BaseModel, "",
		domain.ModelMetadata{ModelType: "llama", ParameterCount: large, Embedding: true})
	for id, settings := range map[string]string{
		"text":    `"baseModel": "accounts/acme/models/base"`,
		"multi":   `"baseModel": "accounts/acme/models/base", "presetType": "MULTI_LORA"`,
		"fp4":     `"baseModel": "accounts/acme/models/base", "acceleratorType": "VENDOR_A_B200_180GB", "precision": "FP4"`,
		"small":   `"baseModel": "accounts/acme/models/small"`,
		"qwen":    `"baseModel": "accounts/acme/models/qwen"`,
		"vectors": `"baseModel": "accounts/acme/models/vectors"`,
		"draft":   `"baseModel": "accounts/acme/models/base", "draftTokenCount": 4, "ngramSpeculationLength": 3`,
		"raw":     `"baseModel": "accounts/acme/models/base"`,
	} {
		s.shape(id, settings, id != "raw")
	}
	return s
}

func (s *harness) model(name domain.Name, kind, base string, facts domain.ModelMetadata) {
	s.Helper()
	s.do(domain.Intend(domain.Models, name, domain.RegisterModel{
		ModelSpec: domain.ModelSpec{DisplayName: name.ID(), Kind: kind, BaseModel: base}, ModelMetadata: facts,
		Files: domain.Files{Prefix: "models/" + name.ID() + "/", Sizes: map[string]int64{"model.safetensors": 42}}}))
}

// shape creates a shape and, if validated is true, validates its first version.
func (s *harness) shape(id, settings string, validated bool) {
	s.Helper()
	const shapes = "/v1/accounts/acme/deploymentShapes"
	s.ok(http.MethodPost, shapes, fmt.Sprintf(`{"deploymentShapeId": %q, "deploymentShape": {%s}}`, id, settings))
	if !validated {
		return
	}
	versions := s.ok(http.MethodGet, shapes+"/"+id+"/versions", "").json(s)["deploymentShapeVersions"].([]any)
	name := versions[0].(map[string]any)["name"].(string)
	s.ok(http.MethodPatch, "/v1/"+name, `{"validated": true}`)
}

// ok sends a request with the key of an admin, and requires status 200.
func (s *harness) ok(method, path, body string) response {
	s.Helper()
	a := s.call(method, path, "admin", body)
	require.Equal(s, http.StatusOK, a.status, "%s %s: %s", method, path, a.body)
	return a
}

// matches returns the sorted IDs of the shapes that match a deployment.
func (s *harness) matches(deployment string) []string {
	s.Helper()
	a := s.ok(http.MethodPost, "/v1/accounts/acme/deploymentShapeVersions:match",
		`{"createDeploymentRequest": {"deployment": {`+deployment+`}}}`)
	ids := []string{}
	for _, version := range a.json(s)["deploymentShapeVersions"].([]any) {
		v := version.(map[string]any)
		require.Equal(s, true, v["validated"])
		require.Equal(s, true, v["latestValidated"])
		ids = append(ids, strings.Split(v["name"].(string), "/")[3])
	}
	slices.Sort(ids)
	return ids
}

// TestRulesOfMatch checks the rules of operation 1, match. The numbers of rules are the numbers in
// the specification of the API.
func TestRulesOfMatch(t *testing.T) {
	s := family(t)
	text := []string{"draft", "fp4", "multi", "text"}
	t.Run("1 latest validated versions, ready to deploy with", func(t *testing.T) {
		require.Equal(t, text, s.matches(`"baseModel": "accounts/acme/models/base"`))
		for _, shape := range text {
			s.ok(http.MethodPost, "/v1/accounts/acme/deployments?validateOnly=true",
				`{"baseModel": "accounts/acme/models/base", "deploymentShape": "accounts/acme/deploymentShapes/`+shape+`"}`)
		}
	})
	t.Run("2 an addon is matched by its base model", func(t *testing.T) {
		require.Equal(t, text, s.matches(`"baseModel": "accounts/acme/models/lora"`))
	})
	t.Run("3 model type, tier of parameters, embedding or not", func(t *testing.T) {
		require.Equal(t, []string{"small"}, s.matches(`"baseModel": "accounts/acme/models/small"`))
		require.Equal(t, []string{"qwen"}, s.matches(`"baseModel": "accounts/acme/models/qwen"`))
		require.Equal(t, []string{"vectors"}, s.matches(`"baseModel": "accounts/acme/models/vectors"`))
	})
	t.Run("4 addons require MULTI_LORA", func(t *testing.T) {
		require.Equal(t, []string{"multi"}, s.matches(`"baseModel": "accounts/acme/models/base", "enableAddons": true`))
	})
	t.Run("5 a fine-tune of all parameters is not quantized to FP4", func(t *testing.T) {
		s.model("accounts/acme/models/tuned-lora", domain.PEFTAddon, "accounts/acme/models/tuned",
			domain.ModelMetadata{ModelType: "llama", LoraRank: 8})
		for _, precision := range []string{"FP4", "FP4_BLOCKSCALED_MM", "FP4_MX_MOE", "NF4", "FP8"} {
			id := "b200-" + strings.ReplaceAll(strings.ToLower(precision), "_", "-")
			s.shape(id, `"baseModel": "accounts/acme/models/base", "acceleratorType": "VENDOR_A_B200_180GB", "precision": `+
				`"`+precision+`"`, true)
			require.Contains(t, s.matches(`"baseModel": "accounts/acme/models/base"`), id)
			for _, tuned := range []string{"tuned", "tuned-lora"} {
				require.Equal(t, precision == "FP8", slices.Contains(s.matches(`"baseModel": "accounts/acme/models/`+tuned+`"`),
					id), "%s on %s", tuned, precision)
			}
			s.ok(http.MethodDelete, "/v1/accounts/acme/deploymentShapes/"+id, "")
		}
		require.Equal(t, []string{"draft", "multi", "text"}, s.matches(`"baseModel": "accounts/acme/models/tuned"`))
	})
	t.Run("3 each tier of parameters, at both bounds", func(t *testing.T) {
		ends := []domain.Count{250e6, 800e6, 2e9, 5e9, 10e9, 20e9, 45e9, 90e9, 160e9, 300e9, 500e9, 800e9}
		name := func(what string, i int) string { return what + "-" + strconv.Itoa(i) }
		for i, end := range ends { // a value directly above a bound belongs to the next tier
			s.model(domain.Name("accounts/acme/models/"+name("above", i)), domain.BaseModel, "",
				domain.ModelMetadata{ModelType: "tiered", ParameterCount: end + 1})
			s.model(domain.Name("accounts/acme/models/"+name("at", i)), domain.BaseModel, "",
				domain.ModelMetadata{ModelType: "tiered", ParameterCount: end})
			s.shape(name("tier", i), `"baseModel": "accounts/acme/models/`+name("at",
				i)+`", "disableDeploymentSizeValidation": true`, true)
		}
		for i := range ends {
			require.Equal(t, []string{name("tier", i)}, s.matches(`"baseModel": "accounts/acme/models/`+name("at", i)+`"`))
			above := []string{name("tier", i+1)}
			if i == len(ends)-1 {
				above = []string{}
			}
			require.Equal(t, above, s.matches(`"baseModel": "accounts/acme/models/`+name("above", i)+`"`))
		}
	})
	t.Run("1 no version contradicts the settings of the request", func(t *testing.T) {
		for asked, want := range map[string][]string{
			// with a shape without a precision, the deployment may set the precision
			`"precision": "FP4"`:                         {"draft", "fp4", "multi", "text"},
			`"precision": "BF16"`:                        {"draft", "multi", "text"},
			`"acceleratorType": "VENDOR_A_B200_180GB"`:   {"fp4"},
			`"acceleratorType": "VENDOR_A_A100_80GB"`:    {"draft", "multi", "text"},
			`"acceleratorType": "VENDOR_B_MI300X_192GB"`: {},
			`"acceleratorCount": 7`:                      {},
			`"ngramSpeculationLength": 2`:                {"fp4", "multi", "text"},
			`"acceleratorType": "ACCELERATOR_TYPE_UNSPECIFIED", "precision": "PRECISION_UNSPECIFIED"`: text,
		} {
			require.Equal(t, want, s.matches(`"baseModel": "accounts/acme/models/base", `+asked), asked)
		}
	})
	t.Run("1 invalid settings of a deployment are all reported", func(t *testing.T) {
		a := s.call(http.MethodPost, "/v1/accounts/acme/deploymentShapeVersions:match", "user",
			`{"createDeploymentRequest": {"deployment": {"acceleratorType": "ABACUS", "precision": "FP17", `+
				`"minReplicaCount": -1}}}`)
		require.Equal(t, http.StatusBadRequest, a.status, "%s", a.body)
		for _, field := range []string{"baseModel", "acceleratorType", "precision", "minReplicaCount"} {
			require.Contains(t, string(a.body), `"createDeploymentRequest.deployment.`+field+`"`)
		}
		require.Empty(t, s.matches(`"baseModel": "accounts/acme/models/base", "acceleratorType": "VENDOR_A_GB300"`),
			"a device of shapes")
	})
	t.Run("6 the account is the caller's own", func(t *testing.T) {
		const body = `{"createDeploymentRequest": {"deployment": {"baseModel": "accounts/default/models/anneal-base"}}}`
		for _, account := range []string{"default", "other", "nobody"} {
			a := s.call(http.MethodPost, "/v1/accounts/"+account+"/deploymentShapeVersions:match", "admin", body)
			require.Equal(t, http.StatusForbidden, a.status, "%s: %s", account, a.body)
		}
		// the model may belong to any account, if the caller may use it
		s.ok(http.MethodPost, "/v1/accounts/acme/deploymentShapeVersions:match", body)
	})
}

// TestRulesOfCreateDeployment checks the rules of operation 2, create deployment.
func TestRulesOfCreateDeployment(t *testing.T) {
	s := family(t)
	const path = "/v1/accounts/acme/deployments"
	shaped := func(shape string) string {
		return `{"baseModel": "accounts/acme/models/base", "deploymentShape": "accounts/acme/deploymentShapes/` + shape + `"}`
	}
	t.Run("1 validateOnly creates nothing", func(t *testing.T) {
		before := s.world.Position()
		a := s.ok(http.MethodPost, path+"?deploymentId=imagined&validateOnly=true", shaped("text")).json(t)
		require.Equal(t, "accounts/acme/deployments/imagined", a["name"])
		require.Equal(t, before, s.world.Position())
		require.Equal(t, http.StatusNotFound, s.call(http.MethodGet, path+"/imagined", "admin", "").status)
		s.ok(http.MethodPost, path+"?deploymentId=imagined", shaped("text")) // validateOnly does not use the ID
	})
	t.Run("2 a model's name selects its deployment, unless disableAutoDeploy excludes that", func(t *testing.T) {
		send := func(model string) response {
			return s.call(http.MethodPost, "/inference/v1/completions", "inference",
				fmt.Sprintf(`{"model": %q, "prompt": "one", "max_tokens": 1}`, model))
		}
		deployed := func() (all []string) {
			for _, one := range s.call(http.MethodGet, "/inference/v1/models", "inference", "").json(t)["data"].([]any) {
				if m := one.(map[string]any); m["deployed"].(bool) {
					all = append(all, m["id"].(string))
				}
			}
			return all
		}
		const model, apart = "accounts/acme/models/qwen", "accounts/acme/deployments/apart"
		a := s.ok(http.MethodPost, path+"?deploymentId=apart&disableAutoDeploy=true", `{"baseModel": "`+model+`"}`).json(t)
		require.Equal(t, true, a["disableAutoDeploy"])
		s.ok(http.MethodPatch, "/v1/"+apart, `{"description": "changed"}`)
		s.serve(apart)
		require.NotContains(t, deployed(), model)
		refused := send(model)
		require.Equal(t, http.StatusNotFound, refused.status, "%s", refused.body)
		require.Contains(t, string(refused.body), "use the model name "+model+"#"+apart)
		for _, named := range []string{apart, model + "#" + apart} {
			require.Equal(t, http.StatusOK, send(named).status, named)
		}
		a = s.ok(http.MethodPost, path+"?deploymentId=by-default", `{"baseModel": "`+model+`"}`).json(t)
		require.NotContains(t, a, "disableAutoDeploy")
		s.serve("accounts/acme/deployments/by-default")
		require.Contains(t, deployed(), model)
		require.Equal(t, http.StatusOK, send(model).status)
	})
	t.Run("3 disableSpeculativeDecoding disables speculation", func(t *testing.T) {
		a := s.ok(http.MethodPost, path+"?validateOnly=true", shaped("draft")).json(t)
		require.EqualValues(t, 4, a["draftTokenCount"])
		a = s.ok(http.MethodPost, path+"?validateOnly=true&disableSpeculativeDecoding=true", shaped("draft")).json(t)
		require.NotContains(t, a, "draftTokenCount")
		require.NotContains(t, a, "ngramSpeculationLength")
		require.Equal(t, true, a["disableSpeculativeDecoding"])

		s.do(register("accounts/acme/models/drafts", false))
		s.ok(http.MethodPatch, "/v1/accounts/acme/models/drafts",
			`{"defaultDraftTokenCount": 6, "defaultNgramSpeculationLength": 3}`)
		for query, want := range map[string][2]any{"": {6.0, 3.0}, "&disableSpeculativeDecoding=true": {nil, nil}} {
			a = s.ok(http.MethodPost, path+"?validateOnly=true"+query, `{"baseModel": "accounts/acme/models/drafts"}`).json(t)
			require.Equal(t, want, [2]any{a["draftTokenCount"], a["ngramSpeculationLength"]}, "from the base model")
		}
		a = s.ok(http.MethodPost, path+"?validateOnly=true", `{"baseModel": "accounts/acme/models/drafts", `+
			`"ngramSpeculationLength": 4}`).json(t)
		require.Equal(t, [2]any{nil, 4.0}, [2]any{a["draftTokenCount"], a["ngramSpeculationLength"]})
		refused := s.call(http.MethodPatch, "/v1/accounts/acme/models/drafts", "admin", `{"defaultDraftTokenCount": -1}`)
		require.Contains(t, string(refused.body), "defaultDraftTokenCount: must not be negative")

		s.ok(http.MethodPost, path+"?deploymentId=plain&disableSpeculativeDecoding=true", `{"baseModel": "`+publicBase+`"}`)
		changed := s.ok(http.MethodPatch, path+"/plain", `{"ngramSpeculationLength": 3, "displayName": "Plain"}`)
		require.Equal(t, true, changed.json(t)["disableSpeculativeDecoding"], "an update does not turn it on again")
		require.Equal(t, []string{
			"ngramSpeculationLength: accepted, but has no effect on a deployment that was created with " +
				"disableSpeculativeDecoding: the deployment's replicas draft no tokens"}, changed.header.Values("anneal-warning"))
		s.serve("accounts/acme/deployments/plain")
		for _, field := range []string{"prediction", "speculation"} {
			answered := s.call("POST", "/inference/v1/completions", "user", `{"model": "accounts/acme/deployments/plain", `+
				`"prompt": "a", "`+field+`": "b"}`)
			require.Equal(t, http.StatusOK, answered.status, "%s", answered.body)
			require.Contains(t, answered.header.Get("anneal-warning"), field+": accepted, but has no effect on a deployment")
		}
	})
	t.Run("4 a shape must be validated unless that is skipped", func(t *testing.T) {
		a := s.call(http.MethodPost, path+"?validateOnly=true", "admin", shaped("raw"))
		require.Equal(t, http.StatusBadRequest, a.status, "%s", a.body)
		require.Contains(t, string(a.body), "skipShapeValidation")
		a = s.ok(http.MethodPost, path+"?validateOnly=true&skipShapeValidation=true", shaped("raw"))
		require.Regexp(t, "^accounts/acme/deploymentShapes/raw/versions/", a.json(t)["deploymentShape"],
			"the name of the shape's version is in the deployment")
	})
	t.Run("5 skipImageTagValidation is accepted", func(t *testing.T) {
		s.ok(http.MethodPost, path+"?validateOnly=true&skipImageTagValidation=true", shaped("text"))
	})
}

// TestRulesOfPatches checks the rules of operations 9 and 10, updates that require the name in the
// body.
func TestRulesOfPatches(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.ok(http.MethodPost, "/v1/accounts/acme/datasets", `{"datasetId": "d", "dataset": {"displayName": "before"}}`)
	s.ok(http.MethodPost, "/v1/accounts/acme/evaluators", `{"evaluatorId": "e", "evaluator": {"displayName": "before"}}`)
	for _, name := range []string{"accounts/acme/datasets/d", "accounts/acme/evaluators/e"} {
		for body, message := range map[string]string{
			`{"displayName": "after"}`: "is required in this request",
			`{"name": "accounts/acme/datasets/other", "displayName": "after"}`: "must be the name in the path",
		} {
			a := s.call(http.MethodPatch, "/v1/"+name, "admin", body)
			require.Equal(t, http.StatusBadRequest, a.status, "%s: %s", name, a.body)
			require.Contains(t, string(a.body), message)
		}
		a := s.ok(http.MethodPatch, "/v1/"+name, fmt.Sprintf(`{"name": %q, "displayName": "after"}`, name)).json(t)
		require.Equal(t, "after", a["displayName"])
	}
	for _, parameter := range []string{"prepare_code_upload", "prepareCodeUpload"} {
		a := s.ok(http.MethodPatch, "/v1/accounts/acme/evaluators/e?"+parameter+"=true",
			`{"name": "accounts/acme/evaluators/e"}`).json(t)
		require.Equal(t, "BUILDING", a["state"])
	}
}
