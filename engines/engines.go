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

// An Engine is the set of capabilities of a node. A nil field is a missing capability; Missing
// reports why, and how to install it.
type Engine struct {
	Name         string
	Trainer      Trainer
	Methods      []string // training methods besides Supervised
	Programs     []string // names of the engines that train or complete with another program, such as vllm
	Completer    Completer
	Transcribers map[string]Transcriber // transcribers by speech model format
	Scorer       Scorer
	// SharesDevices reports that Completer obeys ModelFiles.DeviceShare.
	SharesDevices bool
	// Missing maps a missing capability ("train", "complete", "transcribe", "score", or
	// "transcribe:" and a format) to the reason why it is missing.
	Missing map[string]string
}

// A Trainer runs one attempt of a training job.
//
// Train returns when the job is complete, when ctx is done (after passing its
// last checkpoint to watch) or when it fails. A *domain.Error with code
// InvalidArgument or FailedPrecondition is permanent; after any other error the
// job is attempted again.
type Trainer interface {
	Train(ctx context.Context, request TrainRequest, watch TrainWatcher) (TrainResult, error)
}

// Values of TrainRequest.Method.
const (
	Supervised    = domain.MethodSupervised
	DPO           = domain.MethodDPO           // preference pairs, with the losses DPO or ORPO
	Reinforcement = domain.MethodReinforcement // rollouts of the model, scored by an evaluator
	RLOR          = domain.MethodRLOR          // samples with given rewards
)

// A TrainRequest is the input of a training attempt; all paths are local.
type TrainRequest struct {
	Method      string
	BaseDir     string          // Hugging Face directory of the base model
	AdapterDir  string          // PEFT directory to continue from, or ""
	DataFiles   []string        // JSONL
	EvalFiles   []string        // JSONL held out from training, may be empty
	ResumeDir   string          // a checkpoint of an earlier attempt, or ""
	WorkDir     string          // for results and checkpoints; does not exist: the trainer creates it if it needs it
	Evaluation  Evaluation      // scores the rollouts of Reinforcement; the caller closes it
	OnRollouts  RolloutRecorder // receives the rollouts of Reinforcement; may be nil
	Settings    TrainSettings
	Seed        uint64
	Parallelism int      // maximum number of busy cores; 0 uses all but one
	Devices     []Device // allocated accelerators; empty when none are allocated
	Gang        *Gang    // nil for an attempt on one node; a trainer that is no GangTrainer ignores it
	// Log receives what the programs of the trainer write; nil discards it. Its Write returns no error.
	Log io.Writer
}

// TrainSettings are the hyperparameters of a job. The defaults that domain.TrainingConfig documents
// are filled in.
type TrainSettings struct {
	Epochs                    int      `json:"epochs"`
	LearningRate              float64  `json:"learningRate"`
	LearningRateMultiplier    float64  `json:"learningRateMultiplier,omitempty"` // scales the engine's default; 0 is 1
	LoraRank                  int      `json:"loraRank"`                         // 0 trains all parameters
	LoraAlpha                 float64  `json:"loraAlpha"`
	LoraDropout               float64  `json:"loraDropout"`
	LoraTargetModules         []string `json:"loraTargetModules,omitempty"`
	BatchSizeTokens           int      `json:"batchSize"`        // maximum tokens in a batch; 0 = engine's default
	BatchSizeSamples          int      `json:"batchSizeSamples"` // maximum samples in a batch; 0 = engine's default
	GradientAccumulationSteps int      `json:"gradientAccumulationSteps"`
	LearningRateWarmupSteps   int      `json:"learningRateWarmupSteps"`
	OptimizerWeightDecay      float64  `json:"optimizerWeightDecay"`
	MaxContextLength          int      `json:"maxContextLength"` // 0 is the model's context length
	EarlyStop                 bool     `json:"earlyStop"`
	EvalAutoCarveout          bool     `json:"evalAutoCarveout"`
	CheckpointSteps           int      `json:"checkpointSteps"`         // interval of checkpoints; 0 = engine's default
	JinjaTemplate             string   `json:"jinjaTemplate,omitempty"` // chat template; "" is the model's

	// RewardWeights are the weights of rewards for RLOR, by reward name; with an empty map, every
	// reward has the weight 1.
	RewardWeights map[string]float64 `json:"rewardWeights,omitempty"`
	Loss          *domain.LossConfig `json:"loss,omitempty"`     // loss of all methods except Supervised
	Rollouts      *Rollouts          `json:"rollouts,omitempty"` // configuration of Reinforcement
}

// Rollouts configures the generation and scoring of rollouts.
type Rollouts struct {
	domain.InferenceParameters // sampling parameters, with the defaults filled in
	// ChunkSize is the maximum number of dataset rows sampled before the policy
	// is updated.
	ChunkSize                int `json:"chunkSize"`
	MaxReplicas              int `json:"maxReplicas,omitempty"`              // copies of the model that generate; 0 is 1
	MaxConcurrent            int `json:"maxConcurrent,omitempty"`            // generations at a time; 0 = engine's default
	MaxConcurrentEvaluations int `json:"maxConcurrentEvaluations,omitempty"` // scorings at a time; 0 = engine's default
}

