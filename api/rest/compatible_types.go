package rest

// FileObject is a dataset or a batch file in the format of the OpenAI API's files.
type FileObject struct {
	ID            string `json:"id"`
	Object        string `json:"object"`
	Bytes         int64  `json:"bytes"`
	CreatedAt     int64  `json:"created_at"` // Unix seconds
	Filename      string `json:"filename"`
	Purpose       string `json:"purpose"`
	Status        string `json:"status"`
	StatusDetails string `json:"status_details,omitempty"`
}

// FileList is a page of files.
type FileList struct {
	Object  string       `json:"object"`
	Data    []FileObject `json:"data"`
	FirstID *string      `json:"first_id"`
	LastID  *string      `json:"last_id"`
	HasMore bool         `json:"has_more"`
}

// FileDeletion is the response to the deletion of a file.
type FileDeletion struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Deleted bool   `json:"deleted"`
}

// FineTuningBody is the body of a request that creates a fine-tuning job.
type FineTuningBody struct {
	Model           string                     `json:"model"`
	TrainingFile    string                     `json:"training_file"`
	ValidationFile  string                     `json:"validation_file,omitempty"`
	Method          *FineTuningMethod          `json:"method,omitempty"`
	Hyperparameters *FineTuningHyperparameters `json:"hyperparameters,omitempty"`
	Suffix          string                     `json:"suffix,omitempty"`
	Seed            *int                       `json:"seed,omitempty"`
	Integrations    []FineTuningIntegration    `json:"integrations,omitempty"`
	Metadata        map[string]string          `json:"metadata,omitempty"`
}

// FineTuningMethod is the method of a fine-tuning job. Its settings are in the field that Type
// names.
type FineTuningMethod struct {
	Type          string              `json:"type,omitempty"`
	Supervised    *FineTuningSettings `json:"supervised,omitempty"`
	DPO           *FineTuningSettings `json:"dpo,omitempty"`
	Reinforcement *FineTuningSettings `json:"reinforcement,omitempty"`
}

// FineTuningSettings has the settings of a fine-tuning method.
type FineTuningSettings struct {
	Hyperparameters *FineTuningHyperparameters `json:"hyperparameters,omitempty"`
	Grader          any                        `json:"grader,omitempty"`
	ResponseFormat  any                        `json:"response_format,omitempty"`
}

// FineTuningHyperparameters has the hyperparameters of a method. Each is a number, or "auto".
type FineTuningHyperparameters struct {
	Epochs                 any `json:"n_epochs,omitempty"`
	BatchSize              any `json:"batch_size,omitempty"`
	LearningRateMultiplier any `json:"learning_rate_multiplier,omitempty"`
	Beta                   any `json:"beta,omitempty"`
	ComputeMultiplier      any `json:"compute_multiplier,omitempty"`
	EvalInterval           any `json:"eval_interval,omitempty"`
	EvalSamples            any `json:"eval_samples,omitempty"`
	ReasoningEffort        any `json:"reasoning_effort,omitempty"`
}

// FineTuningIntegration is an experiment tracker to which the metrics of a job are sent.
type FineTuningIntegration struct {
	Type  string    `json:"type,omitempty"`
	WandB *WandBRun `json:"wandb,omitempty"`
}

// WandBRun states where Weights & Biases stores the metrics of a job.
type WandBRun struct {
	Project string   `json:"project,omitempty"`
	Entity  string   `json:"entity,omitempty"`
	Name    string   `json:"name,omitempty"`
	Tags    []string `json:"tags,omitempty"`
}

// FineTuningJob is a supervised, DPO or reinforcement job in the format of the OpenAI API.
type FineTuningJob struct {
	ID                 string                    `json:"id"`
	Object             string                    `json:"object"`
	CreatedAt          int64                     `json:"created_at"`  // Unix seconds
	FinishedAt         *int64                    `json:"finished_at"` // Unix seconds
	EstimatedFinish    *int64                    `json:"estimated_finish"`
	Model              string                    `json:"model"`
	FineTunedModel     *string                   `json:"fine_tuned_model"`
	OrganizationID     string                    `json:"organization_id"`
	Status             string                    `json:"status"`
	Error              *FineTuningError          `json:"error"`
	TrainingFile       string                    `json:"training_file"`
	ValidationFile     *string                   `json:"validation_file"`
	ResultFiles        []string                  `json:"result_files"`
	TrainedTokens      *int64                    `json:"trained_tokens"`
	Method             FineTuningMethod          `json:"method"`
	Hyperparameters    FineTuningHyperparameters `json:"hyperparameters"`
	Seed               *int                      `json:"seed"`
	UserProvidedSuffix *string                   `json:"user_provided_suffix"`
	Integrations       []FineTuningIntegration   `json:"integrations"`
	Metadata           map[string]string         `json:"metadata"`
}

// FineTuningError states why a fine-tuning job has failed.
type FineTuningError struct {
	Code    string  `json:"code"`
	Message string  `json:"message"`
	Param   *string `json:"param"`
}

// FineTuningJobList is a page of fine-tuning jobs.
type FineTuningJobList struct {
	Object  string          `json:"object"`
	Data    []FineTuningJob `json:"data"`
	HasMore bool            `json:"has_more"`
}

// FineTuningEvent is an event of a fine-tuning job, or the metrics of one of its steps.
type FineTuningEvent struct {
	ID        string         `json:"id"`
	Object    string         `json:"object"`
	CreatedAt int64          `json:"created_at"` // Unix seconds
	Level     string         `json:"level"`
	Message   string         `json:"message"`
	Type      string         `json:"type"`
	Data      map[string]any `json:"data"`
}

// FineTuningEventList is a page of the events of a fine-tuning job.
type FineTuningEventList struct {
	Object  string            `json:"object"`
	Data    []FineTuningEvent `json:"data"`
	HasMore bool              `json:"has_more"`
}

// FineTuningCheckpoint is a checkpoint of a fine-tuning job in the format of the OpenAI API.
type FineTuningCheckpoint struct {
	ID         string             `json:"id"`
	Object     string             `json:"object"`
	CreatedAt  int64              `json:"created_at"` // Unix seconds
	Model      string             `json:"fine_tuned_model_checkpoint"`
	JobID      string             `json:"fine_tuning_job_id"`
	StepNumber int                `json:"step_number"`
	Metrics    map[string]float64 `json:"metrics"`
}

// FineTuningCheckpointList is a page of the checkpoints of a fine-tuning job.
type FineTuningCheckpointList struct {
	Object  string                 `json:"object"`
	Data    []FineTuningCheckpoint `json:"data"`
	FirstID *string                `json:"first_id"`
	LastID  *string                `json:"last_id"`
	HasMore bool                   `json:"has_more"`
}
