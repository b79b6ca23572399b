package api

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
)

// TestDraftModels checks that a deployment gets enough devices for its draft model too, which models
// can be draft models, and when a draft model has no effect.
func TestDraftModels(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for id, parameters := range map[string]domain.Count{"large": 30e9, "small": 7e9} {
		s.do(domain.Intend(domain.Models, domain.NewName("acme", "models", id), domain.RegisterModel{
			ModelSpec: domain.ModelSpec{Kind: domain.BaseModel},
			ModelMetadata: domain.ModelMetadata{ModelType: "llama", ParameterCount: parameters, ContextLength: 4096,
				Precision: "BF16"},
			Files: domain.Files{Prefix: "models/acme/" + id + "/", Sizes: map[string]int64{"model.safetensors": 42}}}))
	}
	s.do(domain.Intend(domain.Models, "accounts/acme/models/addon", domain.RegisterModel{
		ModelSpec: domain.ModelSpec{Kind: domain.PEFTAddon, BaseModel: "accounts/acme/models/small"},
		Files:     domain.Files{Prefix: "models/acme/addon/", Sizes: map[string]int64{"adapter_model.safetensors": 42}}}))
	create := func(id, query, fields string) response {
		return s.call("POST", acme+"/deployments?deploymentId="+id+query, "user",
			`{"baseModel": "accounts/acme/models/large", "acceleratorType": "VENDOR_A_A100_80GB"`+fields+`}`)
	}
	require.EqualValues(t, 1, create("plain", "", "").json(t)["acceleratorCount"])
	drafting := create("drafting", "", `, "draftModel": "accounts/acme/models/small", "draftTokenCount": 4`)
	require.Equal(t, 200, drafting.status, "%s", drafting.body)
	require.EqualValues(t, 2, drafting.json(t)["acceleratorCount"], "72 and 17 GB")
	require.Empty(t, drafting.header.Values(request.WarningHeader))

	refused := create("wrong", "", `, "draftModel": "accounts/acme/models/addon"`)
	require.Equal(t, 400, refused.status)
	require.Contains(t, refused.json(t)["message"], "draftModel: accounts/acme/models/addon is an addon, which cannot")

	off := create("off", "&disableSpeculativeDecoding=true", "")
	require.Equal(t, 200, off.status, "%s", off.body)
	changed := s.call("PATCH", acme+"/deployments/off", "user", `{"draftModel": "accounts/acme/models/small"}`)
	require.Equal(t, 200, changed.status, "%s", changed.body)
	require.Equal(t, []string{"draftModel: accepted, but has no effect on a deployment that was created with " +
		"disableSpeculativeDecoding: the deployment's replicas draft no " +
		"tokens"}, changed.header.Values(request.WarningHeader))
}