// A TrainWatcher receives the progress of a training run. The trainer calls it from a single
// goroutine.
type TrainWatcher interface {
	// Step is called after each optimizer step and after each evaluation.
	Step(Metrics)
	// Checkpoint is called with a directory that holds a complete checkpoint: training resumed from it
	// gives the same numbers as without interruption. The directory also holds metrics.jsonl with
	// every row since step 1, and its subdirectory domain.CheckpointModel holds the model in the
	// format that engines load. The trainer waits until Checkpoint returns, and stops if Checkpoint
	// returns an error. The trainer may then reuse dir.
	Checkpoint(ctx context.Context, step int, dir string) error
}

// Metrics is one row of a job's metrics file.
type Metrics struct {
	Step         int                `json:"step"`
	Steps        int                `json:"steps"` // expected number of steps of the job
	Epoch        float64            `json:"epoch"`
	Time         time.Time          `json:"time"`
	LearningRate float64            `json:"learning_rate"`
	Tokens       int64              `json:"tokens"` // number of tokens trained on so far
	Values       map[string]float64 `json:"values"` // "train/loss", "eval/loss", "reward/mean" …
}

// NegligibleMetric is the absolute value below which a metric is the rounding error of a sum.
const NegligibleMetric = 1e-12

// RoundMetrics sets to 0 all values below NegligibleMetric, such as the loss -8.3e-17 of advantages
// whose exact sum is 0.
func RoundMetrics(values map[string]float64) {
	for name, value := range values {
		if math.Abs(value) < NegligibleMetric {
			values[name] = 0 // also for a negative zero
		}
	}
}

// Metrics of rollouts, each counted from the start of the job.
const (
	RolloutsExpected = "rollout/expected"      // planned number of rollouts
	RolloutsDone     = "rollout/done"          // rollouts generated and scored
	RolloutsFailed   = "rollout/failed"        // rollouts of RolloutsDone without a valid score
	RolloutRows      = "rollout/rows"          // dataset rows sampled
	RolloutPrompts   = "rollout/prompt_tokens" // prompt tokens, each counted once per rollout
	RolloutCached    = "rollout/cached_tokens" // tokens of RolloutPrompts taken from the prefix cache
	RolloutTokens    = "rollout/tokens"        // generated tokens
)

// A TrainResult is the outcome of a training run.
type TrainResult struct {
	Dir          string            // Hugging Face directory (all parameters) or PEFT directory (LoRA), below WorkDir
	Files        map[string][]byte // the files of that directory in memory instead, if Dir is ""; the caller may change it
	Adapter      bool              // the files are a PEFT adapter
	Steps        int
	Tokens       int64
	StoppedEarly bool
	Reason       string             // why training stopped early
	Values       map[string]float64 // latest value of each metric
}

// A Completer loads language models.
type Completer interface {
	Load(ctx context.Context, files ModelFiles) (Model, error)
}

// ModelFiles locates a model on this node's disk and holds the replica's settings.
type ModelFiles struct {
	Dir         string // Hugging Face directory
	AdapterDir  string // PEFT directory of the adapter applied to the model, or ""
	DraftDir    string // Hugging Face directory of a smaller model that drafts the completions, or ""
	Speculation SpeculationMode
	// ContextLength is the maximum number of tokens of prompt and completion; 0
	// is the model's context length.
	ContextLength int
	Devices       []Device // devices to run on; empty lets the engine choose
	// DeviceShare is the part of the memory of the one device in Devices that the engine may use, in
	// thousandths, because other models share the device; 0 is the whole device.
	DeviceShare int
	// LongPrompts asks for more prompt tokens in one step, which computes long prompts sooner and
	// delays running completions. It never changes a completion.
	LongPrompts bool

	// MemoryBytes is the host memory reserved for the model: its weights, its KV cache and
	// domain.ReplicaOverhead; 0 is no limit. An engine that keeps weights and KV cache in device
	// memory ignores MemoryBytes.
	MemoryBytes int64
	// DraftMemoryBytes is the part of MemoryBytes that is reserved for the draft model.
	DraftMemoryBytes int64
}

// MaxDraftTokens is the maximum number of draft tokens of one step.
const MaxDraftTokens = 64

// SpeculationMode configures speculative decoding with n-grams of the prompt and
// the completion so far, and with a draft model (ModelFiles.DraftDir). It never changes a
// completion, so an engine may ignore it.
type SpeculationMode struct {
	NgramLength int `json:"ngramLength,omitempty"` // tokens that must match before a draft; 0 disables n-grams
	Tokens      int `json:"tokens,omitempty"`      // maximum draft tokens of a step; 0 = engine's default

	Disabled bool `json:"disabled,omitempty"` // draft no tokens, not even for requests with a prediction
}

// A Model is a loaded language model. It is safe for concurrent use; concurrent
// requests are batched.
type Model interface {
	Info() ModelInfo
	// Complete generates one completion and passes it to emit in chunks that never
	// split a UTF-8 character; the last chunk has Finish set. It returns within one
	// step after ctx is done or emit fails.
	Complete(ctx context.Context, req CompletionRequest, emit func(Chunk) error) (Usage, error)
	Close() error
}

// A FailureNotifier is a Model or SpeechModel that can fail permanently after it was loaded.
type FailureNotifier interface {
	// Failed returns a channel that receives the cause, once, when the model has failed.
	Failed() <-chan error
}

// ModelInfo describes a loaded model.
type ModelInfo struct {
	ContextLength  int   // maximum number of tokens of prompt and completion
	ParameterCount int64 // parameters of the base model
	Slots          int   // requests served concurrently without queueing
}
