package rest

import (
	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
)

// hyperparameter returns the schema of a hyperparameter: a positive number, or "auto".
func hyperparameter(kind string, highest float64) wire.Rule {
	limits := wire.Schema{"type": kind, "maximum": highest, "exclusiveMinimum": 0}
	return wire.Rule{Instead: wire.Schema{"anyOf": []any{wire.Schema{"type": "string", "enum": []string{auto}}, limits}}}
}

// onlyDefault is the schema of a hyperparameter of the OpenAI API that anneal does not support:
// only the default is accepted.
var onlyDefault = wire.Rule{Instead: wire.Schema{"type": "string", "enum": []string{auto, "default"}}}

// compatibleRules constrains the values of fields of the OpenAI API.
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
	objectText  = "Type of the JSON object, such as file."
	createdText = "Time at which the object was created, in Unix seconds."
	firstText   = "ID of the first item of this page; null for an empty page."
	lastText    = "ID of the last item of this page, for the parameter after; null for an empty page."
)

// compatibleTexts describes the fields of the OpenAI API in the API reference.
var compatibleTexts = map[string]string{
	"FileForm.file": "File in JSONL, with one JSON object in each line: for fine-tune, conversations, " +
		"pairs of replies or prompts; for batch, requests. Maximum size: " +
		"" + request.ByteSize(request.DefaultLimits.Upload) + ", unless the operator has configured another limit.",
	"FileForm.purpose": "Purpose of the file: fine-tune for rows to train on, or batch for the requests of " +
		"batches.",
	"FileObject.id":         "ID of the file. A file with the purpose fine-tune is the dataset with this ID.",
	"FileObject.object":     objectText,
	"FileObject.bytes":      "Size of the file, in bytes.",
	"FileObject.created_at": createdText,
	"FileObject.filename":   "Name of the file.",
	"FileObject.purpose": "Purpose of the file: fine-tune; batch, for the requests of batches; or " +
		"batch_output, for the results of a batch.",
	"FileObject.status": "State of the file: uploaded until the rows are validated, then processed or error. " +
		"Files of batches are processed at once.",
	"FileObject.status_details": "What the file waits for, or why its rows are invalid.",
	"FileDeletion.id":           "ID of the deleted file.",
	"ModelDeletion.id":          "Name of the deleted model, as the request gave it.",
	"FileDeletion.object":       objectText,
	"ModelDeletion.object":      objectText,
	"deleted":                   "Always true: the deletion has succeeded.",
	"FileList.object":           objectText,
	"FileList.data":             "The files of this page.",
	"first_id":                  firstText,
	"last_id":                   lastText,
	"has_more":                  "Whether the list has items after this page.",

	"FineTuningBody.model": "Name of the model to train, as in completion requests: a base " +
		"model, or an addon whose training continues.",
	"training_file": "ID of a file, or of any dataset, with the rows to train on.",
	"validation_file": "ID of a file, or of any dataset, with the rows on which the model " +
		"is evaluated; null in a response if there is none. The method dpo does not support it.",
	"FineTuningBody.method": "Method of the training, with its settings. The default is supervised.",
	"FineTuningJob.method":  "Method of the training, with its settings.",
	"FineTuningMethod.type": "Name of the method: supervised, dpo or reinforcement.",
	"supervised":            "Settings of the method supervised.",
	"FineTuningMethod.dpo":  "Settings of the method dpo.",
	"reinforcement":         "Settings of the method reinforcement.",
	"hyperparameters": "Hyperparameters of the method. At the top level of a request, they " +
		"are those of the method supervised.",
	"grader": "Evaluator that scores completions, for the method reinforcement. " +
		"Graders of other types than evaluator are rejected: create an evaluator instead.",
	"FineTuningSettings.response_format": "Not supported: a request with this field is rejected.",
	"n_epochs":                           "Number of passes over the rows; auto means 1.",
	"batch_size":                         "Number of rows in a gradient batch; auto means the engine's default.",
	"learning_rate_multiplier": "Factor by which the engine's default learning rate for the method " +
		"and the model is multiplied; auto means 1.",
	"FineTuningHyperparameters.beta": "Beta of DPO, which limits the divergence from the reference model. " +
		"Only for the method dpo.",
	"compute_multiplier": "Not supported: values other than auto and default are rejected.",
	"eval_interval":      "Not supported: values other than auto and default are rejected.",
	"eval_samples":       "Not supported: values other than auto and default are rejected.",
	"FineTuningHyperparameters.reasoning_effort": "Not supported: values other than auto and default are rejected.",
	"suffix": "Text that becomes part of the new model's name, with letters in " +
		"lower case and other characters than letters and digits replaced by hyphens.",
	"FineTuningBody.seed": "Random seed of the training. By default, the server chooses one.",
	"FineTuningJob.seed": "Random seed of the training; null if the seed is derived from the " +
		"name of the job.",
	"integrations": "Experiment tracker to which the server sends metrics, at most one. " +
		"Its API key is the value of the account's secret " + trackerSecret + ".",
	"FineTuningIntegration.type": "Type of the tracker, always wandb (Weights & Biases).",
	"wandb":                      "Where Weights & Biases stores the metrics.",
	"WandBRun.project":           "Name of the project at Weights & Biases.",
	"WandBRun.entity": "Team or user at Weights & Biases who owns the project. The default " +
		"is that of the API key.",
	"WandBRun.name": "Not supported: a request with this field is rejected.",
	"WandBRun.tags": "Not supported: a request with this field is rejected.",
	"FineTuningBody.metadata": "Key-value pairs of the client: at most 16, with keys of at most 64 and " +
		"values of at most 512 characters.",
	"FineTuningJob.metadata": "Field metadata of the request.",

	"FineTuningJob.id":         "ID of the job.",
	"FineTuningJob.object":     objectText,
	"FineTuningJob.created_at": createdText,
	"finished_at":              "Time at which the job ended, in Unix seconds; null until then.",
	"estimated_finish": "Estimated time at which the job will end, in Unix seconds; null unless the job is " +
		"running.",
	"FineTuningJob.model": "Name of the model that the job trains.",
	"fine_tuned_model":    "Name of the model that the job creates; null until the job has succeeded.",
	"organization_id":     "ID of the account to which the job belongs.",
	"FineTuningJob.status": "State of the job. A job that was stopped early is succeeded, and a job whose " +
		"cancellation is in progress is cancelled.",
	"FineTuningJob.error":     "Why the job has failed; null unless its status is failed.",
	"FineTuningError.code":    "Name of the canonical code, such as INVALID_ARGUMENT.",
	"FineTuningError.message": "Message that says what failed and what to do.",
	"FineTuningError.param":   "Always null, because the error is not about a field of the request.",
	"result_files":            "Always empty, because the metrics are in the events of the job and in its metrics file.",
	"trained_tokens": "Number of tokens on which the job has trained in all steps; null until the job has " +
		"succeeded.",
	"user_provided_suffix":     "Field suffix of the request; null if the request had none.",
	"FineTuningJobList.object": objectText,
	"FineTuningJobList.data":   "The jobs of this page.",

	"FineTuningEvent.id":         "ID of the event.",
	"FineTuningEvent.object":     objectText,
	"FineTuningEvent.created_at": "Time of the event, in Unix seconds.",
	"level":                      "Severity of the event: info, warn or error.",
	"FineTuningEvent.message":    "Message that says what happened.",
	"FineTuningEvent.type":       "Type of the event: metrics for the metrics of a step, otherwise message.",
	"FineTuningEvent.data": "For type metrics, the metrics of the step, such as train_loss; otherwise the type " +
		"of the event in the log.",
	"FineTuningEventList.object": objectText,
	"FineTuningEventList.data":   "The events of this page.",

	"FineTuningCheckpoint.id":         "ID of the checkpoint.",
	"FineTuningCheckpoint.object":     objectText,
	"FineTuningCheckpoint.created_at": createdText,
	"fine_tuned_model_checkpoint": "For the last checkpoint of a job that has succeeded, the name of the model " +
		"that the job has created. For other checkpoints, the resource name of the checkpoint, which can be promoted to a " +
		"model.",
	"fine_tuning_job_id":              "ID of the job that wrote the checkpoint.",
	"step_number":                     "Number of the optimizer step after which the checkpoint was written.",
	"FineTuningCheckpoint.metrics":    "Metrics of the job at this step, such as train_loss and full_valid_loss.",
	"FineTuningCheckpointList.object": objectText,
	"FineTuningCheckpointList.data":   "The checkpoints of this page.",
}

