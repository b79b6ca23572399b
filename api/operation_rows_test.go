package api

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"

	"anneal/api/wire"
)

// A row is a test case: an example request of an operation of the document.
type row struct {
	id      string         // ID of the operation
	prepare func(*harness) // preparation that a transcript cannot express; may be nil
	scene   string         // transcript of the setup requests, which create the resources
	request string         // the request, as in a transcript without markers; the response has status 200
	bulky   bool           // the response has no golden file, because separate tests check it
}

// operationRows returns one test case for each operation of the document: see
// TestEveryOperationHasARow.
func operationRows() []row {
	return slices.Concat(
		systemRows(), accountRows(), keyRows(), secretRows(), modelRows(), datasetRows(), evaluatorRows(),
		jobRows("supervisedFineTuningJobs", `"baseModel": "accounts/default/models/anneal-base", "epochs": 2`),
		jobRows("dpoJobs", `"trainingConfig": {"baseModel": "accounts/default/models/anneal-base", "epochs": 2}`),
		jobRows("reinforcementFineTuningJobs",
			`"evaluator": "accounts/acme/evaluators/exact", "trainingConfig": {"baseModel": `+
				`"accounts/default/models/anneal-base"}`),
		jobRows("rlorTrainerJobs",
			`"trainingConfig": {"baseModel": "accounts/default/models/anneal-base"}, "rewardWeights": ["accuracy=1"]`),
		[]row{{id: "estimateSupervisedFineTuningJobCost", scene: aFilledOne,
			request: "POST /v1/accounts/acme/supervisedFineTuningJobs:estimateCost user\n{\"supervisedFineTuningJob\": " +
				"{\"dataset\": \"accounts/acme/datasets/rows\", \"epochs\": 3}}"}},
		trainingRows(), fileRows(), fineTuningRows(), batchRows(), shapeRows(), deploymentRows(), addonRows(),
		nodeRows(), quotaRows(), backupRows(), rebuildRows(), subscriptionRows(), usageRows(), inferenceRows(),
		serviceRows(),
	)
}

// set sends the requests of a setup transcript, and requires that all of them succeed.
func (s *harness) set(scene string) {
	s.Helper()
	for line := range strings.Lines(play(s, scene)) {
		require.False(s, strings.HasPrefix(line, "< 4") || strings.HasPrefix(line, "< 5"),
			"a setup request fails:\n%s", scene)
	}
}

// briefly is the query that selects those fields of events that are the same in every run.
const briefly = "?pageSize=2&readMask=type,subject,time,position"

// aLogin is a request that counts as a login, and logins the query that lists its audit record
// without the fields that differ in every run.
const (
	aLogin = "> GET /v1/accounts/acme/apiKeys/admin admin\n\n"
	logins = "?filter=kind%3DLOGIN_ACCEPTED&readMask=kind,account,actor,apiKey,clientAddress,method,operation,path," +
		"status,controlPlane"
)

