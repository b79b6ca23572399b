package engines

import (
	"context"
	"io"
)

// A TrainPoolOpener is an engine that opens pools of training runs.
type TrainPoolOpener interface {
	// OpenTrainPool loads a base model. FailedPrecondition is a permanent error: the engine does
	// not support the model or the precision, the model has another hash than the request, or the
	// machine has less memory than the model and data of MaxTokens tokens need. ResourceExhausted
	// means that less is free now.
	OpenTrainPool(ctx context.Context, request TrainPoolRequest) (TrainPool, error)
}

// A TrainPoolRequest selects the base model of a pool.
type TrainPoolRequest struct {
	BaseDir     string // Hugging Face directory of the base model
	BaseHash    string // expected hash of the base model's weights; "" accepts every model
	Precision   string // number format of products and sums; "" stands for PrecisionFloat32
	Parallelism int    // maximum number of cores; 0 stands for all but one
	// MaxTokens is the maximum number of tokens of a datum, at most the model's context length; 0
	// stands for DefaultTrainTokens. The memory that a pool needs grows with it.
	MaxTokens int
	// RunBytes is the maximum memory of the open runs and of the adapters of samplers together; 0
	// stands for half of the memory that is free after the pool was opened, and for
	// DefaultTrainRunBytes where that is unknown.
	RunBytes int64
	// SampleBytes is the maximum memory of the KV caches of samples, at least that of one sample
	// with MaxTokens tokens; 0 stands for DefaultTrainSampleBytes, or less if little memory is
	// free.
	SampleBytes int64
}

// Defaults of TrainPoolRequest.
const (
	DefaultTrainTokens      = 4096
	DefaultTrainRunBytes    = 1 << 30
	DefaultTrainSampleBytes = 256 << 20
)

// PrecisionFloat32 is the precision of pools that compute with float32.
const PrecisionFloat32 = "float32"

// A TrainPool trains the adapters of several runs on one base model, which is in memory once. It is
// safe for concurrent use, and computes concurrent passes of different runs together.
//
// The results of a run depend only on its own calls: they are bit-identical beside any other runs,
// with any number of cores, and after the run was saved and restored.
//
// Calls return Unavailable if the pool is closed or cannot continue: another pool must be opened.
type TrainPool interface {
	BaseHash() string
	// Kernel names the instructions that the pool computes with. Results are bit-identical in pools
	// with the same base model and kernel.
	Kernel() string
	MaxTokens() int // maximum number of tokens of a datum
	// CreateRun returns a run with a new adapter. It returns InvalidArgument if the configuration
	// is not valid, and ResourceExhausted with the reason TrainRunsTooLarge if the open runs would
	// have more than RunBytes. The adapter follows from the seed, and does not change the model
	// before the first step.
	CreateRun(ctx context.Context, config TrainRunConfig) (TrainRun, error)
	// RestoreRun returns a run from the state that TrainRun.Save wrote. It returns DataLoss if the
	// state is incomplete or damaged, and FailedPrecondition if it is that of a run on another base
	// model or of another engine. The run continues with bit-identical results, so RestoreRun
	// returns FailedPrecondition with the reason TrainKernelDiffers if the run's pool had another
	// Kernel, unless the options allow that. The run counts to RunBytes like a new one.
	RestoreRun(ctx context.Context, state io.Reader, options TrainRestoreOptions) (TrainRun, error)
	// OpenSampler returns a sampler with the adapter in a directory that TrainRun.Export has
	// written, or that of the base model if adapterDir is "". It does not read the directory later.
	// The adapter counts to RunBytes. It returns FailedPrecondition if the adapter belongs to
	// another base model.
	OpenSampler(ctx context.Context, adapterDir string) (TrainSampler, error)
	// Close frees the memory of the pool. Its runs and samplers must be closed first.
	Close() error
}

