package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
)

// TestZerosThatStandForDefaults checks that a response warns of a number 0 that stands for a default,
// and not of an absent number, nor of a 0 that a client has read and sends back.
func TestZerosThatStandForDefaults(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.set(aFilledOne + anEvaluator)
	empty := s.call("POST", "/v1/accounts/acme/datasets", "admin", `{"datasetId": "later", "dataset": {}}`)
	require.Equal(t, http.StatusOK, empty.status, "%s", empty.body)
	const account = "/v1/accounts/acme/"
	for _, test := range []struct {
		path, body string
		warned     string // field of each warning, with the start of the default
	}{
		{"supervisedFineTuningJobs", `{"dataset": "accounts/acme/datasets/rows"}`, ""},
		{"supervisedFineTuningJobs", `{"dataset": "accounts/acme/datasets/rows", "epochs": 0, "learningRate": 0,
			"batchSize": 0, "batchSizeSamples": 0, "gradientAccumulationSteps": 0, "nodes": 0, "loraRank": 0,
			"optimizerWeightDecay": 0, "learning_rate_warmup_steps": 0, "maxContextLength": 0}`,
			"batchSize the engine's; batchSizeSamples the engine's; epochs 1; gradientAccumulationSteps 1; " +
				"learningRate the engine's; nodes 1"},
		{"supervisedFineTuningJobs:estimateCost", `{"supervisedFineTuningJob": {"dataset": "accounts/acme/datasets/rows",
			"epochs": 0}}`, "supervisedFineTuningJob.epochs 1"},
		{"dpoJobs", `{"dataset": "accounts/acme/datasets/later", "trainingConfig": {"epochs": 0},
			"lossConfig": {"method": "DPO", "dpo": {"beta": 0}}}`, "lossConfig.dpo.beta 0.1; trainingConfig.epochs 1"},
		{"dpoJobs", `{"dataset": "accounts/acme/datasets/later", "lossConfig": {"method": "ORPO", "orpo": {"lambda": 0}}}`,
			"lossConfig.orpo.lambda 0.1"},
		{"reinforcementFineTuningJobs", `{"dataset": "accounts/acme/datasets/later", "evaluator":
			"accounts/acme/evaluators/exact", "chunkSize": 0, "nodeCount": 0, "maxInferenceReplicaCount": 0,
			"maxConcurrentRollouts": 0, "maxConcurrentEvaluations": 0,
			"inferenceParameters": {"maxOutputTokens": 0, "responseCandidatesCount": 0, "topK": 0, "topP": 0}}`,
			"chunkSize 200; inferenceParameters.maxOutputTokens the engine's; inferenceParameters.responseCandidatesCount 4; " +
				"maxConcurrentEvaluations the engine's; maxConcurrentRollouts the engine's; maxInferenceReplicaCount 1; " +
				"nodeCount 1"},
		{"rlorTrainerJobs", `{"dataset": "accounts/acme/datasets/later", "nodeCount": 0, "trainingConfig": {"epochs": 0}}`,
			"nodeCount 1; trainingConfig.epochs 1"},
		{"deployments", `{"baseModel": "accounts/default/models/anneal-base", "minReplicaCount": 0, "maxReplicaCount": 0,
			"acceleratorCount": 0, "draftTokenCount": 0, "maxWithRevocableReplicaCount": 0}`,
			"acceleratorCount 1; maxWithRevocableReplicaCount maxReplicaCount"},
		{"datasets", `{"datasetId": "half", "dataset": {"splitted": {"fraction": 0, "seed": 0,
			"sourceDatasetId": "accounts/acme/datasets/rows"}}}`, "dataset.splitted.fraction 0.3333333333333333"},
	} {
		a := s.call("POST", account+test.path, "admin", test.body)
		require.Equal(t, http.StatusOK, a.status, "%s: %s", test.path, a.body)
		var warned []string
		for _, warning := range a.header.Values("anneal-warning") {
			if field, rest, ok := strings.Cut(warning, ": 0 means "); ok {
				meaning, advice, _ := strings.Cut(rest, ":")
				require.Equal(t, " leave the field out, or give the value that you want", advice)
				meaning = strings.TrimPrefix(strings.TrimSuffix(meaning, " default"), "the default, ")
				warned = append(warned, field+" "+meaning)
			}
		}
		require.Equal(t, test.warned, strings.Join(warned, "; "), test.path)
	}
}

// TestZerosThatAreSentBack checks that an update gives no warning for a 0 that the resource has.
func TestZerosThatAreSentBack(t *testing.T) {
	s := newHarness(t, request.Limits{})
	const body = `{"baseModel": "accounts/default/models/anneal-base", "maxReplicaCount": 0}`
	require.Equal(t, http.StatusOK, s.call("POST", "/v1/accounts/acme/deployments?deploymentId=d", "admin", body).status)
	a := s.call("PATCH", "/v1/accounts/acme/deployments/d", "admin",
		`{"maxWithRevocableReplicaCount": 0, "displayName": "x"}`)
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	require.Empty(t, a.header.Values("anneal-warning"))
}

// TestZerosThatAreRefused checks that the numbers that must not be 0 are refused, as the table of the
// values of 0 says.
func TestZerosThatAreRefused(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.set(aFilledOne + anEvaluator)
	for field, test := range map[string][2]string{
		"inferenceParameters.temperature": {"reinforcementFineTuningJobs", `{"dataset": "accounts/acme/datasets/rows",
			"evaluator": "accounts/acme/evaluators/exact", "inferenceParameters": {"temperature": 0}}`},
	} {
		a := s.call("POST", "/v1/accounts/acme/"+test[0], "admin", test[1])
		require.Equal(t, http.StatusBadRequest, a.status, "%s: %s", field, a.body)
		require.Contains(t, string(a.body), field)
	}
}