// Setup transcripts that several test cases share. Empty lines separate their requests.
const (
	aDataset = "> POST /v1/accounts/acme/datasets user\n> {\"datasetId\": \"rows\", \"dataset\": " +
		"{\"displayName\": \"Capitals\"}}\n\n"
	threeRows  = "{\"text\": \"Lima\"}\n{\"text\": \"Quito\"}\n{\"text\": \"Cusco\"}"
	aFilledOne = aDataset + "> POST /v1/accounts/acme/datasets/rows:upload user upload=rows.jsonl\n> {\"text\": " +
		"\"Lima\"}\n> {\"text\": \"Quito\"}\n> {\"text\": \"Cusco\"}\n\n"
	aStoreSecret = "> POST /v1/accounts/acme/secrets admin\n> {\"name\": \"store\", \"keyName\": \"STORE\", " +
		`"value": "{\"access_key_id\": \"a\", \"secret_access_key\": \"canary\"}"}` + "\n\n"
	anAddon = "! addon accounts/acme/models/polite\n"
	aShape  = "> POST /v1/accounts/acme/deploymentShapes user\n> {\"deploymentShapeId\": \"small\", " +
		"\"deploymentShape\": {\"baseModel\": \"accounts/default/models/anneal-base\", \"acceleratorType\": " +
		"\"VENDOR_A_L4_24GB\", \"acceleratorCount\": 1}}\n\n"
	aReviewed = aShape + "> PATCH /v1/accounts/acme/deploymentShapes/small/versions/v1 admin\n> {\"validated\": " +
		"true}\n\n"
	aDeployment = "> POST /v1/accounts/acme/deployments?deploymentId=d user\n> {\"baseModel\": " +
		"\"accounts/default/models/anneal-base\", \"enableAddons\": true, \"maxReplicaCount\": 2}\n\n"
	aCandidate = "> POST /v1/accounts/acme/deployments?deploymentId=e user\n> {\"baseModel\": " +
		"\"accounts/default/models/anneal-base\"}\n\n"
	aRelease = aCandidate + "> POST /v1/accounts/acme/deployments/d:startRelease user\n> {\"candidate\": " +
		"\"accounts/acme/deployments/e\"}\n\n"
	aSpeechDeployment = "! speech accounts/acme/models/ear\n> POST /v1/accounts/acme/deployments?deploymentId=d user\n> " +
		"{\"baseModel\": \"accounts/acme/models/ear\"}\n\n! serve accounts/acme/deployments/d\n"
	aServing   = aDeployment + "! serve accounts/acme/deployments/d\n"
	aLoadedOne = anAddon + aDeployment +
		"> POST /v1/accounts/acme/deployedModels?deployedModelId=polite user\n> {\"model\": " +
		"\"accounts/acme/models/polite\", \"deployment\": \"accounts/acme/deployments/d\"}\n\n"
	anEvaluator = "> POST /v1/accounts/acme/evaluators user\n> {\"evaluatorId\": \"exact\", \"evaluator\": " +
		"{\"criteria\": [{\"type\": \"CODE_SNIPPETS\", \"name\": \"exact\", \"codeSnippets\": {\"language\": " +
		"\"python\", \"fileContents\": {\"main.py\": \"def evaluate(messages, **kwargs): return 1\"}, \"entryFile\": " +
		"\"main.py\", \"entryFunc\": \"evaluate\"}}]}}\n\n"
)

func systemRows() []row {
	return []row{
		{id: "getOpenAPI", request: "GET /openapi.json -", bulky: true},
		{id: "getHealth", request: "GET /healthz -"},
		{id: "getReadiness", request: "GET /readyz -"},
		{id: "getWriteReadiness", request: "GET /readyz/write -"},
		{id: "getProtectedResource", request: "GET /.well-known/oauth-protected-resource -"},
		{id: "getCaller", request: "GET /v1/caller user"},
		{id: "getDocs", request: "GET /docs -", bulky: true},
		{id: "getMetrics", request: "GET /metrics -", bulky: true},
		{id: "getDetailedMetrics", request: "GET /metrics/detailed operator", bulky: true},
		{id: "getDigest", request: "GET /v1/system/digest operator"},
		{id: "proveAnyEvent", request: "GET /v1/events/1:prove operator", bulky: true},
		{id: "proveEvent", request: "GET /v1/accounts/acme/events/1:prove admin", bulky: true},
		{id: "getLogCheckpoint", request: "GET /log/checkpoint operator", bulky: true},
		{id: "getLogTile", request: "GET /log/tile/0%2F000 operator", bulky: true},
		{id: "listAllAuditRecords", scene: aLogin, request: "GET /v1/auditRecords" + logins + " operator"},
		{id: "listAuditRecords", scene: aLogin, request: "GET /v1/accounts/acme/auditRecords" + logins +
			" admin"},
		{id: "listAllEvents", request: "GET /v1/events" + briefly + " operator"},
		{id: "getEventSchema", request: "GET /schemas/dataset.deleted.v1.json -"},
		{id: "getAsyncAPI", request: "GET /asyncapi.json -", bulky: true},
		{id: "listAccountEvents", request: "GET /v1/accounts/acme/events" + briefly + " user"},
	}
}

