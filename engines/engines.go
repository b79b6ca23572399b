// Package engines says how work on models is asked for: training, completion,
// transcription and scoring. Implementations live in the folders below; a
// worker's agent holds one of each and never knows which.
package engines

import (
	"context"
	"time"

	"anneal/domain"
)

// An Engine is what a node can do. A nil part is a thing the node cannot do;
// Why says what is missing and how to install it.
type Engine struct {
	Name         string
	Trainer      Trainer
	Methods      []string // that the trainer knows beyond Supervised
	Completer    Completer
	Transcribers map[string]Transcriber // by the format of the speech models that they read
	Scorer       Scorer
	Why          map[string]string // part ("train", "complete", "transcribe", "score", or "transcribe:" and a format) → reason
}

// A Trainer carries out one attempt of a training job.
//
// Train returns when the job is finished, when ctx is done (its last
// checkpoint has then been handed to watch) or when it cannot go on. A
// *domain.Fault with code InvalidArgument or FailedPrecondition is the user's
// to mend and is not tried again; any other error is.
type Trainer interface {
	Train(ctx context.Context, order TrainOrder, watch TrainWatcher) (TrainResult, error)
}

// Training methods that a TrainOrder may name.
const (
	Supervised    = domain.MethodSupervised
	DPO           = domain.MethodDPO           // from pairs of answers, by DPO or ORPO
	Reinforcement = domain.MethodReinforcement // from the model's own answers, scored by an evaluator
	RLOR          = domain.MethodRLOR          // from samples that were scored elsewhere
)

// A TrainOrder is everything that a trainer needs; all paths are local.
type TrainOrder struct {
	Method      string
	BaseDir     string     // Hugging Face directory of the base model
	AdapterDir  string     // PEFT directory to continue from, or ""
	DataFiles   []string   // JSONL, in the formats of spec/gaps.md section 8
	EvalFiles   []string   // JSONL held out from training, or none
	ResumeDir   string     // a checkpoint that an earlier attempt handed over, or ""
	WorkDir     string     // empty and writable; results and checkpoints go below it
	Evaluation  Evaluation // that scores the model's answers, of Reinforcement; the caller closes it
	Settings    TrainSettings
	Seed        uint64
	Parallelism int // cores it may keep busy; 0 is one less than the machine has
}

// TrainSettings are the knobs of a job, with the defaults already filled in by
// the domain (domain.TrainingConfig says what they are).
type TrainSettings struct {
	Epochs                    int      `json:"epochs"`
	LearningRate              float64  `json:"learningRate"`
	LoraRank                  int      `json:"loraRank"` // 0 trains all parameters
	LoraAlpha                 float64  `json:"loraAlpha"`
	LoraDropout               float64  `json:"loraDropout"`
	LoraTargetModules         []string `json:"loraTargetModules,omitempty"`
	BatchSizeTokens           int      `json:"batchSize"`        // most tokens in one gradient batch; 0 = engine's default
	BatchSizeSamples          int      `json:"batchSizeSamples"` // most samples in one gradient batch; 0 = engine's default
	GradientAccumulationSteps int      `json:"gradientAccumulationSteps"`
	LearningRateWarmupSteps   int      `json:"learningRateWarmupSteps"`
	OptimizerWeightDecay      float64  `json:"optimizerWeightDecay"`
	MaxContextLength          int      `json:"maxContextLength"` // 0 is the model's window
	EarlyStop                 bool     `json:"earlyStop"`
	EvalAutoCarveout          bool     `json:"evalAutoCarveout"`
	CheckpointSteps           int      `json:"checkpointSteps"`         // steps between checkpoints; 0 = engine's default
	JinjaTemplate             string   `json:"jinjaTemplate,omitempty"` // by which chats are rendered; "" is the model's own

	RewardWeights map[string]float64 `json:"rewardWeights,omitempty"` // of RLOR, by the rewards' names; none = each weighs 1
	Loss          *domain.LossConfig `json:"loss,omitempty"`          // of all methods but Supervised, with its defaults
	Rollouts      *Rollouts          `json:"rollouts,omitempty"`      // of Reinforcement
}