// TrainRestoreOptions say how a run is restored.
type TrainRestoreOptions struct {
	// ResetOptimizer restores the adapter only, with any kernel: the optimizer begins again,
	// without accumulated gradients.
	ResetOptimizer bool
	// AnyKernel allows a state of a pool with another Kernel. Results then differ by rounding from
	// those that the run would have had, and TrainRun.Warnings says so.
	AnyKernel bool
	Share     TrainShare // see TrainRunConfig.Share
}

// A TrainRunConfig describes the adapter of a run.
type TrainRunConfig struct {
	Rank         int     `json:"rank"`  // rank of the adapter, 1 to MaxTrainRank
	Alpha        float64 `json:"alpha"` // the adapter's update is scaled by Alpha/Rank; 0 stands for DefaultTrainAlpha
	Seed         uint64  `json:"seed"`  // seed of the initial adapter
	TrainAttn    bool    `json:"trainAttn"`
	TrainMLP     bool    `json:"trainMlp"`
	TrainUnembed bool    `json:"trainUnembed"` // an engine that cannot train it warns: see TrainRun.Warnings

	// Share is the account for which passes of the run are computed. It is not part of the run's
	// state.
	Share TrainShare `json:"-"`
}

// Limits and defaults of TrainRunConfig.
const (
	MaxTrainRank      = 64
	DefaultTrainAlpha = 32
)

// A TrainRun is one adapter in training, with its optimizer. Each method must have returned before
// the next one is called. A call that returns an error, other than one of ctx, changes nothing
// unless its method says otherwise. If the engine fails in a call, it returns Internal with the
// reason EnginePanicked, and so do all later calls except Close, unless the call was Forward, Save
// or Export. Other runs are not affected.
type TrainRun interface {
	Config() TrainRunConfig
	// Warnings has a message for each setting of the configuration that the engine does not follow,
	// and for a state that another kernel computed.
	Warnings() []string
	// Forward computes a pass without gradients. If the loss is not finite, it returns
	// FailedPrecondition with the reason TrainingDiverged.
	Forward(ctx context.Context, pass TrainPass) (TrainPassResult, error)
	// ForwardBackward is like Forward, and adds the gradient of the loss to the accumulated
	// gradient. Each element of the gradient is the sum over all tokens since the last step, in the
	// order of the data, so the gradient of one call is bit-identical to that of several calls with
	// parts of its data. A pass that has begun is completed even if ctx is done. If the loss is not
	// finite, the next Step discards the gradient.
	ForwardBackward(ctx context.Context, pass TrainPass) (TrainPassResult, error)
	// Step updates the adapter from the accumulated gradient, and sets the gradient to zero. It
	// returns FailedPrecondition with the reason TrainingDiverged, discards the gradient and keeps
	// the adapter and the optimizer, if the loss, the gradient or the norm of the new weights is
	// not finite.
	Step(ctx context.Context, optimizer AdamParams) (TrainStepResult, error)
	Steps() int // number of steps that were taken
	// Export writes the adapter to the directory dir, which must exist, in PEFT's format.
	Export(ctx context.Context, dir string) error
	// Save writes the complete state: adapter, optimizer, and accumulated gradient. Equal states
	// have equal bytes.
	Save(ctx context.Context, to io.Writer) error
	// Close frees the memory of the run. Other methods must not be called afterwards.
	Close() error
}

// TrainRunsTooLarge is the reason of the error for a run for which the pool has no memory.
const TrainRunsTooLarge = "TRAIN_RUNS_TOO_LARGE"

// TrainKernelDiffers is the reason of the error for a state of a pool with another Kernel.
const TrainKernelDiffers = "TRAIN_KERNEL_DIFFERS"

// TrainingDiverged is the reason of the error for a loss or a gradient that is not finite.
const TrainingDiverged = "TRAINING_DIVERGED"

