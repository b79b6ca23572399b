// Package engines defines the interfaces of engines: training, completion,
// transcription and scoring. The packages below it implement them; a worker's
// agent uses one implementation of each through these interfaces.
package engines

import (
	"context"
	"io"
	"math"
	"time"

	"anneal/domain"
)

// An Engine has the capabilities of a node. A field that is nil is a missing capability, and
// Missing has the reason.
type Engine struct {
	Name         string
	Trainer      Trainer
	Methods      []string        // supported training methods besides Supervised
	Programs     []string        // names of the engines that run another program to train or complete, such as vllm
	TrainPools   TrainPoolOpener // trains with loops of users; nil if the engine cannot
	Gang         string          // one of domain.GangAbilities, if Trainer is a GangTrainer; "" otherwise
	Completer    Completer
	Transcribers map[string]Transcriber // transcribers by the format of their speech models
	Scorer       Scorer
	// SharesDevices reports that Completer limits its memory to ModelFiles.DeviceShare.
	SharesDevices bool
	// Missing has the reason for each missing capability, and how to install it. The keys are
	// "train", "complete", "transcribe", "score", and "transcribe:" with a format.
	Missing map[string]string
}

// A Trainer runs an attempt of a training job.
//
// Train returns when the training is complete, when ctx is done (after it has passed its last
// checkpoint to watch), or when it fails. A *domain.Error with the code InvalidArgument or
// FailedPrecondition is permanent; after any other error the job is attempted again.
type Trainer interface {
	Train(ctx context.Context, request TrainRequest, watch TrainWatcher) (TrainResult, error)
}

// Values of TrainRequest.Method.
const (
	Supervised = domain.MethodSupervised
	DPO        = domain.MethodDPO // preference pairs, with the loss of DPO or ORPO
	// Reinforcement trains on responses that the model generates (rollouts), scored by an
	// evaluator.
	Reinforcement = domain.MethodReinforcement
	RLOR          = domain.MethodRLOR // responses whose rewards are in the dataset
)

// A TrainRequest is the input of a training attempt. All paths are on this node.
type TrainRequest struct {
	Method      string
	BaseDir     string          // Hugging Face directory of the base model
	AdapterDir  string          // PEFT directory of the adapter to continue; "" for none
	DataFiles   []string        // JSONL files with the training rows
	EvalFiles   []string        // JSONL files with held-out rows; may be empty
	ResumeDir   string          // directory of the checkpoint from which to resume; "" for none
	WorkDir     string          // directory for results and checkpoints, which the trainer creates if it needs it
	Evaluation  Evaluation      // evaluator that scores the rollouts of Reinforcement; the caller closes it
	OnRollouts  RolloutRecorder // receives the rollouts of Reinforcement; nil discards them
	Settings    TrainSettings
	Seed        uint64
	Parallelism int      // maximum number of cores; 0 stands for all but one
	Devices     []Device // allocated accelerators; empty if there are none
	Gang        *Gang    // nodes of the attempt; nil for one node, and if Trainer is no GangTrainer
	// Log receives the output of the programs that the trainer runs; nil discards it. Its Write
	// must not return errors.
	Log io.Writer
}