// compatibleTypeTexts describes the types of the OpenAI API in the API reference.
var compatibleTypeTexts = map[string]string{
	"FileForm":                  "Form with a file to upload, and its purpose.",
	"FileObject":                "Dataset, or file of a batch, in the format of the OpenAI API's files.",
	"FileList":                  "A page of a list of files.",
	"FileDeletion":              "Confirmation that a file is deleted.",
	"ModelDeletion":             "Confirmation that a model is deleted.",
	"FineTuningBody":            "Request for a fine-tuning job: model, rows and settings.",
	"FineTuningMethod":          "Method of the training. Its settings are in the field that type names.",
	"FineTuningSettings":        "Settings of a training method.",
	"FineTuningHyperparameters": "Hyperparameters of a training method: numbers, or auto for the default.",
	"FineTuningIntegration":     "Experiment tracker to which the server sends the metrics of a job.",
	"WandBRun":                  "Where Weights & Biases stores the metrics of a job.",
	"FineTuningJob": "Supervised, DPO or reinforcement job in the format of the OpenAI API's fine-tuning " +
		"jobs.",
	"FineTuningError":          "Why a job has failed.",
	"FineTuningJobList":        "A page of a list of fine-tuning jobs.",
	"FineTuningEvent":          "An event of a fine-tuning job, or the metrics of one of its steps.",
	"FineTuningEventList":      "A page of a list of events of a fine-tuning job.",
	"FineTuningCheckpoint":     "A checkpoint of a fine-tuning job.",
	"FineTuningCheckpointList": "A page of a list of checkpoints.",
}