func accountRows() []row {
	const suspension = "POST /v1/accounts/acme:suspend operator\n{\"suspendState\": \"CREDIT_DEPLETED\"}"
	return []row{
		{id: "createAccount", request: "POST /v1/accounts operator\n{\"accountId\": \"new\", \"account\": " +
			"{\"displayName\": \"New\", \"email\": \"new@example.com\", \"accountType\": \"ENTERPRISE\"}}"},
		{id: "listAccounts", request: "GET /v1/accounts operator"},
		{id: "getAccount", request: "GET /v1/accounts/acme user"},
		{id: "updateAccount", request: "PATCH /v1/accounts/acme operator\n{\"displayName\": \"Acme & sons\"}"},
		{id: "suspendAccount", request: suspension},
		{id: "setAccountNodes", request: "POST /v1/accounts/acme:setNodes operator\n" +
			`{"nodeSelector": {"tier": "spot"}, "tolerations": [{"key": "dedicated", "value": "acme"}]}`},
		{id: "setQueueWeight", request: "POST /v1/accounts/acme:setQueueWeight operator\n{\"queueWeight\": 2}"},
		{id: "setJobAccelerators", request: "POST /v1/accounts/acme:setJobAccelerators operator\n" +
			`{"rows": [{"maxParameterCount": "70000000000", "acceleratorType": "VENDOR_A_H100_80GB", ` +
			`"acceleratorCount": 8}, {"method": "dpo", "maxParameterCount": 8000000000, "acceleratorCount": 2}]}`},
		{id: "restoreAccount", scene: marked(suspension), request: "POST /v1/accounts/acme:restore operator"},
	}
}

// marked returns a request as a line of a transcript.
func marked(request string) string {
	return "> " + strings.ReplaceAll(request, "\n", "\n> ") + "\n\n"
}

// unmarked returns the only request of a setup transcript.
func unmarked(scene string) string { return strings.TrimSpace(strings.ReplaceAll(scene, "> ", "")) }

func keyRows() []row {
	const one = "POST /v1/accounts/acme/apiKeys admin\n{\"apiKeyId\": \"k\", \"apiKey\": {\"displayName\": \"for a " +
		"test\", \"role\": \"inference\", \"expireTime\": \"2031-01-01T00:00:00Z\"}}"
	scene := marked(one)
	return []row{
		{id: "createApiKey", request: one},
		{id: "listApiKeys", scene: scene, request: "GET /v1/accounts/acme/apiKeys?filter=role=inference admin"},
		{id: "getApiKey", scene: scene, request: "GET /v1/accounts/acme/apiKeys/k admin"},
		{id: "listApiKeyEvents", scene: scene, request: "GET /v1/accounts/acme/apiKeys/k/events" + briefly + " admin"},
		{id: "deleteApiKey", scene: scene, request: "DELETE /v1/accounts/acme/apiKeys/k admin"},
	}
}

func secretRows() []row {
	const one = "POST /v1/accounts/acme/secrets admin\n{\"name\": \"tracker\", \"keyName\": \"TRACKER_KEY\", " +
		"\"value\": \"canary\"}"
	scene := marked(one)
	return []row{
		{id: "createSecret", request: one},
		{id: "listSecrets", scene: scene, request: "GET /v1/accounts/acme/secrets admin"},
		{id: "getSecret", scene: scene, request: "GET /v1/accounts/acme/secrets/tracker admin"},
		{id: "listSecretEvents", scene: scene, request: "GET /v1/accounts/acme/secrets/tracker/events" + briefly + " admin"},
		{id: "updateSecret", scene: scene,
			request: "PATCH /v1/accounts/acme/secrets/tracker admin\n{\"value\": \"another canary\"}"},
		{id: "deleteSecret", scene: scene, request: "DELETE /v1/accounts/acme/secrets/tracker admin"},
	}
}

