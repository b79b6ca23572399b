package rest

// typeTexts describes this package's wire types in the API reference.
var typeTexts = map[string]string{
	"APIKey": "A key that authenticates requests of an account. Its role decides which requests it " +
		"may send.",
	"Account":        "A tenant, which owns datasets, models, jobs, deployments and API keys.",
	"Allocation":     "Resources of a node that a job or replica holds.",
	"AnnouncedFiles": "Files to upload: their sizes in bytes, by name.",
	"AutoTune":       "Performance profile of a deployment.",
	"AutoscalingPolicy": "When replicas of a deployment are added and removed. Windows are durations such as " +
		"\"30s\", at most \"3600s\".",
	"BlobStoreConfig": "Credentials of a job for a blob store.",
	"BuildLogURL":     "Signed URL of an evaluator's build log.",
	"Checkpoint": "A checkpoint of a job, from which the job can resume, and which can be promoted to a " +
		"model.",
	"CodeSnippets":            "Code of an evaluator in the request itself. Larger code must be uploaded as files.",
	"CreateDeploymentRequest": "Create request of a deployment, for which shapes are looked up.",
	"CostAnswer":              "The estimated cost of a job.",
	"CostQuestion":            "The job whose cost to estimate, in the format of its create request.",
	"CreatedAccount": "A new account with its first API key, which has the role admin. No other response " +
		"contains the key.",
	"Criterion":   "One criterion of an evaluator, with the code that scores responses.",
	"DPOJob":      "A job that trains a model on preferences between two responses.",
	"DPOLoss":     "Settings of the method DPO.",
	"DPOTraining": "Training settings of a DPO job. A zero value means the default.",
	"Dataset": "Rows of training or evaluation data. The content of a READY dataset is immutable. At most " +
		"one of userUploaded, evaluationResult, transformed, splitted and evalProtocol states its origin.",
	"DatasetExport": "An export of a dataset's files to an object store.",
	"ImportBody": "Object store from which to import rows. Without externalUrl, the rows are imported " +
		"from the externalUrl of the dataset with its credentialsSecret.",
	"ExportBody":              "Object store to which files are exported.",
	"DatasetEvaluationResult": "Evaluation that wrote the dataset.",
	"DatasetSplitted":         "Split of another dataset, of which this dataset is one part.",
	"DatasetTransformed":      "Dataset from which this dataset was copied, and the filter that selected its rows.",
	"DeployedModel":           "An addon that is loaded into a deployment of the addon's base model.",
	"HotLoad":                 "Hot-loaded weights that a deployment's replicas serve, are loading, and could not load.",
	"HotWeights":              "Weights of a trainer job that the replicas of a deployment hot-load.",
	"Deployment":              "A model that replicas on nodes serve.",
	"DeploymentShape":         "A reusable preset of the hardware and the serving settings of deployments.",
	"DeploymentShapeVersion":  "A version of a deployment shape. Only its fields validated and public can be changed.",
	"Digest": "Hashes of the state of all resources at one position of the log, with which two " +
		"servers can be compared.",
	"Evaluator": "Code that scores responses. Each build is a revision; a running job continues to use " +
		"the revision with which it started.",
	"PreviewQuestion":     "The evaluator to run in a preview, and the rows to score.",
	"PreviewAnswer":       "Scores of the rows in a preview of an evaluator.",
	"PreviewResult":       "Score of one row in a preview of an evaluator.",
	"PreviewedEvaluator":  "The evaluator to preview: the name of a stored evaluator, or code that is not stored yet.",
	"EvaluatorRevision":   "A revision of an evaluator that was built.",
	"EvaluatorSource":     "Where the code of an evaluator comes from, for information.",
	"InferenceParameters": "Sampling settings with which a reinforcement job generates rollouts.",
	"JobProgress":         "Progress of a job, as its trainer last reported it.",
	"JobQueue": "What a waiting job, or a deployment that lacks replicas, waits for, and its position in the " +
		"queue.",
	"EstimatedStartTime": "Estimate of the time at which a waiting job starts, or missing replicas are placed, as " +
		"percentiles: with a probability of 80 %, it is between earliest and latest. The estimate is based on the waits " +
		"of earlier jobs, or of earlier deployments, in the same situation.",
	"JobInputs":       "Parts of a job's dataset that the job uses for training and for evaluation.",
	"LossConfig":      "Loss function of a training job.",
	"Money":           "An amount of money in a currency.",
	"Model":           "A base model, an addon (LoRA adapter), or a speech model.",
	"ModelCopy":       "A copy of a model in another precision.",
	"Preparation":     "The copy of a model to create.",
	"Promotion":       "ID of the model that a checkpoint becomes.",
	"Quota":           "Limit of an account for one quantity, such as jobs, and the account's current usage.",
	"Node":            "A worker node, on which jobs and replicas run.",
	"NodeCordon":      "Why a node gets no new work, and when it was cordoned or drained.",
	"Device":          "State of an accelerator in a node.",
	"FailedDevice":    "An accelerator that has failed and is not used.",
	"Taint":           "A mark of a node that keeps away the work of accounts that do not tolerate it.",
	"Untaint":         "Key of the taint to remove from a node.",
	"NodePolicy":      "Which nodes the jobs and replicas of an account may use.",
	"JobPriority":     "Priority of a job among the jobs of its account.",
	"JobAccelerators": "Table that decides how many accelerators jobs get.",
	"JobAcceleratorRow": "Row of the table: the accelerators of jobs that train a model of at most this size " +
		"with this method.",
	"QueueWeight":       "Weight of an account in the queue of jobs.",
	"AccountNodes":      "Which nodes the jobs and replicas of an account may use.",
	"Cordon":            "Reason why a node is closed for new work.",
	"Drain":             "Reason for the drain of a node, and its deadline.",
	"ORPOLoss":          "Settings of the method ORPO, which trains without a reference model.",
	"ObjectStoreConfig": "Credentials of a job for an object store.",
	"SpeechSettings":    "Settings of a speech model.",
	"Placement": "In which regions replicas may run. At most one field may be set. The default is the " +
		"multi-region GLOBAL, which means all regions.",
	"Preview": "A page of the stored rows of a dataset.",
	"ReinforcementJob": "A job that generates responses, scores them with an evaluator, and trains the model " +
		"to get higher scores.",
	"Rollout":     "A response that the model in training generated for a row of the dataset, and its score.",
	"DeviceShare": "Part of a single accelerator that an allocation holds.",
	"PlacementReason": "Why the scheduler chose the node: it had the highest score of all nodes with enough " +
		"capacity or, for a replica with the strategy SPREAD, its failure domain had the fewest other replicas of the " +
		"deployment.",
	"ReplicaStats": "Numbers of replicas of a deployment by state.",
	"Resources":    "CPU, memory and accelerators.",
	"Scaling":      "Number of replicas that a deployment should have.",
	"Revocation":   "Reason why the access of a node is revoked.",
	"Secret": "A credential of a third-party service. Only the response to the request that sets the " +
		"value contains the value.",
	"ShapeMatch":     "The deployment for which to find shape versions.",
	"SignedURL":      "Signed URL of a file.",
	"SignedURLs":     "Signed URLs of files, by file name.",
	"Status":         "Result of the last operation on a resource.",
	"SupervisedJob":  "A job that fine-tunes a model on examples.",
	"Suspension":     "Reason why an account is suspended.",
	"TableDigest":    "Hash of the resources of one collection, and their number.",
	"ShardingScheme": "Degree of each kind of parallelism of a training job; 1 means no parallelism.",
	"TrackerConfig": "Run of a job in an experiment tracker: Weights & Biases, or the tracker that the " +
		"operator has configured.",
	"TrainStep":      "A train step of a reinforcement trainer job.",
	"TrainStepBody":  "Dataset and output model of the train step to start.",
	"TrainerJob":     "A reinforcement job that trains on responses that were generated and scored elsewhere.",
	"TrainingConfig": "Training settings of a job. A zero value means the default.",
	"UploadForm":     "Form with a file to upload.",
	"Violation":      "A rule that a field of a request violates.",
}
