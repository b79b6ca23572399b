package rest

// jobTexts describes the settings that several kinds of jobs have.
var jobTexts = map[string]string{
	"supervisedFineTuningJobId": "ID of the new job. The server generates one by default.",
	"supervisedFineTuningJob":   "The job whose cost to estimate.",
	"evaluationDataset":         "Resource name of the evaluation dataset.",
	"evalAutoCarveout": "Whether to hold out rows of the dataset, on which the job evaluates the model " +
		"instead of training on them.",
	"earlyStop": "Whether training stops when the evaluation loss no longer decreases. Without an " +
		"evaluationDataset, rows are held out as with evalAutoCarveout.",
	"replayWeight": "Reduces forgetting: the weight in the loss of the KL divergence from the initial " +
		"model on its own responses to synthetic prompts, from 0 to 100. 0 disables replay; " +
		"2 suits most datasets. The metrics train/divergence and eval/retention show the effect. " +
		"Only the embedded engine supports it.",
	"isTurbo": "Whether each node of the job gets twice as many CPU cores. The resulting model is " +
		"the same.",
	"nodes": "Number of nodes on which the job trains; 0 means 1. With the embedded engine, the " +
		"resulting model is the same for any number.",
	"nodeCount": "Number of nodes on which the job trains; 0 means 1. With the embedded engine, the " +
		"resulting model is the same for any number.",
	"mtpEnabled":         "Whether to train the model for multi-token prediction (MTP).",
	"mtpNumDraftTokens":  "Number of tokens that the model predicts with multi-token prediction (MTP).",
	"mtpFreezeBaseModel": "Whether training for multi-token prediction (MTP) leaves the base model unchanged.",
	"metricsFileSignedUrl": "Signed URL to which the server uploads the metrics file when the job has ended. " +
		"Responses and events show the URL without its query, which contains the signature.",
	"objectStoreConfig":       "Credentials of the job for an object store.",
	"blobStoreConfig":         "Credentials of the job for a blob store.",
	"credentialsSecret":       "Resource name of the secret with the credentials for the store.",
	"iamRoleArn":              "ARN of the IAM role to assume.",
	"managedIdentityClientId": "Client ID of the managed identity that is used instead of a secret.",
	"tenantId":                "Tenant ID of the managed identity.",
	"trackerConfig": "Run in an experiment tracker to which the server sends the parameters, the metrics " +
		"and the final state of the job. If the tracker rejects them, status.message has its error.",
	"enabled": "Whether the server sends data to the tracker. Then apiKey, project and entity are " +
		"required.",
	"project": "Name of the project in the tracker.",
	"entity":  "User or team in the tracker who owns the project.",
	"runId": "For Weights & Biases, the ID of the run, which may exist already; for MLflow, the " +
		"name of a new run. The default is derived from the name of the job.",
	"url":                   "URL of the run in the tracker.",
	"trainingConfig":        "Settings of the training.",
	"trainerShardingScheme": "How the training is divided among accelerators.",
	"tensorParallelism":     "Degree of tensor parallelism; 1 means none.",
	"pipelineParallelism":   "Degree of pipeline parallelism; 1 means none.",
	"contextParallelism":    "Degree of context parallelism; 1 means none.",
	"expertParallelism":     "Degree of expert parallelism; 1 means none.",
	"sequenceParallelism":   "Whether activations outside of matrix multiplications are sharded too.",
	"loraAlpha": "LoRA alpha: the output of the adapter is multiplied by alpha / rank. Absent if all " +
		"parameters are trained, and for jobs with warmStartFrom.",
	"loraDropout":               "Dropout probability of the LoRA adapter's inputs.",
	"outputModel":               "ID of the model that the job creates. The default is the ID of the job.",
	"warmStartFrom":             "Resource name of an addon that the job continues to train. It replaces baseModel.",
	"jinjaTemplate":             "Chat template (Jinja) that replaces the chat template of the model.",
	"learningRate":              "Peak learning rate; 0 means the engine's default.",
	"maxContextLength":          "Maximum context length in tokens; 0 means the context length of the model.",
	"epochs":                    "Number of passes over the rows of the dataset; 0 means the default.",
	"batchSize":                 "Number of tokens in a gradient batch; 0 means the engine's default.",
	"batchSizeSamples":          "Number of rows in a gradient batch; 0 means the engine's default.",
	"gradientAccumulationSteps": "Number of batches whose gradients are summed before an optimizer step; 0 means 1.",
	"learningRateWarmupSteps": "Number of optimizer steps in which the learning rate rises from 0 to its peak; 0 " +
		"means the default.",
	"optimizerWeightDecay": "Weight decay of the optimizer.",
	"lossConfig":           "Loss function of the training.",
	"method": "Method that defines the loss. The default is GRPO for reinforcement jobs and DPO " +
		"for DPO jobs.",
	"klBeta":              "Weight of the KL divergence in the loss of GRPO.",
	"dpo":                 "Settings of the method DPO.",
	"orpo":                "Settings of the method ORPO.",
	"beta":                "Beta of DPO, which limits the divergence from the reference model; 0 means the default.",
	"lambda":              "Weight of the odds ratio in the loss of ORPO; 0 means the default.",
	"refCacheConcurrency": "Number of concurrent forward passes of the reference model.",
	"refCacheBatchSize":   "Number of rows in a forward pass of the reference model.",
}