func modelRows() []row {
	const one = "POST /v1/accounts/acme/models user\n{\"modelId\": \"m\", \"model\": {\"displayName\": \"Uploaded\", " +
		"\"kind\": \"HF_BASE_MODEL\"}}"
	lacking := func(s *harness) { // an upload that lacks config.json
		s.validateModels()
		s.set(marked(one))
		require.Equal(s, 400, s.uploadModel("m", "user",
			map[string]string{"model.safetensors": tinyModel["model.safetensors"],
				"tokenizer.json": tinyModel["tokenizer.json"]}).status)
	}
	whole := func(s *harness) {
		s.validateModels()
		s.set(marked(one))
		require.Equal(s, 200, s.uploadModel("m", "user", tinyModel).status)
	}
	return []row{
		{id: "createModel", request: one},
		{id: "listModels", scene: anAddon, request: "GET /v1/accounts/acme/models user"},
		{id: "getModel", scene: anAddon, request: "GET /v1/accounts/acme/models/polite user"},
		{id: "listModelEvents", scene: anAddon, request: "GET /v1/accounts/acme/models/polite/events" + briefly + " user"},
		{id: "updateModel", scene: anAddon,
			request: "PATCH /v1/accounts/acme/models/polite user\n{\"displayName\": \"Polite\"}"},
		{id: "deleteModel", scene: anAddon, request: "DELETE /v1/accounts/acme/models/polite user"},
		{id: "deleteFineTunedModel", scene: anAddon, request: "DELETE /v1/models/polite user"},
		{id: "uploadModel", prepare: lacking, request: "POST /v1/accounts/acme/models/m:upload user upload=config.json\n" +
			tinyModel["config.json"]},
		{id: "getModelUploadEndpoint", scene: marked(one),
			request: "POST /v1/accounts/acme/models/m:getUploadEndpoint user\n{\"filenameToSize\": {\"config.json\": 512, " +
				"\"model.safetensors\": \"1048576\"}}"},
		{id: "validateModelUpload", prepare: whole, request: "POST /v1/accounts/acme/models/m:validateUpload user"},
		{id: "getModelDownloadEndpoint", prepare: whole, request: "GET /v1/accounts/acme/models/m:getDownloadEndpoint user"},
		{id: "prepareModel", prepare: whole,
			request: "POST /v1/accounts/acme/models/m:prepare user\n{\"precision\": \"BF16\"}"},
	}
}

func datasetRows() []row {
	const one = "/v1/accounts/acme/datasets/rows"
	return []row{
		{id: "createDataset", request: "POST /v1/accounts/acme/datasets user\n{\"datasetId\": \"rows\", \"dataset\": " +
			"{\"displayName\": \"Capitals\", \"format\": \"COMPLETION\"}}"},
		{id: "listDatasets", scene: aDataset, request: "GET /v1/accounts/acme/datasets user"},
		{id: "getDataset", scene: aDataset, request: "GET " + one + " user"},
		{id: "listDatasetEvents", scene: aDataset, request: "GET " + one + "/events" + briefly + " user"},
		{id: "updateDataset", scene: aDataset,
			request: "PATCH " + one + " user\n{\"name\": \"accounts/acme/datasets/rows\", \"displayName\": \"Cities\"}"},
		{id: "deleteDataset", scene: aDataset, request: "DELETE " + one + " user"},
		{id: "uploadDataset", scene: aDataset, request: "POST " + one + ":upload user upload=rows.jsonl\n" + threeRows},
		{id: "getDatasetUploadEndpoint", scene: aDataset,
			request: "POST " + one + ":getUploadEndpoint user\n{\"filenameToSize\": {\"rows.jsonl\": 100}}"},
		{id: "validateDatasetUpload", scene: aFilledOne, request: "POST " + one + ":validateUpload user"},
		{id: "getDatasetDownloadEndpoint", scene: aFilledOne, request: "GET " + one + ":getDownloadEndpoint user"},
		{id: "previewDataset", scene: aFilledOne, request: "GET " + one + ":preview?pageSize=2 user"},
		{id: "importDataset", scene: aDataset,
			request: "POST " + one + ":import user\n{\"externalUrl\": \"s3://archive/chats/\"}"},
		{id: "exportDataset", scene: aFilledOne + aStoreSecret, request: "POST " + one + ":export user\n" +
			"{\"externalUrl\": \"s3://archive/chats/\", \"credentialsSecret\": \"accounts/acme/secrets/store\"}"},
	}
}

