package rest

import (
	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
)

// hyperparameter is the schema of a number above 0, or auto.
func hyperparameter(kind string, highest float64) wire.Rule {
	limits := wire.Schema{"type": kind, "maximum": highest, "exclusiveMinimum": 0}
	return wire.Rule{Instead: wire.Schema{"anyOf": []any{wire.Schema{"type": "string", "enum": []string{auto}}, limits}}}
}

// onlyDefault is the schema of a hyperparameter of OpenAI that anneal does not have.
var onlyDefault = wire.Rule{Instead: wire.Schema{"type": "string", "enum": []string{auto, "default"}}}

// compatibleRules constrain the values of fields of the OpenAI API.
var compatibleRules = map[string]wire.Rule{
	"FileForm.purpose":     wire.OneOf(filePurposes...),
	"FileObject.object":    wire.OneOf(fileObject),
	"FileObject.purpose":   wire.OneOf(append(filePurposes, domain.PurposeBatchOutput)...),
	"FileObject.status":    wire.OneOf(fileUploaded, fileProcessed, fileError),
	"FileList.object":      wire.OneOf(listObject),
	"FileDeletion.object":  wire.OneOf(fileObject),
	"ModelDeletion.object": wire.OneOf("model"),

	"FineTuningBody.suffix":       {MaxLength: domain.MaxSuffix},
	"FineTuningBody.seed":         wire.Between(0, domain.MaxSeed),
	"FineTuningBody.method":       {},
	"FineTuningBody.integrations": {MaxItems: 1},
	"FineTuningBody.metadata":     {},
	"FineTuningMethod.type": wire.OneOf(domain.MethodSupervised, domain.MethodDPO,
		domain.MethodReinforcement),
	"FineTuningSettings.grader": {Instead: wire.Schema{"type": "object", "required": []string{"type", "evaluator"},
		"properties": map[string]any{
			"type": wire.Schema{"type": "string", "enum": []string{graderType}, "description": "Type of the grader."},
			"evaluator": wire.Schema{"type": "string",
				"description": "ID or resource name of the evaluator that scores completions."}}}},
	"FineTuningSettings.response_format":                 {Instead: wire.Schema{"type": "null"}},
	"FineTuningHyperparameters.n_epochs":                 hyperparameter("integer", domain.MaxEpochs),
	"FineTuningHyperparameters.batch_size":               hyperparameter("integer", maxBatch),
	"FineTuningHyperparameters.learning_rate_multiplier": hyperparameter("number", domain.MaxLearningScale),
	"FineTuningHyperparameters.beta":                     hyperparameter("number", maxBeta),
	"FineTuningHyperparameters.compute_multiplier":       onlyDefault,
	"FineTuningHyperparameters.eval_interval":            onlyDefault,
	"FineTuningHyperparameters.eval_samples":             onlyDefault,
	"FineTuningHyperparameters.reasoning_effort":         onlyDefault,
	"FineTuningIntegration.type":                         wire.OneOf(wandb),
	"WandBRun.name":                                      {},

	"FineTuningJob.object":   wire.OneOf(fineTuningJob),
	"FineTuningJob.method":   {},
	"FineTuningJob.seed":     {},
	"FineTuningJob.metadata": {},
	"FineTuningJob.status": wire.OneOf(statusValidating, statusQueued, statusRunning, statusPaused, statusSucceeded,
		statusFailed, statusCancelled),
	"FineTuningJobList.object":        wire.OneOf(listObject),
	"FineTuningEvent.object":          wire.OneOf(fineTuningEvent),
	"FineTuningEvent.level":           wire.OneOf("info", "warn", "error"),
	"FineTuningEvent.type":            wire.OneOf("message", "metrics"),
	"FineTuningEventList.object":      wire.OneOf(listObject),
	"FineTuningCheckpoint.object":     wire.OneOf(fineTuningCheckpoint),
	"FineTuningCheckpointList.object": wire.OneOf(listObject),
}

const (
	objectText  = "Type of the object."
	createdText = "Time of creation, in Unix seconds."
	firstText   = "ID of the first item of this page; null for an empty page."
	lastText    = "ID of the last item of this page, for the parameter after; null for an empty page."
)

