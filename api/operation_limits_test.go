package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"anneal/api/request"

	"github.com/stretchr/testify/require"
)

// A bound is a limit of one field. The values in the list at are within the limit and accepted. The
// values in the list past are beyond the limit and rejected with the name of the field. Values are
// JSON. A field that begins with ? is a query parameter.
type bound struct {
	op, field string
	at, past  []string
}

func texts(n int) string { return `"` + strings.Repeat("x", n) + `"` }

// tool returns a tool whose description has n letters.
func tool(n int) string {
	return `[{"type": "function", "function": {"name": "f", "description": ` + texts(n) + `}}]`
}

func id(n int) string { return strings.Repeat("a", n) }

// bounds are the limits of fields in the specification of the API. The tests in limits_test.go
// check the limits of whole bodies.
var bounds = []bound{
	{"listDatasets", "?pageSize", []string{"", "0", "200", "201", "2147483647"}, []string{"-1", "2147483648", "many"}},
	{"previewDataset", "?pageSize", []string{"0", "200", "201"}, []string{"-1"}},

	{"createCompletion", "n", []string{"1", "128"}, []string{"0", "129", "-1", "1.5"}},
	{"createCompletion", "stop", []string{`"a"`, `["a","b","c","d"]`}, []string{`["a","b","c","d","e"]`}},
	{"createCompletion", "temperature", []string{"0", "2"}, []string{"-0.01", "2.01"}},
	{"createCompletion", "top_k", []string{"0", "100"}, []string{"-1", "101"}},
	{"createCompletion", "top_p", []string{"0", "1"}, []string{"-0.01", "1.01"}},
	{"createCompletion", "min_p", []string{"0", "1"}, []string{"-0.01", "1.01"}},
	{"createCompletion", "typical_p", []string{"0", "1"}, []string{"-0.01", "1.01"}},
	{"createCompletion", "frequency_penalty", []string{"-2", "2"}, []string{"-2.01", "2.01"}},
	{"createCompletion", "presence_penalty", []string{"-2", "2"}, []string{"-2.01", "2.01"}},
	{"createCompletion", "repetition_penalty", []string{"0", "2"}, []string{"-0.01", "2.01"}},
	{"createCompletion", "logprobs", []string{"0", "5", "true", "false"}, []string{"-1", "6"}},
	{"createCompletion", "top_logprobs", []string{"0", "5"}, []string{"-1", "6"}},
	{"createCompletion", "logit_bias", []string{`{"7": -100}`, `{"7": 100}`},
		[]string{`{"7": -100.1}`, `{"7": 101}`, `{"seven": 1}`}},
	{"createCompletion", "max_tokens", []string{"0"}, []string{"-1"}},
	{"createCompletion", "thinking",
		[]string{`{"type": "disabled"}`, `{"type": "enabled"}`, `{"type": "enabled", "budget_tokens": 1024}`},
		[]string{`{"type": "enabled", "budget_tokens": 1023}`, `{"type": "perhaps"}`}},
	{"createCompletion", "reasoning_effort", []string{`"low"`, `"medium"`, `"high"`, `"none"`, "true", "false", "1"},
		[]string{`"extreme"`, "0", "-1"}},
	{"createCompletion", "reasoning_history", []string{`"disabled"`, `"interleaved"`, `"preserved"`}, []string{`"all"`}},
	{"createCompletion", "context_length_exceeded_behavior", []string{`"truncate"`, `"error"`}, []string{`"explode"`}},
	{"createCompletion", "response_format", []string{`{"type": "text"}`}, []string{`{"type": "xml"}`}},
	{"createCompletion", "prediction", []string{`{"type": "content", "content": "x"}`, `"x"`},
		[]string{`{"type": "poem", "content": "x"}`}},

	{"createDeployment", "displayName", []string{texts(63)}, []string{texts(64)}},
	{"createDeploymentShape", "deploymentShape.displayName", []string{texts(63)}, []string{texts(64)}},
	{"createDeploymentShape", "deploymentShape.description", []string{texts(999)}, []string{texts(1000)}},
	{"createAccount", "account.displayName", []string{texts(63)}, []string{texts(64)}},
	{"createAccount", "account.email", []string{texts(254)}, []string{texts(255)}},
	{"updateAccount", "email", []string{texts(254)}, []string{texts(255)}},
	{"createChatCompletion", "tools", []string{tool(64 << 10)}, []string{tool(64<<10 + 1)}},
	{"updateAccount", "displayName", []string{texts(63)}, []string{texts(64)}},
	{"createSupervisedFineTuningJob", "displayName", []string{texts(64), texts(255)}, []string{texts(256)}},
	{"createDataset", "dataset.displayName", []string{texts(64), texts(255)}, []string{texts(256)}},
	{"createDeployment", "minReplicaCount", []string{"0", "2"}, []string{"-1", "3", "2147483648"}}, // maxReplicaCount is 2
	{"createDeployment", "maxReplicaCount", []string{"0", "1"}, []string{"-1"}},
	{"createDeployment", "maxWithRevocableReplicaCount", []string{"2"}, []string{"-1", "1"}},
	{"createDeployment", "acceleratorCount", []string{"0", "1"}, []string{"-1"}},
	{"createDeployment", "acceleratorType", []string{`"ACCELERATOR_TYPE_UNSPECIFIED"`}, []string{`"ABACUS"`}},
	{"createDeployment", "draftTokenCount", []string{"0", "4"}, []string{"-1"}},
	{"createDeployment", "hotLoadBucketType", []string{`"CLOUD_C"`}, []string{`"PAIL"`}},
	{"createDeployment", "maxContextLength", []string{"0"}, []string{"-1"}},
	{"createDeployment", "expireTime", []string{`"2031-01-01T00:00:00Z"`}, []string{`"2030-01-01T00:00:00Z"`, `"soon"`}},
	{"createDeployment", "autoscalingPolicy.scaleUpWindow", []string{`"0s"`, `"3600s"`, `"60m"`},
		[]string{`"3601s"`, `"-1s"`, `"soon"`}},
	{"createDeployment", "autoscalingPolicy.scaleDownWindow", []string{`"3600s"`}, []string{`"3601s"`, `"-1s"`}},
	{"createDeployment", "autoscalingPolicy.scaleToZeroWindow", []string{`"300s"`, `"3600s"`},
		[]string{`"299s"`, `"3601s"`}},
	{"createDeployment", "autoscalingPolicy.loadTargets", []string{`{"default": 1}`, `{"concurrent_requests": 3}`},
		[]string{`{"default": 1.01}`, `{"default": -1}`, `{"colour": 1}`, `{"requests_per_second": -1}`}},
	{"createDeployment", "placement",
		[]string{`{"region": "US_IOWA_1"}`, `{"multiRegion": "GLOBAL"}`, `{"regions": ["US_IOWA_1", "EU_PARIS_1"]}`},
		[]string{`{"region": "US_IOWA_1", "multiRegion": "US"}`, `{"multiRegion": "MARS"}`,
			`{"region": "US_IOWA_1", "regions": ["EU_PARIS_1"]}`}},
	{"createDeployment", "placementStrategy", []string{`"PACK"`, `"SPREAD"`, `"PLACEMENT_STRATEGY_UNSPECIFIED"`},
		[]string{`"HEAP"`}},
	{"setJobAccelerators", "rows", []string{`[]`, `[{"acceleratorCount": 1024}]`, `[{"acceleratorCount": 0}]`},
		[]string{`[{"acceleratorCount": 1025}]`, `[{"acceleratorCount": -1}]`, `[{"method": "luck", "acceleratorCount": 1}]`,
			`[{"acceleratorCount": 1}, {"acceleratorCount": 2}]`}},
	{"createDeployment", "?deploymentId", []string{"a", id(63), "a-1"}, []string{id(64), "1a", "a-", "A", "a_b"}},
	{"createDataset", "datasetId", []string{`"` + id(63) + `"`}, []string{`"` + id(64) + `"`, `"1"`}},
	{"createApiKey", "apiKey.expireTime", []string{`"2031-01-01T00:00:00Z"`}, []string{`"2030-01-01T00:00:00Z"`}},
	{"startRelease", "candidate", nil, []string{`"e"`, `"accounts/acme/deployments/d"`, `"accounts/acme/deployments/f"`}},
	{"startRelease", "mode", []string{`"CANARY"`, `"SHADOW"`}, []string{`"BLUE_GREEN"`}},
	{"startRelease", "selection", []string{`"REQUEST"`, `"KEY"`}, []string{`"COOKIE"`}},
	{"startRelease", "promotion", []string{`"AUTOMATIC"`, `"MANUAL"`}, []string{`"NEVER"`}},
	{"startRelease", "steps", []string{`[1, 99]`, `[]`}, []string{`[0]`, `[100]`, `[5, 5]`, `[50, 5]`}},
	{"startRelease", "maxErrorIncreasePercent", []string{"0", "100"}, []string{"-1", "101"}},
	{"startRelease", "maxLatencyPercent", []string{"100", "1000"}, []string{"99", "1001"}},
	{"startRelease", "minSamples", []string{"10", "100000"}, []string{"9", "100001"}},
	{"startRelease", "maxStepDuration", []string{`"60s"`, `"720h"`}, []string{`"59s"`, `"721h"`, `"soon"`}},
	{"scaleDeployment", "replicaCount", []string{"0", "2"}, []string{"-1", "3"}},

	{"createReinforcementFineTuningJob", "chunkSize", []string{"0", "1", "10000"}, []string{"-1", "10001"}},
	{"createReinforcementFineTuningJob", "maxStaleness", []string{"0", "1", "4"}, []string{"-1", "5"}},
	{"createReinforcementFineTuningJob", "nodeCount", []string{"1"}, []string{"-1"}},
	{"createReinforcementFineTuningJob", "lossConfig",
		[]string{`{"method": "METHOD_UNSPECIFIED"}`, `{"method": "GRPO", "klBeta": 0.1}`, `{"method": "DAPO"}`,
			`{"method": "GSPO_TOKEN"}`},
		[]string{`{"method": "DAPO", "klBeta": 0.1}`, `{"method": "GSPO_TOKEN", "klBeta": 0.1}`, `{"method": "DPO"}`,
			`{"method": "LUCK"}`, `{"klBeta": -1}`}},
	{"createReinforcementFineTuningJob", "purpose", []string{`"PURPOSE_UNSPECIFIED"`, `"PURPOSE_PILOT"`},
		[]string{`"FUN"`}},
	{"createReinforcementFineTuningJob", "inferenceParameters",
		[]string{`{"responseCandidatesCount": 2}`, `{"temperature": 0.1}`},
		[]string{`{"responseCandidatesCount": 1}`, `{"temperature": -1}`}},
	{"createReinforcementFineTuningJob", "trackerConfig",
		[]string{`{"enabled": true, "apiKey": "k", "project": "p", "entity": "e"}`, `{"enabled": false}`},
		[]string{`{"enabled": true, "project": "p", "entity": "e"}`, `{"enabled": true, "apiKey": "k", "project": "p"}`,
			`{"enabled": true, "apiKey": "k", "entity": "e"}`}},
	{"createDpoJob", "lossConfig", []string{`{"method": "DPO"}`, `{"method": "ORPO"}`}, []string{`{"method": "GRPO"}`}},
	{"createRlorTrainerJob", "rewardWeights", []string{`["a=0.5", "b=0.5"]`}, []string{`["a"]`, `["=1"]`, `["a=much"]`}},
	{"createSupervisedFineTuningJob", "loraRank", []string{"0", "1", "64"}, []string{"-1", "3", "128"}},
	{"createSupervisedFineTuningJob", "epochs", []string{"0", "1000"}, []string{"-1", "1001"}},
	{"createSupervisedFineTuningJob", "learningRate", []string{"0"}, []string{"-0.1"}},
	{"createSupervisedFineTuningJob", "batchSize", []string{"0"}, []string{"-1"}},
	{"updateQuota", "maxValue", []string{"0", `"9"`}, []string{"-1", "1.5"}},
}

