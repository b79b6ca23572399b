package rest

// jobTexts describe the settings that kinds of jobs share.
var jobTexts = map[string]string{
	"supervisedFineTuningJobId": "ID of the new job.",
	"supervisedFineTuningJob":   "The job.",
	"evaluationDataset":         "Resource name of the evaluation dataset.",
	"evalAutoCarveout":          "Whether to hold out rows of the dataset for evaluation.",
	"earlyStop": "Whether to stop when the evaluation loss no longer decreases. Without an evaluationDataset, rows are " +
		"held out as with evalAutoCarveout.",
	"isTurbo":            "Whether each node of the job gets twice the cores. The result is the same.",
	"nodes":              "Number of nodes that train; 0 means 1. The result is the same for any number.",
	"nodeCount":          "Number of nodes that train; 0 means 1. The result is the same for any number.",
	"mtpEnabled":         "Whether to train multi-token prediction.",
	"mtpNumDraftTokens":  "Number of tokens to predict with multi-token prediction.",
	"mtpFreezeBaseModel": "Whether multi-token prediction freezes the base model.",
	"metricsFileSignedUrl": "Signed URL to which the metrics file is uploaded when the job has ended. Responses and " +
		"events have the URL without its query string, which contains the signature.",
	"objectStoreConfig":       "Object store of the job.",
	"blobStoreConfig":         "Blob store of the job.",
	"credentialsSecret":       "Resource name of the secret with the credentials.",
	"iamRoleArn":              "ARN of the IAM role to assume.",
	"managedIdentityClientId": "Client ID of the managed identity to use instead of a secret.",
	"tenantId":                "Tenant ID of the managed identity.",
	"trackerConfig": "Run in an experiment tracker, which receives the parameters, metrics and end state of the " +
		"job. If the tracker rejects them, status.message contains its error.",
	"enabled": "Whether the tracker is used. If so, apiKey, project and entity are required.",
	"project": "Project at the tracker.",
	"entity":  "User or team at the tracker.",
	"runId": "ID of the run at Weights & Biases, where the job continues an existing run; for MLflow, the name of a " +
		"new run. Default: derived from the name of the job.",
	"url":                   "URL of the run at the tracker.",
	"trainingConfig":        "Training settings.",
	"trainerShardingScheme": "Degrees of parallelism.",
	"tensorParallelism":     "Degree of tensor parallelism.",
	"pipelineParallelism":   "Degree of pipeline parallelism.",
	"contextParallelism":    "Degree of context parallelism.",
	"expertParallelism":     "Degree of expert parallelism.",
	"sequenceParallelism":   "Whether activations outside of matrix multiplications are sharded too.",
	"loraAlpha": "LoRA alpha: the adapter's output is scaled by alpha / rank. Absent when all parameters are trained, " +
		"and with warmStartFrom.",
	"loraDropout":               "Dropout probability of the adapter's inputs.",
	"outputModel":               "ID of the model that the job creates. The default is the ID of the job.",
	"warmStartFrom":             "Resource name of an addon to continue training, instead of baseModel.",
	"jinjaTemplate":             "Chat template in place of the model's own.",
	"learningRate":              "Peak learning rate; 0 means the default.",
	"maxContextLength":          "Maximum context length in tokens; 0 means the context length of the model.",
	"epochs":                    "Number of passes over the rows; 0 means the default.",
	"batchSize":                 "Tokens per gradient batch; 0 means the default.",
	"batchSizeSamples":          "Rows per gradient batch; 0 means the default.",
	"gradientAccumulationSteps": "Batches whose gradients are summed before a step; 0 means the default.",
	"learningRateWarmupSteps":   "Steps in which the learning rate rises from 0; 0 means the default.",
	"optimizerWeightDecay":      "Weight decay of the optimizer.",
	"lossConfig":                "Loss function.",
	"method":                    "Loss method. The default is GRPO for reinforcement jobs and DPO for DPO jobs.",
	"klBeta":                    "Weight of the KL term of GRPO.",
	"dpo":                       "Settings of DPO.",
	"orpo":                      "Settings of ORPO.",
	"beta":                      "Beta of DPO: strength of the KL constraint to the reference model; 0 means the default.",
	"lambda":                    "Weight of the odds-ratio term of ORPO; 0 means the default.",
	"refCacheConcurrency":       "Concurrency of the passes through the reference model.",
	"refCacheBatchSize":         "Batch size of the passes through the reference model.",
}