// compatibleTexts describe the fields of the OpenAI API.
var compatibleTexts = map[string]string{
	"FileForm.file": "The rows, as JSONL with one object per line: conversations, pairs of replies or prompts for " +
		"fine-tune, and requests for batch. Maximum " +
		"size: " + request.ByteSize(request.DefaultLimits.Upload) + ", unless the operator has configured another.",
	"FileForm.purpose":      "fine-tune for rows to train on, or batch for the requests of batches.",
	"FileObject.id":         "ID of the file. A file with the purpose fine-tune is the dataset with this ID.",
	"FileObject.object":     objectText,
	"FileObject.bytes":      "Size of the file, in bytes.",
	"FileObject.created_at": createdText,
	"FileObject.filename":   "Name of the file.",
	"FileObject.purpose":    "fine-tune, batch, or batch_output for the results of a batch.",
	"FileObject.status": "For the purpose fine-tune: uploaded until the rows are validated, then processed or error. " +
		"Files of batches are processed at once.",
	"FileObject.status_details": "What the file waits for, or why it has an error.",
	"FileDeletion.id":           "ID of the file.",
	"ModelDeletion.id":          "Name of the model, as the request has it.",
	"FileDeletion.object":       objectText,
	"ModelDeletion.object":      objectText,
	"deleted":                   "Always true.",
	"FileList.object":           objectText,
	"FileList.data":             "The files of this page.",
	"first_id":                  firstText,
	"last_id":                   lastText,
	"has_more":                  "Whether further items follow.",

	"FineTuningBody.model": "Name of the model to train, as in requests for completions: a base model, or an addon to " +
		"continue from.",
	"training_file": "ID of the file, or of any dataset, to train on.",
	"validation_file": "ID of the file, or of any dataset, to evaluate the model on. Not supported by dpo. In " +
		"responses, null without one.",
	"FineTuningBody.method": "Method of training. Default: supervised.",
	"FineTuningJob.method":  "Method of training.",
	"FineTuningMethod.type": "Method: supervised, dpo or reinforcement.",
	"supervised":            "Settings of the method supervised.",
	"FineTuningMethod.dpo":  "Settings of the method dpo.",
	"reinforcement":         "Settings of the method reinforcement.",
	"hyperparameters":       "Hyperparameters. At the top level of a request, they are for the method supervised.",
	"grader": "Evaluator that scores completions, for the method reinforcement. Graders of other types are " +
		"rejected: create an evaluator instead.",
	"FineTuningSettings.response_format": "Not supported: a request with it is rejected.",
	"n_epochs":                           "Number of epochs. auto: 1.",
	"batch_size":                         "Number of rows of one gradient batch. auto: the engine's default.",
	"learning_rate_multiplier": "Factor of the learning rate that the engine uses by default for the method and the " +
		"model. " +
		"auto: 1.",
	"FineTuningHyperparameters.beta":             "Weight of the distance from the reference model, for the method dpo.",
	"compute_multiplier":                         "Not supported: only auto or default is accepted.",
	"eval_interval":                              "Not supported: only auto or default is accepted.",
	"eval_samples":                               "Not supported: only auto or default is accepted.",
	"FineTuningHyperparameters.reasoning_effort": "Not supported: only auto or default is accepted.",
	"suffix": "Part of the name of the new model. In the name, letters become lower-case, and characters other than " +
		"letters and digits become hyphens.",
	"FineTuningBody.seed": "Random seed of the training. Default: generated.",
	"FineTuningJob.seed":  "Random seed of the training; null for a job whose seed is derived from its name.",
	"integrations": "Experiment tracker that receives the metrics: at most one. Its API key is the value of the " +
		"account's " +
		"secret " + trackerSecret + ".",
	"FineTuningIntegration.type": "Always wandb.",
	"wandb":                      "Project at Weights & Biases that receives the metrics.",
	"WandBRun.project":           "Name of the project.",
	"WandBRun.entity":            "Team or user. Default: that of the API key.",
	"WandBRun.name":              "Not supported: a request with it is rejected.",
	"WandBRun.tags":              "Not supported: a request with them is rejected.",
	"FineTuningBody.metadata": "Values for the client's own use: at most 16, with keys of at most 64 characters and " +
		"values of at most 512 characters.",
	"FineTuningJob.metadata": "The request's metadata.",

	"FineTuningJob.id":         "ID of the job.",
	"FineTuningJob.object":     objectText,
	"FineTuningJob.created_at": createdText,
	"finished_at":              "Time at which the job ended, in Unix seconds; null before.",
	"estimated_finish":         "Estimated time at which the job ends, in Unix seconds; null unless the job is running.",
	"FineTuningJob.model":      "Model that the job trains.",
	"fine_tuned_model":         "Name of the new model; null until the job has succeeded.",
	"organization_id":          "ID of the account.",
	"FineTuningJob.status": "State of the job: succeeded also for a job that was stopped early, and cancelled also " +
		"for a job that is still being cancelled.",
	"FineTuningJob.error":      "Why the job has failed; null otherwise.",
	"FineTuningError.code":     "Name of the canonical code, such as INVALID_ARGUMENT.",
	"FineTuningError.message":  "What is wrong, and what to do.",
	"FineTuningError.param":    "Always null.",
	"result_files":             "Always empty: the metrics are in the events, and in the job's metrics file.",
	"trained_tokens":           "Number of tokens of all training steps; null until the job has succeeded.",
	"user_provided_suffix":     "The request's suffix; null without one.",
	"FineTuningJobList.object": objectText,
	"FineTuningJobList.data":   "The jobs of this page.",

	"FineTuningEvent.id":         "ID of the event.",
	"FineTuningEvent.object":     objectText,
	"FineTuningEvent.created_at": "Time of the event, in Unix seconds.",
	"level":                      "info, warn or error.",
	"FineTuningEvent.message":    "Text of the event.",
	"FineTuningEvent.type":       "message, or metrics for the metrics of a step.",
	"FineTuningEvent.data":       "Metrics of the step, such as train_loss, or the type of the event in the log.",
	"FineTuningEventList.object": objectText,
	"FineTuningEventList.data":   "The events of this page.",

	"FineTuningCheckpoint.id":         "ID of the checkpoint.",
	"FineTuningCheckpoint.object":     objectText,
	"FineTuningCheckpoint.created_at": createdText,
	"fine_tuned_model_checkpoint": "Name of the new model for the last checkpoint of a job that has succeeded. For " +
		"other " +
		"checkpoints, the resource name of the checkpoint, which can be promoted to a model.",
	"fine_tuning_job_id":              "ID of the job.",
	"step_number":                     "Step of the checkpoint.",
	"FineTuningCheckpoint.metrics":    "Metrics at the step, such as train_loss and full_valid_loss.",
	"FineTuningCheckpointList.object": objectText,
	"FineTuningCheckpointList.data":   "The checkpoints of this page.",
}

