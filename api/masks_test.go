package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/internal/testutil"
)

// A patchable is a resource all of whose fields are set, so that an update can zero any of them.
type patchable struct {
	alias  string
	name   string // resource name; "" means the collection's resource called one
	body   string // every field that a request may set, each with a value other than its zero value
	lacks  string // fields, separated by spaces, that the other fields of body exclude
	create func(s *harness, body string)
}

// patchables are the kinds whose resources have a PATCH, by collection.
var patchables = map[string]patchable{
	"accounts": {alias: "operator", name: "accounts/acme",
		body: `{"email": "acme@example.com", "displayName": "Acme", "accountType": "ENTERPRISE"}`,
		create: func(s *harness, body string) {
			require.Equal(s, 200, s.call("PATCH", acme, "operator", body).status)
		}},
	"secrets": {alias: "admin", body: `{"keyName": "KEY", "value": "hidden"}`,
		create: func(s *harness, body string) {
			s.ok("POST", acme+"/secrets", `{"name": "one", `+body[1:])
		}},
	"subscriptions": {alias: "admin", lacks: "startTime startEventId files",
		body: `{"displayName": "n", "eventTypes": ["dataset.*"], "resources": ["accounts/acme/*"], "startPosition": "1",
			"webhook": {"url": "https://example.com"}}`,
		create: func(s *harness, body string) {
			s.ok("POST", acme+"/subscriptions", `{"subscriptionId": "one", "subscription": `+body+`}`)
		}},
	"models": {alias: "admin", lacks: "baseModel defaultDraftTokenCount defaultNgramSpeculationLength",
		body: `{"displayName": "n", "description": "d", "kind": "SPEECH_MODEL", "public": true,
			"speech": {"format": "simulated", "languages": ["en"]}}`,
		create: func(s *harness, body string) {
			s.ok("POST", acme+"/models", `{"modelId": "one", "model": `+body+`}`)
		}},
	"datasets": {alias: "admin", lacks: "evaluationResult transformed splitted evalProtocol credentialsSecret",
		body: `{"displayName": "n", "exampleCount": "3", "format": "CHAT", "externalUrl": "s3://rows/chats.jsonl",
			"sourceJobName": "accounts/acme/dpoJobs/j", "userUploaded": {}}`,
		create: func(s *harness, body string) {
			s.makeDataset("rows")
			s.ok("POST", acme+"/dpoJobs?dpoJobId=j", `{"dataset": "accounts/acme/datasets/rows"}`)
			s.ok("POST", acme+"/datasets", `{"datasetId": "one", "dataset": `+body+`}`)
		}},
	"evaluators": {alias: "admin",
		body: `{"displayName": "n", "description": "d", "defaultDataset": "accounts/acme/datasets/rows",
			"secrets": ["accounts/acme/secrets/s"], "requirements": "numpy", "entryPoint": "main.py::evaluate",
			"commitHash": "abc", "source": {"type": "TYPE_CODE_HOST", "codeHostRepositoryName": "a/b"},
			"criteria": [{"type": "CODE_SNIPPETS", "name": "c", "description": "d", "codeSnippets": {"language": "python",
			"fileContents": {"main.py": "def evaluate(messages, **kwargs): return 1"}, "entryFile": "main.py",
			"entryFunc": "evaluate"}}]}`,
		create: func(s *harness, body string) {
			s.makeDataset("rows")
			s.ok("POST", acme+"/secrets", `{"name": "s", "keyName": "KEY", "value": "v"}`)
			s.ok("POST", acme+"/evaluators", `{"evaluatorId": "one", "evaluator": `+body+`}`)
		}},
	"deploymentShapes": {alias: "admin",
		body: `{"displayName": "n", "description": "d", "baseModel": "accounts/default/models/anneal-base",
			"acceleratorCount": 2, "acceleratorType": "VENDOR_A_H100_80GB", "precision": "FP8",
			"disableDeploymentSizeValidation": true, "enableAddons": true, "draftTokenCount": 4,
			"draftModel": "accounts/default/models/anneal-base", "ngramSpeculationLength": 3,
			"disableSpeculativeDecoding": true, "enableSessionAffinity": true, "numLoraDeviceCached": 2,
			"maxContextLength": 256, "presetType": "FAST"}`,
		create: func(s *harness, body string) {
			s.ok("POST", acme+"/deploymentShapes", `{"deploymentShapeId": "one", "deploymentShape": `+body+`}`)
		}},
	"deployments": {alias: "operator", lacks: "deploymentShape enableMtp deploymentTemplate acceleratorShare",
		body: `{"baseModel": "accounts/default/models/anneal-base", "displayName": "n", "description": "d",
			"expireTime": "2031-01-01T00:00:00Z", "minReplicaCount": 1, "maxReplicaCount": 3,
			"maxWithRevocableReplicaCount": 4, "acceleratorCount": 2, "acceleratorType": "VENDOR_A_H100_80GB",
			"autoscalingPolicy": {"scaleUpWindow": "5s", "scaleDownWindow": "6s", "scaleToZeroWindow": "600s",
			"loadTargets": {"default": 0.5}}, "precision": "FP8", "enableAddons": true, "draftTokenCount": 4,
			"draftModel": "accounts/default/models/anneal-base", "ngramSpeculationLength": 3, "enableSessionAffinity": true,
			"directRouteApiKeys": ["k"], "directRouteType": "INTERNET",
			"autoTune": {"longPrompt": true}, "placement": {"region": "US_IOWA_1"}, "maxContextLength": 256,
			"placementStrategy": "SPREAD",
			"disableDeploymentSizeValidation": true, "enableHotLoad": true, "hotLoadBucketType": "SERVICE_HOSTED",
			"hotLoadBucketUrl": "https://example.com/b", "enableHotReloadLatestAddon": true, "pricingPlanId": "p",
			"aliases": ["alias"]}`,
		create: func(s *harness, body string) {
			require.Equal(s, 200, s.call("PATCH", acme, "operator", `{"accountType": "ENTERPRISE"}`).status)
			a := s.call("POST", acme+"/deployments?deploymentId=one", "operator", body)
			require.Equal(s, 200, a.status, "%s", a.body)
		}},
	"deployedModels": {alias: "admin",
		body: `{"displayName": "n", "description": "d", "model": "accounts/acme/models/polite",
			"deployment": "accounts/acme/deployments/d", "default": true}`,
		create: func(s *harness, body string) {
			s.set(anAddon + aDeployment)
			s.ok("POST", acme+"/deployedModels?deployedModelId=one", body)
		}},
	"quotas": {alias: "operator", name: "accounts/acme/quotas/jobs", body: `{"maxValue": "7"}`,
		create: func(s *harness, body string) {
			require.Equal(s, 200, s.call("PATCH", acme+"/quotas/jobs", "operator", body).status)
		}},
}