// alongside maps a field to the boolean field that must be true if the field is set.
var alongside = map[string]string{"top_logprobs": "logprobs"}

// TestBounds checks that requests succeed with the values at each bound, and are rejected with the
// name of the field for the values past the bound.
func TestBounds(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: the requests are sequential")
	}
	table := map[string]row{}
	for _, r := range operationRows() {
		table[r.id] = r
	}
	for _, b := range bounds {
		t.Run(b.op+" "+b.field, func(t *testing.T) {
			require.Contains(t, table, b.op)
			for _, value := range b.at {
				a := b.try(newHarness(t, request.Limits{}), table[b.op], value)
				require.Equal(t, http.StatusOK, a.status, "%s: %s", value, a.body)
			}
			s := newHarness(t, request.Limits{})
			for i, value := range b.past {
				r := table[b.op]
				if i > 0 {
					r.scene = "" // rejected requests do not change the resources that the setup created
				}
				a := b.try(s, r, value)
				require.Equal(t, http.StatusBadRequest, a.status, "%s: %s", value, a.body)
				require.Contains(t, string(a.body), strings.TrimPrefix(b.field, "?"), value)
			}
		})
	}
}

// try sends the setup requests of the test case r, then its request with the value for the field.
func (b bound) try(s *harness, r row, value string) response {
	s.Helper()
	s.set(r.scene)
	one := parseRequest(r.request)
	if name, query := strings.CutPrefix(b.field, "?"); query {
		with(name, value)(&one)
		return s.send(one.on(s))
	}
	var tree map[string]any
	require.NoError(s, json.Unmarshal([]byte(one.body), &tree))
	inner, path := tree, strings.Split(b.field, ".")
	for _, name := range path[:len(path)-1] {
		if _, there := inner[name]; !there {
			inner[name] = map[string]any{}
		}
		inner = inner[name].(map[string]any)
	}
	inner[path[len(path)-1]] = json.RawMessage(value)
	if other, ok := alongside[b.field]; ok {
		inner[other] = true
	}
	data, err := json.Marshal(tree)
	require.NoError(s, err, fmt.Sprint(value))
	one.body = string(data)
	return s.send(one.on(s))
}
