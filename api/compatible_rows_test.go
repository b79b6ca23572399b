package api

import "anneal/domain"

// Setup transcripts for the operations of the OpenAI API.
const (
	aSupervisedJob = aFilledOne +
		"> POST /v1/accounts/acme/supervisedFineTuningJobs?supervisedFineTuningJobId=job user\n" +
		"> {\"dataset\": \"accounts/acme/datasets/rows\", \"baseModel\": \"accounts/default/models/anneal-base\"}\n\n"
	aRunningJob = aSupervisedJob + "! checkpoint accounts/acme/supervisedFineTuningJobs/job\n"
)

// fileRows returns the test cases of files.
func fileRows() []row {
	return []row{
		{id: "createFile", request: "POST /v1/files user upload=rows.jsonl with=purpose=fine-tune\n" + threeRows},
		{id: "listFiles", scene: aFilledOne, request: "GET /v1/files?purpose=fine-tune user"},
		{id: "getFile", scene: aFilledOne, request: "GET /v1/files/rows user"},
		{id: "getFileContent", scene: aFilledOne, request: "GET /v1/files/rows/content user"},
		{id: "deleteFile", scene: aFilledOne, request: "DELETE /v1/files/rows user"},
	}
}

// fineTuningRows returns the test cases of fine-tuning jobs.
func fineTuningRows() []row {
	const all, one = "/v1/fine_tuning/jobs", "/v1/fine_tuning/jobs/job"
	return []row{
		{id: "createFineTuningJob", scene: aFilledOne, request: "POST " + all + " user\n{\"model\": " +
			"\"accounts/default/models/anneal-base\", \"training_file\": \"rows\", \"suffix\": \"Capitals\", \"seed\": 7, " +
			"\"method\": {\"type\": \"supervised\", \"supervised\": {\"hyperparameters\": {\"n_epochs\": 2, \"batch_size\": " +
			"\"auto\"}}}}"},
		{id: "listFineTuningJobs", scene: aSupervisedJob, request: "GET " + all + " user"},
		{id: "getFineTuningJob", scene: aSupervisedJob, request: "GET " + one + " user"},
		{id: "listFineTuningEvents", scene: aRunningJob, request: "GET " + one + "/events?limit=4 user"},
		{id: "listFineTuningCheckpoints", scene: aRunningJob, request: "GET " + one + "/checkpoints user"},
		{id: "cancelFineTuningJob", scene: aRunningJob, request: "POST " + one + "/cancel user"},
		{id: "pauseFineTuningJob", scene: aSupervisedJob, request: "POST " + one + "/pause user"},
		{id: "resumeFineTuningJob", scene: aSupervisedJob + "> POST " + one + "/pause user\n\n",
			request: "POST " + one + "/resume user"},
	}
}

// aBatch is the setup transcript of a batch.
const aBatch = "! batch accounts/acme/batches/batch-1 accounts/acme/batchFiles/file-1\n"

// batchRows returns the test cases of batches.
func batchRows() []row {
	const all, one = "/v1/batches", "/v1/batches/batch-1"
	return []row{
		{id: "createBatch", scene: aBatch, request: "POST " + all + " user\n{\"input_file_id\": \"file-1\", " +
			"\"endpoint\": \"/v1/chat/completions\", \"completion_window\": \"24h\", \"metadata\": {\"night\": \"3\"}}"},
		{id: "listBatches", scene: aBatch, request: "GET " + all + "?limit=1 user"},
		{id: "getBatch", scene: aBatch, request: "GET " + one + " user"},
		{id: "cancelBatch", scene: aBatch, request: "POST " + one + "/cancel user"},
	}
}

func createsBatchFile(name domain.Name) domain.Intent {
	return domain.Intend(domain.BatchFiles, name, domain.CreateBatchFile{
		BatchFileSpec: domain.BatchFileSpec{Filename: "nightly.jsonl", Purpose: domain.PurposeBatch,
			Files: domain.Files{Prefix: "batches/acme/" + name.ID() + "/", Sizes: map[string]int64{"nightly.jsonl": 42}}}})
}

func createsBatch(name, input domain.Name) domain.Intent {
	return domain.Intend(domain.Batches, name, domain.CreateBatch{BatchSpec: domain.BatchSpec{Input: input,
		Endpoint: "/v1/chat/completions", Window: domain.BatchWindow}})
}