// patchOf returns the PATCH operation of a collection's resources, or nil if they have none.
func patchOf(s *harness, collection string) *request.Operation {
	path := request.CollectionPath + collection + "/{id}"
	if collection == domain.Accounts.Collection {
		path = "/v1/accounts/{account}"
	}
	for i, op := range s.server.table {
		if op.Method == http.MethodPatch && op.Path == path {
			return &s.server.table[i]
		}
	}
	return nil
}

// TestEmptyMasksKeepAbsentFields checks for every field of every kind with a PATCH that an update
// whose body contains only this field keeps all others, without a mask and with an empty one.
func TestEmptyMasksKeepAbsentFields(t *testing.T) {
	patched := 0
	for _, kind := range domain.Kinds {
		collection := kind.CollectionID()
		one, listed := patchables[collection]
		if op := patchOf(newHarness(t, request.Limits{}), collection); op == nil {
			require.False(t, listed, "%s have no PATCH", collection)
			continue
		}
		require.True(t, listed, "%s have a PATCH, but no row in this test", collection)
		patched++
		t.Run(collection, func(t *testing.T) {
			s := newHarness(t, request.Limits{})
			op, name := patchOf(s, collection), domain.Name(one.name)
			if name == "" {
				name = domain.NewName("acme", collection, "one")
			}
			var body map[string]json.RawMessage
			require.NoError(t, json.Unmarshal([]byte(one.body), &body))
			for _, f := range wire.StructOf(op.Body).Fields {
				given := body[f.Name] != nil || f.Output || f.Name == "name"
				require.NotEqual(t, given, slices.Contains(strings.Fields(one.lacks), f.Name),
					"the field %s is either in the body or listed as excluded", f.Name)
			}
			one.create(s, one.body)
			keepsAbsentFields(s, one.alias, name, op, body)
		})
	}
	require.Equal(t, len(patchables), patched)
}