func evaluatorRows() []row {
	const one = "/v1/accounts/acme/evaluators/exact"
	const waiting = anEvaluator + "> PATCH " + one +
		"?prepareCodeUpload=true user\n> {\"name\": \"accounts/acme/evaluators/exact\"}\n\n"
	return []row{
		{id: "createEvaluator", request: unmarked(anEvaluator)},
		{id: "listEvaluators", scene: anEvaluator, request: "GET /v1/accounts/acme/evaluators user"},
		{id: "getEvaluator", scene: anEvaluator, request: "GET " + one + " user"},
		{id: "listEvaluatorEvents", scene: anEvaluator, request: "GET " + one + "/events" + briefly + " user"},
		{id: "updateEvaluator", scene: anEvaluator,
			request: "PATCH " + one +
				"?prepare_code_upload=true user\n{\"name\": \"accounts/acme/evaluators/exact\", \"description\": \"All or " +
				"nothing\"}"},
		{id: "deleteEvaluator", scene: anEvaluator, request: "DELETE " + one + " user"},
		{id: "getEvaluatorUploadEndpoint", scene: waiting,
			request: "POST " + one + ":getUploadEndpoint user\n{\"filenameToSize\": {\"main.py\": 20}}"},
		{id: "uploadEvaluator", scene: waiting,
			request: "POST " + one + ":upload user upload=main.py\ndef evaluate(messages, **kwargs): return 1"},
		{id: "validateEvaluatorUpload", scene: waiting + "! put accounts/acme/evaluators/exact\n",
			request: "POST " + one + ":validateUpload user"},
		{id: "previewEvaluator", request: "POST /v1/accounts/acme/evaluators:previewEvaluator user\n{\"evaluator\": " +
			"{\"criteria\": [{\"codeSnippets\": {\"fileContents\": {\"main.py\": \"def evaluate(messages, ground_truth): " +
			"return messages[-1]['content'] == ground_truth\"}}}]}, " +
			"\"sampleData\": [{\"messages\": [{\"role\": \"user\", \"content\": \"Capital of Peru?\"}, {\"role\": " +
			"\"assistant\", \"content\": \"Lima\"}], \"ground_truth\": \"Lima\"}]}"},
		{id: "getEvaluatorBuildLogEndpoint", scene: anEvaluator + "> PATCH " + one +
			" user\n> {\"name\": \"accounts/acme/evaluators/exact\", \"requirements\": \"numpy\"}\n\n! built " +
			"accounts/acme/evaluators/exact\n",
			request: "GET " + one + ":getBuildLogEndpoint user"},
	}
}