// Rollouts say how a model answers while it learns from its own answers.
type Rollouts struct {
	domain.InferenceParameters     // with the defaults filled in
	ChunkSize                  int `json:"chunkSize"`                          // most rows of data that are answered between two looks at the policy
	MaxConcurrent              int `json:"maxConcurrent,omitempty"`            // answers generated at once; 0 = engine's default
	MaxConcurrentEvaluations   int `json:"maxConcurrentEvaluations,omitempty"` // answers scored at once; 0 = engine's default
}

// A TrainWatcher hears how a training goes, from one goroutine.
type TrainWatcher interface {
	// Step is called after each optimiser step, and after each evaluation.
	Step(Metrics)
	// Checkpoint is called when dir holds a complete checkpoint: an exact
	// resume from it gives the same numbers as no interruption. dir also holds
	// metrics.jsonl with every row since step 1. The trainer goes on when it
	// returns and stops when it returns an error; dir may be reused after.
	Checkpoint(ctx context.Context, step int, dir string) error
}

// Metrics is one row of a job's metrics file.
type Metrics struct {
	Step         int                `json:"step"`
	Steps        int                `json:"steps"` // expected in all
	Epoch        float64            `json:"epoch"`
	Time         time.Time          `json:"time"`
	LearningRate float64            `json:"learning_rate"`
	Tokens       int64              `json:"tokens"` // trained on so far
	Values       map[string]float64 `json:"values"` // "train/loss", "eval/loss", "reward/mean" …
}

// Metrics of trainers that have the model write answers and an evaluator score
// them: each counts from the beginning of the job.
const (
	RolloutsExpected = "rollout/expected"      // answers in all
	RolloutsDone     = "rollout/done"          // answers that were written and scored
	RolloutsFailed   = "rollout/failed"        // of those, the ones without a valid score
	RolloutRows      = "rollout/rows"          // rows that were answered
	RolloutTokens    = "rollout/tokens"        // tokens of the answers
	RolloutCached    = "rollout/cached_tokens" // tokens of prompts that had not to be read again
)

// A TrainResult says where the outcome lies and what it cost.
type TrainResult struct {
	Dir          string // Hugging Face directory (all parameters) or PEFT directory (LoRA), below WorkDir
	Adapter      bool   // Dir holds a PEFT adapter
	Steps        int
	Tokens       int64
	StoppedEarly bool
	Reason       string             // why it stopped early
	Values       map[string]float64 // the last of each metric
}

// A Completer makes models answer.
type Completer interface {
	Load(ctx context.Context, files ModelFiles) (Model, error)
}

// ModelFiles says where a model lies on this node's disk, and what it is to have there.
type ModelFiles struct {
	Dir        string // Hugging Face directory
	AdapterDir string // PEFT directory applied to it, or ""
	Guessing   SpeculationMode
	// ContextLength is the most tokens that a text may have, prompt and answer;
	// 0 is the model's window.
	ContextLength int
	Devices       []Device // that the model is to run on; none leaves it to the engine

	// MemoryBytes was set aside for the model on this machine: for its weights,
	// its cache, and domain.ReplicaOverhead beside them. An engine that keeps
	// them elsewhere passes it over; 0 is as much as the engine takes by itself.
	MemoryBytes int64
}

// MaxGuesses bounds the tokens that are guessed at once.
const MaxGuesses = 64

// SpeculationMode says how a model may guess ahead, which never changes an answer. An
// engine may pass it over.
type SpeculationMode struct {
	NgramLength int `json:"ngramLength,omitempty"` // tokens of a text that must have come in it before for what followed to be guessed; 0 is not to look
	Tokens      int `json:"tokens,omitempty"`      // most tokens guessed at once; 0 = engine's default
}

// A Model is loaded and answers until it is closed. It is safe for concurrent
// use; concurrent requests share its steps.
type Model interface {
	Info() ModelInfo
	// Complete generates one continuation and hands it to emit piece by piece,
	// never splitting a UTF-8 character; the last piece carries Finish. It
	// stops within one step when ctx is done or emit fails.
	Complete(ctx context.Context, req CompletionRequest, emit func(Chunk) error) (Usage, error)
	Close() error
}

// Breakable is what may break for good after it was loaded: a Model or Listener.
type Breakable interface {
	// Broken sends the reason, once, when it will not answer any more.
	Broken() <-chan error
}

// ModelInfo describes a loaded model.
type ModelInfo struct {
	ContextLength  int   // tokens
	ParameterCount int64 // of the base
	Slots          int   // requests answered at once without queueing
}