// progressTexts describe the fields that jobs report.
var progressTexts = map[string]string{
	"completedTime": "Time at which the job ended.",
	"jobProgress":   "Progress.",
	"priority": "Order of the job among the jobs of its account: PRIORITY_LOW, PRIORITY_NORMAL or PRIORITY_HIGH. Absent " +
		"for PRIORITY_NORMAL.",
	"queue": "What the job waits for. Absent for a job that does not wait.",
	"JobQueue.position": "Number of jobs before this one in the queue, plus 1. There is one queue for each accelerator " +
		"type and one for jobs without accelerators; each has the jobs of all accounts. The jobs start in this order, " +
		"except that a job that does not fit can be overtaken. Absent in responses to changes, and for a job that " +
		"waits for something other than capacity or quota.",
	"JobQueue.length":     "Number of jobs in the queue.",
	"JobQueue.waitingFor": "What the job waits for.",
	"JobQueue.since":      "Time at which the job began to wait.",
	"JobQueue.estimatedStartTime": "Estimate of the start time, made when the job began to wait for capacity. Absent " +
		"while too few jobs have started after waiting, and after the latest time has passed.",
	"EstimatedStartTime.earliest": "One job in ten starts before this time.",
	"EstimatedStartTime.median":   "Half of the jobs start before this time.",
	"EstimatedStartTime.latest":   "One job in ten starts after this time.",
	"estimatedCost": "Estimated cost at the operator's prices; absent when the dataset was not READY at the creation of " +
		"the job.",
	"currencyCode":         "Currency code of ISO 4217.",
	"units":                "Whole units of the currency.",
	"nanos":                "Billionths of a unit.",
	"acceleratorSeconds":   "Device time used by the job in seconds, by device type.",
	"attempt":              "Number of the current attempt, from 1; 0 before the first attempt.",
	"Checkpoint.attempt":   "Attempt that wrote the checkpoint.",
	"inputDatasets":        "Parts of the job's dataset for training and for evaluation.",
	"JobInputs.train":      "Resource name of the training dataset.",
	"JobInputs.evaluation": "Resource name of the evaluation dataset.",
	"percent":              "Progress in percent.",
	"epoch":                "Number of completed epochs.",
	"step":                 "Number of completed steps.",
	"Checkpoint.step":      "Step after which the checkpoint was written.",
	"Promotion.modelId":    "ID of the new model.",
	"steps":                "Expected total number of steps.",
	"inputTokens": "Number of tokens that the job has read: the prompt tokens of the rollouts of a reinforcement job, " +
		"counted for each rollout; for other kinds of jobs, the tokens trained on.",
	"trainedTokens": "Number of tokens that the optimizer steps have processed, counted in each epoch.",
	"secondsLeft":   "Estimated remaining time in seconds, from the latest steps; absent when it is unknown.",
	"metrics":       "Metrics of the step, such as train/loss.",
	"JobProgress.totalInputRequests": "Expected total number of rollouts of a reinforcement job; 0 for other kinds of " +
		"jobs.",
	"JobProgress.totalProcessedRequests":        "Number of rollouts that were generated and scored.",
	"JobProgress.successfullyProcessedRequests": "Number of rollouts with a valid score.",
	"JobProgress.failedRequests":                "Number of rollouts without a valid score.",
	"JobProgress.outputRows":                    "Number of rows with rollouts.",
	"JobProgress.outputTokens": "Number of generated tokens of the rollouts. inputTokens and outputTokens " +
		"together are the tokens of all rollouts.",
	"JobProgress.cachedInputTokenCount": "Number of tokens of inputTokens that the prefix cache served.",

	"CostAnswer.estimatedCost": "Estimated cost at the operator's prices.",
}

// rolloutTexts describe reinforcement jobs and trainer jobs.
var rolloutTexts = map[string]string{
	"Rollout.step":            "First step that trains on the response. For an evaluation, the number of completed steps.",
	"Rollout.epoch":           "Number of completed epochs when the response was generated.",
	"Rollout.evaluation":      "Whether the row is one of the evaluation rows, which the job does not train on.",
	"Rollout.row":             "Number of the row in its dataset, from 1. See inputDatasets for the datasets of the job.",
	"Rollout.candidate":       "Number of the response to the row in this step, from 1.",
	"Rollout.input":           "The row: messages before the response, and its other fields.",
	"Rollout.response":        "Text of the response.",
	"Rollout.reason":          "Reason of the score that the evaluator returned, or why the score is invalid.",
	"Rollout.truncated":       "Whether texts of the rollout were shortened to their limit.",
	"trainStep":               "The latest train step.",
	"TrainStep.number":        "Number of the step, from 1.",
	"evaluatorRevision":       "Revision of the evaluator; it is fixed when the job starts.",
	"inferenceParameters":     "Sampling settings of the rollouts.",
	"maxOutputTokens":         "Maximum number of tokens per response.",
	"temperature":             "Sampling temperature; 0 always takes the most likely token.",
	"topP":                    "Nucleus sampling: sample from the most likely tokens whose probabilities sum to topP.",
	"topK":                    "Number of most likely tokens to sample from; 0 means all.",
	"responseCandidatesCount": "Number of responses per prompt.",
	"extraBody":               "JSON object with further parameters of the completion requests.",
	"chunkSize":               "Rows per chunk of a dataset with more than 300 rows; 0 means the default.",
	"outputMetrics": "Metrics in outputStats, separated by commas: names such as reward/mean, and groups such as " +
		"train/. The " +
		"default is reward/,rollout/. The metrics file has all metrics.",
	"mcpServer": "MCP server with tools for the rollouts.",
	"maxInferenceReplicaCount": "Maximum number of replicas of the model that generate rollouts " +
		"concurrently, 0 for 1. Each gets a core, as far as cores are free when the job starts. The result is the same.",
	"maxConcurrentRollouts":    "Number of concurrent rollouts; 0 means the default.",
	"maxConcurrentEvaluations": "Number of concurrent evaluations; 0 means the default.",
	"purpose": "Purpose of the job. PURPOSE_PILOT marks a trial, which gets capacity after all " +
		"other pending jobs.",
	"rewardWeights":         "Weight of each reward, as NAME=WEIGHT.",
	"keepAlive":             "Whether the trainer waits for further train steps after it has trained on its dataset.",
	"serviceMode":           "Whether the trainer gets its work in train steps.",
	"rolloutDeploymentName": "Resource name of the deployment that loads the trained weights.",
	"hotLoadDeploymentId":   "ID of the deployment that loads the checkpoints.",
	"directRouteHandle":     "Always absent: trainer jobs have no direct route.",
	"outputStats": "JSON text with the newest of the metrics that outputMetrics selects; absent before the first " +
		"rollout.",
	"trainerLogsSignedUrl": "Signed URL of the job's log as text: its progress and what its trainer wrote. Only the " +
		"response " +
		"to a get contains it, once there is a log.",

	"TrainStep.outputModel":     "ID of the model that the step creates.",
	"TrainStepBody.outputModel": "ID or resource name of the model that the step creates.",
}