// jobRows returns the test cases of one kind of job. settings are the fields of a create's body
// besides the dataset.
func jobRows(collection, settings string) []row {
	path, singular := "/v1/accounts/acme/"+collection, strings.TrimSuffix(collection, "s")
	one, name := path+"/job", "accounts/acme/"+collection+"/job"
	create := fmt.Sprintf("POST %s?%sId=job user\n{\"dataset\": \"accounts/acme/datasets/rows\", %s}", path, singular,
		settings)
	needs := aDataset + anEvaluator
	scene := needs + marked(create)
	running := scene + "! checkpoint " + name + "\n"
	rows := []row{
		{id: "create" + wire.Capitalize(singular), scene: needs, request: create},
		{id: "list" + wire.Capitalize(collection), scene: scene, request: "GET " + path + " user"},
		{id: "get" + wire.Capitalize(singular), scene: scene, request: "GET " + one + " user"},
		{id: "list" + wire.Capitalize(singular) + "Events", scene: scene, request: "GET " + one + "/events" + briefly +
			" user"},
		{id: "delete" + wire.Capitalize(singular), scene: scene, request: "DELETE " + one + " user"},
		{id: "cancel" + wire.Capitalize(singular), scene: scene, request: "POST " + one + ":cancel user"},
		{id: "resume" + wire.Capitalize(singular), scene: running + "! cancelled " + name + "\n",
			request: "POST " + one + ":resume user"},
		{id: "set" + wire.Capitalize(singular) + "Priority", scene: running,
			request: "POST " + one + ":setPriority user\n{\"priority\": \"PRIORITY_HIGH\"}"},
		{id: "get" + wire.Capitalize(singular) + "MetricsFileEndpoint", scene: running,
			request: "GET " + one + ":getMetricsFileEndpoint user"},
		{id: "get" + wire.Capitalize(singular) + "TrainerLogsEndpoint", scene: running + "! log " + name + "\n",
			request: "GET " + one + ":getTrainerLogsEndpoint user"},
		{id: "list" + wire.Capitalize(singular) + "Checkpoints", scene: running, request: "GET " + one + "/checkpoints user"},
		{id: "promote" + wire.Capitalize(singular) + "Checkpoint", scene: running,
			request: "POST " + one + "/checkpoints/1-200:promote user\n{\"modelId\": \"kept\"}"},
	}
	if collection == "reinforcementFineTuningJobs" {
		rows = append(rows, row{id: "list" + wire.Capitalize(singular) + "Rollouts", scene: running,
			request: "GET " + one + "/rollouts user"})
	}
	return rows
}

// trainingRows returns the test cases of operations that only some kinds of jobs have.
func trainingRows() []row {
	const trainer = "accounts/acme/rlorTrainerJobs/kept"
	const scene = aDataset + "> POST /v1/accounts/acme/rlorTrainerJobs?rlorTrainerJobId=kept user\n> {\"dataset\": " +
		"\"accounts/acme/datasets/rows\", \"keepAlive\": true}\n\n! stepped " + trainer + "\n"
	return []row{
		{id: "executeTrainStep", scene: scene, request: "POST /v1/" + trainer +
			":executeTrainStep user\n{\"dataset\": \"accounts/acme/datasets/rows\", \"outputModel\": \"second\"}"},
	}
}

func shapeRows() []row {
	const one = "/v1/accounts/acme/deploymentShapes/small"
	return []row{
		{id: "createDeploymentShape", request: unmarked(aShape)},
		{id: "listDeploymentShapes", scene: aShape, request: "GET /v1/accounts/acme/deploymentShapes user"},
		{id: "getDeploymentShape", scene: aShape, request: "GET " + one + " user"},
		{id: "listDeploymentShapeEvents", scene: aShape, request: "GET " + one + "/events" + briefly + " user"},
		{id: "updateDeploymentShape", scene: aShape, request: "PATCH " + one + " user\n{\"precision\": \"FP8\"}"},
		{id: "deleteDeploymentShape", scene: aShape, request: "DELETE " + one + " user"},
		{id: "listDeploymentShapeVersions", scene: aReviewed, request: "GET " + one + "/versions user"},
		{id: "getDeploymentShapeVersion", scene: aReviewed, request: "GET " + one + "/versions/v1 user"},
		{id: "updateDeploymentShapeVersion", scene: aReviewed,
			request: "PATCH " + one + "/versions/v1 admin\n{\"public\": true}"},
		{id: "matchDeploymentShapeVersions", scene: aReviewed,
			request: "POST /v1/accounts/acme/deploymentShapeVersions:match user\n{\"createDeploymentRequest\": " +
				"{\"deployment\": {\"baseModel\": \"accounts/default/models/anneal-base\"}}}"},
	}
}