// TrainSettings are the hyperparameters of a job, with the defaults that domain.TrainingConfig
// documents.
type TrainSettings struct {
	Epochs       int     `json:"epochs"`
	LearningRate float64 `json:"learningRate"`
	// LearningRateMultiplier is the factor for the engine's default learning rate; 0 stands for 1.
	LearningRateMultiplier float64 `json:"learningRateMultiplier,omitempty"`
	// LoraRank is the rank of the adapter; 0 trains all parameters.
	LoraRank          int      `json:"loraRank"`
	LoraAlpha         float64  `json:"loraAlpha"`
	LoraDropout       float64  `json:"loraDropout"`
	LoraTargetModules []string `json:"loraTargetModules,omitempty"`
	// BatchSizeTokens is the maximum number of tokens in a batch; 0 stands for the engine's
	// default.
	BatchSizeTokens int `json:"batchSize"`
	// BatchSizeSamples is the maximum number of samples in a batch; 0 stands for the engine's
	// default.
	BatchSizeSamples          int     `json:"batchSizeSamples"`
	GradientAccumulationSteps int     `json:"gradientAccumulationSteps"`
	LearningRateWarmupSteps   int     `json:"learningRateWarmupSteps"`
	OptimizerWeightDecay      float64 `json:"optimizerWeightDecay"`
	// MaxContextLength is the maximum number of tokens in a sample; 0 stands for the model's
	// context length.
	MaxContextLength int  `json:"maxContextLength"`
	EarlyStop        bool `json:"earlyStop"`
	EvalAutoCarveout bool `json:"evalAutoCarveout"`
	// ReplayWeight is the weight in the loss of the mean divergence from the initial model on its
	// responses to synthetic prompts; 0 disables replay. Only for Supervised.
	ReplayWeight float64 `json:"replayWeight,omitempty"`
	// CheckpointSteps is the number of steps between checkpoints; 0 stands for the engine's
	// default.
	CheckpointSteps int `json:"checkpointSteps"`
	// JinjaTemplate is the chat template in Jinja; "" stands for the model's.
	JinjaTemplate string `json:"jinjaTemplate,omitempty"`

	// RewardWeights are the weights of the rewards for RLOR, by name of the reward. If it is empty,
	// every reward has the weight 1.
	RewardWeights map[string]float64 `json:"rewardWeights,omitempty"`
	Loss          *domain.LossConfig `json:"loss,omitempty"`     // loss function, for all methods except Supervised
	Rollouts      *Rollouts          `json:"rollouts,omitempty"` // how Reinforcement generates and scores responses
}

// Rollouts are the settings for the generation and scoring of rollouts.
type Rollouts struct {
	domain.InferenceParameters // sampling parameters of the responses; unset fields have their defaults
	// ChunkSize is the maximum number of dataset rows for which the model generates responses
	// before the next update of the policy.
	ChunkSize int `json:"chunkSize"`
	// MaxReplicas is the number of copies of the model that generate responses; 0 stands for 1.
	MaxReplicas int `json:"maxReplicas,omitempty"`
	// MaxConcurrent is the maximum number of responses that are generated concurrently; 0 stands
	// for the engine's default.
	MaxConcurrent int `json:"maxConcurrent,omitempty"`
	// MaxConcurrentEvaluations is the maximum number of responses that are scored concurrently; 0
	// stands for the engine's default.
	MaxConcurrentEvaluations int `json:"maxConcurrentEvaluations,omitempty"`
	// MaxStaleness is the number of chunks by which the policy that generates responses may be older
	// than the policy that is trained on them; 0 stands for responses of the current policy. Above 0,
	// responses are generated while earlier ones are trained on.
	MaxStaleness int `json:"maxStaleness,omitempty"`
}

// A TrainWatcher receives the progress of a training run. The trainer calls it from one goroutine.
type TrainWatcher interface {
	// Step is called after each optimizer step and after each evaluation.
	Step(Metrics)
	// Checkpoint is called with the directory of a complete checkpoint: a training that resumes
	// from it gives the same numbers as without an interruption. The directory also has
	// metrics.jsonl, with every row since step 1, and the subdirectory domain.CheckpointModel, with
	// the model in the format that engines load. The trainer waits until Checkpoint returns, and
	// stops if it returns an error. After that, the trainer may reuse dir.
	Checkpoint(ctx context.Context, step int, dir string) error
}

// Metrics is a row of a job's metrics file.
type Metrics struct {
	Step         int       `json:"step"`
	Steps        int       `json:"steps"` // expected number of steps of the job
	Epoch        float64   `json:"epoch"`
	Time         time.Time `json:"time"`
	LearningRate float64   `json:"learning_rate"`
	Tokens       int64     `json:"tokens"` // number of tokens of all steps so far
	// Values of metrics, by name, such as "train/loss", "eval/loss" or "reward/mean".
	Values map[string]float64 `json:"values"`
}

// NegligibleMetric is the absolute value below which a metric counts as the rounding error of a sum
// that is 0.
const NegligibleMetric = 1e-12

// RoundMetrics sets values to 0 whose absolute value is below NegligibleMetric, such as the loss
// -8.3e-17 of advantages that sum to 0.
func RoundMetrics(values map[string]float64) {
	for name, value := range values {
		if math.Abs(value) < NegligibleMetric {
			values[name] = 0 // also replaces a negative zero
		}
	}
}