// compatibleTypeTexts describe the types of the OpenAI API.
var compatibleTypeTexts = map[string]string{
	"FileForm":                  "A file to upload.",
	"FileObject":                "A dataset, or a file of a batch, as a file of the OpenAI API.",
	"FileList":                  "A page of files.",
	"FileDeletion":              "Confirmation that a file is deleted.",
	"ModelDeletion":             "Confirmation that a model is deleted.",
	"FineTuningBody":            "Model, rows and settings of a fine-tuning job.",
	"FineTuningMethod":          "Method of training, with the settings in the field that type names.",
	"FineTuningSettings":        "Settings of a method.",
	"FineTuningHyperparameters": "Hyperparameters: numbers, or auto for the default.",
	"FineTuningIntegration":     "Service that receives the metrics of a job.",
	"WandBRun":                  "Where an experiment tracker keeps the metrics of a job.",
	"FineTuningJob":             "A supervised, DPO or reinforcement job as a fine-tuning job of the OpenAI API.",
	"FineTuningError":           "Why a job has failed.",
	"FineTuningJobList":         "A page of jobs.",
	"FineTuningEvent":           "An event of a job, or the metrics of one of its steps.",
	"FineTuningEventList":       "A page of events.",
	"FineTuningCheckpoint":      "A checkpoint of a job.",
	"FineTuningCheckpointList":  "A page of checkpoints.",
}