// progressTexts describes the progress and the other output fields of jobs.
var progressTexts = map[string]string{
	"completedTime": "Time at which the job ended.",
	"jobProgress":   "Progress of the job, as its trainer last reported it.",
	"priority": "Priority of the job among the jobs of its account: PRIORITY_LOW, " +
		"PRIORITY_NORMAL or PRIORITY_HIGH. Absent if it is PRIORITY_NORMAL.",
	"queue": "What the job waits for, and its position in the queue; absent if the job " +
		"does not wait.",
	"JobQueue.position": "Position of the job, or of the next replica of the deployment, in its queue, from 1. There is " +
		"one queue for each accelerator type and one for work without accelerators; each has jobs and replicas of all " +
		"accounts. They start in this order, except that one that fits can overtake one that does not. Absent in responses " +
		"to changes, and if the resource waits for something other than capacity or quota.",
	"JobQueue.length": "Number of jobs and replicas in the queue.",
	"JobQueue.waitingFor": "What the job or deployment waits for, such as capacity or the validation of a job's " +
		"dataset.",
	"JobQueue.since": "Time at which the job began to wait, or since which the deployment lacks replicas.",
	"JobQueue.estimatedStartTime": "Estimate of the time at which the job starts, or at which the missing replicas " +
		"of the deployment are placed: those within minReplicaCount or, if none of these is missing, all. " +
		"That of a job was made when it began to wait for capacity, unless that was not possible, or its latest time has " +
		"passed.",
	"JobQueue.noEstimateReason": "Why a job or deployment that waits for capacity has no estimatedStartTime. Estimates " +
		"are made from at least 4 earlier waits that were longer than this one.",
	"EstimatedStartTime.earliest": "10th percentile of the estimated start time: with a probability of 10 %, " +
		"it is earlier. With less than 9 earlier waits, the time at which the estimate was made: then, it is later than " +
		"the latest time with a probability of 20 %.",
	"EstimatedStartTime.median": "Median of the estimated start time: it is as likely earlier as later.",
	"EstimatedStartTime.latest": "90th percentile of the estimated start time: with a probability of 10 %, " +
		"it is later.",
	"estimatedCost": "Estimated cost of the job at the operator's prices; absent if the dataset " +
		"was not READY when the job was created.",
	"currencyCode": "Code of the currency (ISO 4217), such as USD.",
	"units":        "Whole units of the currency, such as dollars.",
	"nanos":        "Fraction of a unit, in billionths (10^-9) of a unit.",
	"acceleratorSeconds": "Time for which the job has held accelerators, in accelerator-seconds, by " +
		"accelerator type.",
	"attempt":              "Number of the job's current attempt, from 1; 0 before the first attempt.",
	"Checkpoint.attempt":   "Number of the attempt that wrote the checkpoint.",
	"inputDatasets":        "Parts of the job's dataset that the job uses for training and for evaluation.",
	"JobInputs.train":      "Resource name of the dataset with the rows for training.",
	"JobInputs.evaluation": "Resource name of the dataset with the rows for evaluation.",
	"percent":              "Progress of the job in percent.",
	"epoch":                "Number of completed epochs.",
	"step":                 "Number of completed optimizer steps.",
	"Checkpoint.step":      "Number of the optimizer step after which the checkpoint was written.",
	"Promotion.modelId":    "ID of the model that the checkpoint becomes.",
	"steps":                "Expected total number of optimizer steps.",
	"inputTokens": "Number of tokens that the job has read. For a reinforcement job, these are " +
		"the prompt tokens of all rollouts; for other jobs, the tokens on which it has trained.",
	"trainedTokens": "Number of tokens that the optimizer steps have processed, counted in each " +
		"epoch.",
	"secondsLeft": "Estimated remaining time of the job in seconds, from the duration of the " +
		"latest steps; absent if it is unknown.",
	"metrics":                                   "Metrics of the step by name, such as train/loss.",
	"JobProgress.totalInputRequests":            "Expected number of rollouts of a reinforcement job; 0 for other jobs.",
	"JobProgress.totalProcessedRequests":        "Number of rollouts that were generated and scored.",
	"JobProgress.successfullyProcessedRequests": "Number of rollouts with a valid score.",
	"JobProgress.failedRequests":                "Number of rollouts without a valid score.",
	"JobProgress.outputRows":                    "Number of dataset rows for which rollouts were generated.",
	"JobProgress.outputTokens": "Number of tokens that the model generated in rollouts. inputTokens " +
		"and outputTokens together are all tokens of the rollouts.",
	"JobProgress.cachedInputTokenCount": "Number of inputTokens that were found in the prefix cache.",

	"CostAnswer.estimatedCost": "Estimated cost of the job at the operator's prices.",
}