// A TrainLoss is a loss function. Each is a sum over tokens, never a mean: ℓ is the log-probability
// of the target under the run's model, w its weight, A its advantage, q its log-probability under
// the old policy, which generated it, and r = exp(ℓ−q). A target adds nothing if its weight is 0,
// or if its advantage is 0 and the loss has no other term.
type TrainLoss string

// The loss functions.
const (
	LossCrossEntropy       TrainLoss = "cross_entropy"       // −Σ w·ℓ
	LossImportanceSampling TrainLoss = "importance_sampling" // −Σ w·r·A
	LossPPO                TrainLoss = "ppo"                 // −Σ w·min(r·A, clip(r)·A)
	LossCISPO              TrainLoss = "cispo"               // −Σ w·clip(r)·A·ℓ, with clip(r) as a constant
	LossDRO                TrainLoss = "dro"                 // −Σ w·(A·ℓ − β/2·(ℓ−q)²)
)

// A TrainPass is the input of a pass.
type TrainPass struct {
	Data []TrainDatum
	Loss TrainLoss // "" stands for LossCrossEntropy
	// ClipLow and ClipHigh are the bounds of clip(r) of LossPPO and LossCISPO; nil stands for
	// DefaultClipLow and DefaultClipHigh.
	ClipLow, ClipHigh *float64
	Beta              *float64 // β of LossDRO; nil stands for DefaultDROBeta
}

// Defaults of TrainPass.
const (
	DefaultClipLow  = 0.8
	DefaultClipHigh = 1.2
	DefaultDROBeta  = 0.05
)

// A TrainDatum is one sequence of n tokens, at most TrainPool.MaxTokens. With K targets for each
// token, slices with a value for each target have the length n·K: the targets of the first token
// come first. Only LossCrossEntropy allows K > 1.
type TrainDatum struct {
	Tokens  []int32   // input tokens
	Targets []int32   // target tokens; Targets[i] follows Tokens[i]
	Weights []float32 // weight of each target, with any sign; nil stands for 1 each

	// The following fields are required by all losses except LossCrossEntropy, which does not read
	// them. If they are set, they must have a finite number for each target.

	Advantages []float32
	Logprobs   []float32 // log-probability of each target under the old policy, which generated it
}

// A TrainPassResult is the result of a pass.
type TrainPassResult struct {
	Outputs []TrainOutput // outputs of the data, in order
	// Metrics has values by name. A name ends with a colon and the reduction that combines the
	// values of several passes, such as MetricLossSum.
	Metrics map[string]float64
}

// MetricLossSum is the loss of a pass, summed over its tokens.
const MetricLossSum = "loss:sum"

// A TrainOutput has the values of the targets of one datum.
type TrainOutput struct {
	// Logprobs are natural logarithms at temperature 1: the values, rounded to float32, that the
	// engine's models report for the same tokens and adapter.
	Logprobs []float32
	// Losses are the losses of the targets; nil unless the loss is LossCrossEntropy.
	Losses []float32
}

// AdamParams are the parameters of one step of AdamW (Loshchilov and Hutter 2019). All must be
// finite as float32, and LearningRate·WeightDecay at most 1.
type AdamParams struct {
	LearningRate float64 `json:"learningRate"`
	Beta1        float64 `json:"beta1"`
	Beta2        float64 `json:"beta2"`
	Epsilon      float64 `json:"eps"`
	WeightDecay  float64 `json:"weightDecay"`  // decoupled: weights are multiplied by 1 − LearningRate·WeightDecay
	GradClipNorm float64 `json:"gradClipNorm"` // maximum norm of the gradient; 0 stands for no maximum
}

// DefaultAdamParams returns the parameters of a step for which the request sets none.
func DefaultAdamParams() AdamParams {
	return AdamParams{LearningRate: 1e-4, Beta1: 0.9, Beta2: 0.95, Epsilon: 1e-12}
}

// A TrainStepResult is the result of a step.
type TrainStepResult struct {
	Step     int     // number of the step, from 1
	GradNorm float64 // norm of the gradient before clipping
}