// keepsAbsentFields requires that an update with one field of the body, or with none, changes
// nothing, because the fields have these values already.
func keepsAbsentFields(s *harness, alias string, name domain.Name, op *request.Operation,
	body map[string]json.RawMessage) {
	whole := s.row(name)
	for _, query := range []string{"", "?updateMask=", "?update_mask=", "?updateMask=&updateMask=,", "?updateMask=%20"} {
		for _, field := range append([]string{""}, slices.Sorted(maps.Keys(body))...) {
			given := fmt.Sprintf(`{"name": %q}`, name)
			if field != "" {
				given = fmt.Sprintf(`{"name": %q, %q: %s}`, name, field, body[field])
			}
			a := s.call("PATCH", "/v1/"+string(name)+query, alias, given)
			if field == "" && op.ID == "updateQuota" { // maxValue is required
				require.Equal(s, 400, a.status, "%s %s: %s", query, given, a.body)
				continue
			}
			require.Equal(s, 200, a.status, "%s %s: %s", query, given, a.body)
			if field == "value" { // each update seals the value again
				whole["value"], whole["version"] = s.row(name)["value"], s.row(name)["version"]
			}
			require.Equal(s, whole, s.row(name), "%s %s", query, given)
		}
	}
}

// row returns the state of a resource as JSON.
func (s *harness) row(name domain.Name) (state map[string]any) {
	s.Helper()
	row, _ := s.world.Row(name)
	data := testutil.Marshal(s, row)
	require.NoError(s, json.Unmarshal(data, &state))
	return state
}

// TestMaskOfEverything checks that the mask "*" updates every field that a request may set, and
// that it cannot be combined with other paths.
func TestMaskOfEverything(t *testing.T) {
	s := newHarness(t, request.Limits{})
	one := patchables["deployments"]
	one.create(s, one.body)
	const path = acme + "/deployments/one"
	for _, mask := range []string{"*,displayName", "displayName&updateMask=*"} {
		a := s.call("PATCH", path+"?updateMask="+mask, "operator", one.body)
		require.Equal(t, 400, a.status, "%s", a.body)
		require.Contains(t, a.json(t)["message"], `updateMask: "*" means all fields: give it without other paths`)
	}
	a := s.call("PATCH", path+"?updateMask="+url.QueryEscape(" * "), "operator",
		`{"baseModel": "accounts/default/models/anneal-base", "placement": {"region": "US_IOWA_1"}, "displayName": "m"}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	state := s.row("accounts/acme/deployments/one")
	require.Equal(t, "m", state["displayName"])
	for _, cleared := range []string{"description", "minReplicaCount", "expireTime", "autoscalingPolicy", "directKeys"} {
		require.Empty(t, state[cleared], cleared)
	}
}

// TestEmptyMaskOfVersions checks that an empty mask keeps the fields of a shape version that the
// body lacks.
func TestEmptyMaskOfVersions(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.set(aReviewed)
	const version = acme + "/deploymentShapes/small/versions/v1"
	for _, body := range []string{`{"validated": true, "public": true}`, `{"validated": true}`, `{"public": true}`, `{}`} {
		for _, query := range []string{"", "?updateMask=", "?update_mask="} {
			got := s.ok("PATCH", version+query, body).json(t)
			require.Equal(t, true, got["validated"], "%s %s", query, body)
			require.Equal(t, true, got["public"], "%s %s", query, body)
		}
	}
	require.Equal(t, false, s.ok("PATCH", version+"?updateMask=*", `{"validated": true}`).json(t)["public"])
}