// rolloutTexts describes rollouts, reinforcement jobs and trainer jobs.
var rolloutTexts = map[string]string{
	"Rollout.step": "Number of the first optimizer step that trains on the response. In an evaluation, " +
		"the number of optimizer steps before the evaluation.",
	"Rollout.epoch":      "Number of epochs that were completed when the response was generated.",
	"Rollout.evaluation": "Whether the row is an evaluation row, on which the job does not train.",
	"Rollout.row": "Number of the row in its dataset, from 1. The job's field inputDatasets names the " +
		"datasets.",
	"Rollout.candidate":   "Number of the response among the responses to this row in this step, from 1.",
	"Rollout.input":       "Row of the dataset: the messages before the response, and its other fields.",
	"Rollout.response":    "Text of the response that the model generated.",
	"Rollout.reason":      "Explanation of the score that the evaluator returned, or why the score is invalid.",
	"Rollout.truncated":   "Whether texts of the rollout were truncated to the maximum size.",
	"trainStep":           "The latest train step of the job.",
	"TrainStep.number":    "Number of the train step, from 1.",
	"evaluatorRevision":   "Revision of the evaluator that the job uses; it is chosen when the job starts.",
	"inferenceParameters": "Sampling settings with which the model generates rollouts.",
	"maxOutputTokens":     "Maximum number of tokens of a response.",
	"temperature":         "Sampling temperature; 0 is greedy decoding.",
	"topP": "Nucleus sampling: the model samples from the most likely tokens whose probabilities " +
		"add up to topP.",
	"topK":                    "Number of most likely tokens from which the model samples; 0 means all.",
	"responseCandidatesCount": "Number of responses that the model generates for each row.",
	"extraBody":               "JSON object with further fields for the completion requests of rollouts.",
	"chunkSize": "Number of rows in each chunk into which a dataset of more than 300 rows is divided; " +
		"0 means the default.",
	"outputMetrics": "Which metrics the field outputStats has: names such as reward/mean and groups such " +
		"as train/, separated by commas. The default is reward/,rollout/. The metrics file has all metrics.",
	"mcpServer": "MCP server with tools that rollouts can call.",
	"maxInferenceReplicaCount": "Maximum number of replicas of the model that generate rollouts concurrently; 0 means " +
		"1. Each gets a CPU core, as long as cores are free when the job starts. The resulting model is the same.",
	"maxConcurrentRollouts": "Maximum number of rollouts that are generated concurrently; 0 means the engine's " +
		"default.",
	"maxConcurrentEvaluations": "Maximum number of responses that are scored concurrently; 0 means the engine's default.",
	"maxStaleness": "Number of chunks of rollouts by which the weights that generate rollouts may be older than " +
		"those that are trained on them. Above 0, rollouts are generated while the model trains on earlier ones.",
	"purpose": "Purpose of the job. A job with PURPOSE_PILOT, a trial, gets capacity after all other " +
		"waiting jobs.",
	"rewardWeights": "Weights of the rewards, each written NAME=WEIGHT.",
	"keepAlive":     "Whether the job waits for further train steps after it has trained on its dataset.",
	"serviceMode": "Whether the job trains only on request: it runs the train steps that requests start, and offers " +
		"a training service at the host name directRouteHandle.",
	"rolloutDeploymentName": "Resource name of the deployment that hot-loads the trained weights.",
	"hotLoadDeploymentId":   "ID of the deployment that hot-loads the checkpoints.",
	"directRouteHandle": "Host name of the training service of a job with serviceMode; absent if the server has no " +
		"domain for direct routes (--direct-domain).",
	"outputStats": "JSON text with the newest values of the metrics that outputMetrics selects; absent " +
		"before the first rollout.",
	"trainerLogsSignedUrl": "Signed URL of the job's log, a text with its progress and the output of its trainer. " +
		"Only the response to a get contains it, once there is a log.",

	"TrainStep.outputModel":     "ID of the model that the train step creates.",
	"TrainStepBody.outputModel": "ID or resource name of the model that the train step creates.",
}