// Metrics of rollouts, which count from the start of the job.
const (
	RolloutsExpected = "rollout/expected"      // planned number of rollouts
	RolloutsDone     = "rollout/done"          // number of rollouts that were generated and scored
	RolloutsFailed   = "rollout/failed"        // number of rollouts that were generated but got no valid score
	RolloutRows      = "rollout/rows"          // number of dataset rows with rollouts
	RolloutPrompts   = "rollout/prompt_tokens" // number of prompt tokens; a prompt counts once for each of its rollouts
	RolloutCached    = "rollout/cached_tokens" // number of prompt tokens that came from the prefix cache
	RolloutTokens    = "rollout/tokens"        // number of generated tokens
)

// A TrainResult is the outcome of a training run.
type TrainResult struct {
	// Directory below WorkDir with the result: a Hugging Face directory (all parameters) or a PEFT
	// directory (adapter).
	Dir          string
	Files        map[string][]byte // if Dir is "": files of the result by name; the caller may change the map
	Adapter      bool              // the result is a PEFT adapter
	Steps        int
	Tokens       int64
	StoppedEarly bool
	Reason       string             // why the training stopped early; "" unless StoppedEarly
	Values       map[string]float64 // last value of each metric
}

// A Completer loads language models.
type Completer interface {
	Load(ctx context.Context, files ModelFiles) (Model, error)
}

// ModelFiles are the directories of a model on this node, and the settings of its replica.
type ModelFiles struct {
	Dir         string // Hugging Face directory of the model
	AdapterDir  string // PEFT directory of the adapter to merge or apply; "" for none
	DraftDir    string // Hugging Face directory of a smaller model, which drafts the completions; "" for none
	Speculation SpeculationMode
	// ContextLength is the maximum number of tokens of prompt and completion; 0 stands for the
	// model's context length.
	ContextLength int
	Devices       []Device // allocated accelerators; if there are none, the engine chooses
	// DeviceShare is the part of the memory of the only device in Devices that the engine may use,
	// in thousandths, because other models share the device; 0 stands for the whole device.
	DeviceShare int
	// LongPrompts requests more prompt tokens per step: long prompts are computed sooner, and
	// running completions are delayed. It never changes a completion.
	LongPrompts bool

	// MemoryBytes is the host memory that is reserved for the model: its weights, its KV cache and
	// domain.ReplicaOverhead; 0 sets no limit. An engine with weights and KV cache in device memory
	// ignores it.
	MemoryBytes int64
	// DraftMemoryBytes is the part of MemoryBytes for the draft model.
	DraftMemoryBytes int64
}

// MaxDraftTokens is the maximum number of draft tokens in a step.
const MaxDraftTokens = 64

// A SpeculationMode configures speculative decoding with n-grams of the prompt and the completion
// so far, and with a draft model (ModelFiles.DraftDir). It never changes a completion, so an engine
// may ignore it.
type SpeculationMode struct {
	// NgramLength is the number of tokens that must match before a draft; 0 disables n-grams.
	NgramLength int `json:"ngramLength,omitempty"`
	// Tokens is the maximum number of draft tokens in a step; 0 stands for the engine's default.
	Tokens int `json:"tokens,omitempty"`

	Disabled bool `json:"disabled,omitempty"` // draft no tokens, even if a request has a predicted output
}

// A Model is a loaded language model. It is safe for concurrent use, and batches concurrent
// requests.
type Model interface {
	Info() ModelInfo
	// Complete generates one completion. It passes the completion to emit in chunks, which never
	// split a UTF-8 character; the last chunk has Finish set. It returns within one step after ctx
	// is done or emit has failed.
	Complete(ctx context.Context, req CompletionRequest, emit func(Chunk) error) (Usage, error)
	Close() error
}

// A FailureNotifier is a Model or SpeechModel that can fail permanently after it was loaded.
type FailureNotifier interface {
	// Failed returns a channel that receives the reason, once, when the model has failed
	// permanently.
	Failed() <-chan error
}

// ModelInfo describes a loaded model.
type ModelInfo struct {
	ContextLength  int   // maximum number of tokens of prompt and completion
	ParameterCount int64 // number of parameters of the base model
	Slots          int   // number of requests that the model serves concurrently
}