func deploymentRows() []row {
	const one = "/v1/accounts/acme/deployments/d"
	return []row{
		{id: "createDeployment", request: unmarked(aDeployment)},
		{id: "listDeployments", scene: aDeployment, request: "GET /v1/accounts/acme/deployments?showDeleted=true user"},
		{id: "getDeployment", scene: aDeployment, request: "GET " + one + " user"},
		{id: "listDeploymentEvents", scene: aDeployment, request: "GET " + one + "/events" + briefly + " user"},
		{id: "updateDeployment", scene: aServing,
			request: "PATCH " + one +
				" user\n{\"description\": \"for capitals\", \"autoscalingPolicy\": {\"scaleUpWindow\": \"1m\"}}"},
		{id: "deleteDeployment", scene: aDeployment, request: "DELETE " + one + "?ignoreChecks=true user"},
		{id: "scaleDeployment", scene: aServing, request: "PATCH " + one + ":scale user\n{\"replicaCount\": 2}"},
		{id: "startRelease", scene: aServing + aCandidate, request: "POST " + one + ":startRelease user\n{\"candidate\": " +
			"\"accounts/acme/deployments/e\", \"steps\": [5, 50], \"maxLatencyPercent\": 150}"},
		{id: "promoteRelease", scene: aServing + aRelease, request: "POST " + one + ":promoteRelease user\n{\"reason\": " +
			"\"reviewed\"}"},
		{id: "rollBackRelease", scene: aServing + aRelease, request: "POST " + one + ":rollBackRelease user\n{\"reason\": " +
			"\"too slow\"}"},
		{id: "undeleteDeployment", scene: aDeployment + "> DELETE " + one +
			" user\n\n! deleted accounts/acme/deployments/d\n", request: "POST " + one + ":undelete user"},
	}
}

func addonRows() []row {
	const one = "/v1/accounts/acme/deployedModels/polite"
	return []row{
		{id: "createDeployedModel", scene: anAddon + aDeployment,
			request: "POST /v1/accounts/acme/deployedModels?deployedModelId=polite user\n{\"model\": " +
				"\"accounts/acme/models/polite\", \"deployment\": \"accounts/acme/deployments/d\"}"},
		{id: "listDeployedModels", scene: aLoadedOne, request: "GET /v1/accounts/acme/deployedModels user"},
		{id: "getDeployedModel", scene: aLoadedOne, request: "GET " + one + " user"},
		{id: "listDeployedModelEvents", scene: aLoadedOne, request: "GET " + one + "/events" + briefly + " user"},
		{id: "updateDeployedModel", scene: aLoadedOne, request: "PATCH " + one + " user\n{\"default\": true}"},
		{id: "deleteDeployedModel", scene: aLoadedOne, request: "DELETE " + one + " user"},
	}
}

func nodeRows() []row {
	const one, scene = "/v1/accounts/system/nodes/n1", "! node accounts/system/nodes/n1\n"
	return []row{
		{id: "listNodes", scene: scene, request: "GET /v1/accounts/system/nodes operator"},
		{id: "getNode", scene: scene, request: "GET " + one + " operator"},
		{id: "listNodeEvents", scene: scene, request: "GET " + one + "/events" + briefly + " operator"},
		{id: "cordonNode", scene: scene, request: "POST " + one + ":cordon operator\n{\"reason\": \"new driver\"}"},
		{id: "taintNode", scene: scene,
			request: "POST " + one + ":taint operator\n{\"key\": \"dedicated\", \"value\": \"acme\"}"},
		{id: "untaintNode", scene: scene + "> POST " + one + ":taint operator\n> {\"key\": \"dedicated\"}\n",
			request: "POST " + one + ":untaint operator\n{\"key\": \"dedicated\"}"},
		{id: "drainNode", scene: scene,
			request: "POST " + one + ":drain operator\n{\"reason\": \"new driver\", \"deadline\": \"1800s\"}"},
		{id: "uncordonNode", scene: scene + "> POST " + one + ":cordon operator\n",
			request: "POST " + one + ":uncordon operator"},
		{id: "revokeNode", scene: scene, request: "POST " + one + ":revoke operator\n{\"reason\": \"stolen\"}"},
		{id: "deleteNode", scene: scene, request: "DELETE " + one + " operator"},
	}
}

func quotaRows() []row {
	const one = "/v1/accounts/acme/quotas/accelerators"
	const patch = "PATCH " + one + " operator\n{\"maxValue\": 4}"
	return []row{
		{id: "listQuotas", scene: marked(patch), request: "GET /v1/accounts/acme/quotas user"},
		{id: "getQuota", scene: marked(patch), request: "GET " + one + " user"},
		{id: "listQuotaEvents", scene: marked(patch), request: "GET " + one + "/events" + briefly + " user"},
		{id: "updateQuota", request: patch},
	}
}

func inferenceRows() []row {
	return []row{
		{id: "createCompletion", scene: aServing,
			request: "POST /inference/v1/completions inference\n{\"model\": \"accounts/acme/deployments/d\", \"prompt\": " +
				"\"one two three\", \"max_tokens\": 2}"},
		{id: "createChatCompletion", scene: aServing,
			request: "POST /inference/v1/chat/completions inference\n{\"model\": \"accounts/acme/deployments/d\", " +
				"\"messages\": [{\"role\": \"user\", \"content\": \"one two\"}]}"},
		{id: "createTranscription", scene: aSpeechDeployment,
			request: "POST /v1/audio/transcriptions inference upload=speech.wav with=model=accounts/acme/deployments/d " +
				"with=response_format=verbose_json with=timestamp_granularities=word,segment\ngo forward\nten meters"},
		{id: "createTranslation", scene: aSpeechDeployment,
			request: "POST /v1/audio/translations inference upload=speech.wav with=model=accounts/acme/deployments/d\ngo " +
				"forward"},
		{id: "createInferenceTranscription", scene: aSpeechDeployment,
			request: "POST /inference/v1/audio/transcriptions inference upload=speech.wav " +
				"with=model=accounts/acme/deployments/d with=response_format=srt\ngo forward\nten meters"},
		{id: "createInferenceTranslation", scene: aSpeechDeployment,
			request: "POST /inference/v1/audio/translations inference upload=speech.wav " +
				"with=model=accounts/acme/deployments/d\ngo forward"},
		{id: "listInferenceModels", scene: aServing, request: "GET /inference/v1/models inference"},
		{id: "getInferenceModel", scene: aServing,
			request: "GET /inference/v1/models/accounts%2Fdefault%2Fmodels%2Fanneal-base inference"},
		{id: "createResponse", scene: aServing,
			request: "POST /inference/v1/responses inference\n{\"model\": \"accounts/acme/deployments/d\", \"input\": " +
				"\"one two\"}"},
		{id: "createEmbedding", scene: aServing,
			request: "POST /inference/v1/embeddings inference\n{\"model\": \"accounts/acme/deployments/d\", \"input\": " +
				"[\"one two\", \"three\"]}"},
		{id: "createCompatibleCompletion", scene: aServing,
			request: "POST /v1/completions inference\n{\"model\": \"accounts/acme/deployments/d\", \"prompt\": \"one two " +
				"three\", \"max_tokens\": 2}"},
		{id: "createCompatibleChatCompletion", scene: aServing,
			request: "POST /v1/chat/completions inference\n{\"model\": \"accounts/acme/deployments/d\", \"messages\": " +
				"[{\"role\": \"user\", " +
				"\"content\": \"one two\"}]}"},
		{id: "createCompatibleResponse", scene: aServing,
			request: "POST /v1/responses inference\n{\"model\": \"accounts/acme/deployments/d\", \"input\": [{\"role\": " +
				"\"user\", \"content\": " +
				"\"one two\"}], \"instructions\": \"Count on.\"}"},
		{id: "createCompatibleEmbedding", scene: aServing,
			request: "POST /v1/embeddings inference\n{\"model\": \"accounts/acme/deployments/d\", \"input\": \"one two\", " +
				"\"dimensions\": 2}"},
		{id: "listCompatibleModels", scene: aServing, request: "GET /v1/models inference"},
		{id: "getCompatibleModel", scene: aServing, request: "GET /v1/models/accounts%2Facme%2Fdeployments%2Fd inference"},
	}
}
