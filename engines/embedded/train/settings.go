package train

import (
	"runtime"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/llama"
)

// Defaults of fields that are 0. They suit a few hundred short rows: many small steps at a high
// learning rate. The rates are for a hidden size of rateWidth and scale with 1/width above it,
// as the size of stable steps does (Yang et al., "Tensor Programs V", 2022).
const (
	defaultLoraRate    = 3e-3
	defaultFullRate    = 1e-3
	rateWidth          = 128
	defaultBatchTokens = 2048
	defaultSamples     = 8
	evaluations        = 10 // of a training, if there are rows to evaluate on
	patience           = 3  // evaluations without improvement, or chunks without a signal, before an early stop
)

// Defaults of preference and reinforcement learning. The rates of supervised training degrade a
// model here, because no likelihood term keeps it near given texts.
const (
	defaultNudgeRate     = 5e-4 // for an adapter
	defaultFullNudgeRate = 1e-4
	defaultAnswers       = 32   // samples of a micro-batch of scored answers
	defaultAnswerTokens  = 8192 // tokens of such a micro-batch
	defaultKLBeta        = 0.04 // Shao et al. 2024, section 4.2
	defaultOutput        = 512  // tokens of an answer
	defaultRollouts      = 32
	defaultEvaluations   = 8
)

// defaultRate is the learning rate of a method at a hidden size of rateWidth.
func defaultRate(method string, rank int) float64 {
	switch {
	case method == engines.Supervised && rank > 0:
		return defaultLoraRate
	case method == engines.Supervised:
		return defaultFullRate
	case rank > 0:
		return defaultNudgeRate
	}
	return defaultFullNudgeRate
}

// resolve sets defaults and validates the settings. The error is InvalidArgument with all
// violations.
func resolve(order engines.TrainRequest, c *llama.Config) (engines.TrainSettings, error) {
	s := order.Settings
	var v domain.Violations
	nonNegative := func(field string, value int) { v.Require(value >= 0, field, "must be 0 or more, is %d", value) }
	nonNegative("epochs", s.Epochs)
	nonNegative("loraRank", s.LoraRank)
	nonNegative("batchSize", s.BatchSizeTokens)
	nonNegative("batchSizeSamples", s.BatchSizeSamples)
	nonNegative("gradientAccumulationSteps", s.GradientAccumulationSteps)
	nonNegative("learningRateWarmupSteps", s.LearningRateWarmupSteps)
	nonNegative("checkpointSteps", s.CheckpointSteps)
	v.Require(s.Epochs <= 1000, "epochs", "must be 1000 or less, is %d", s.Epochs)
	v.Require(s.LoraRank <= min(c.HiddenSize, 1024), "loraRank", "must be at most %d for this model, is %d",
		min(c.HiddenSize, 1024), s.LoraRank)
	v.Require(finite(s.LearningRate) && s.LearningRate >= 0 && s.LearningRate <= 1, "learningRate",
		"must be 0 to 1, is %g", s.LearningRate)
	v.Require(finite(s.LoraAlpha) && s.LoraAlpha >= 0, "loraAlpha", "must be 0 or more, is %g", s.LoraAlpha)
	v.Require(s.LoraDropout >= 0 && s.LoraDropout < 1, "loraDropout", "must be at least 0 and below 1, is %g",
		s.LoraDropout)
	v.Require(s.OptimizerWeightDecay >= 0 && s.OptimizerWeightDecay <= 1, "optimizerWeightDecay", "must be 0 to 1, is %g",
		s.OptimizerWeightDecay)
	v.Require(s.MaxContextLength >= 0 && s.MaxContextLength <= c.MaxPositions, "maxContextLength",
		"must be at most the model's context length of %d tokens, is %d", c.MaxPositions, s.MaxContextLength)
	for _, name := range s.LoraTargetModules {
		_, known := llama.ModuleNamed(name)
		v.Require(known, "loraTargetModules",
			"%q is no projection of this model: use q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj or down_proj", name)
	}
	s.Loss = resolveLoss(&v, order.Method, s.Loss)
	scored := order.Method == engines.Reinforcement || order.Method == engines.RLOR
	if order.Method == engines.Reinforcement {
		s.Rollouts = resolveRollouts(&v, s.Rollouts)
	}
	if err := v.Err(); err != nil {
		return s, err
	}
	fill(&s.Epochs, 1)
	if scored {
		fill(&s.BatchSizeTokens, max(defaultAnswerTokens, s.MaxContextLength))
		fill(&s.BatchSizeSamples, defaultAnswers)
	}
	fill(&s.LearningRate, defaultRate(order.Method, s.LoraRank)*min(1, rateWidth/float64(c.HiddenSize)))
	fill(&s.LoraAlpha, engines.DefaultLoraAlpha(s.LoraRank))
	fill(&s.BatchSizeTokens, max(defaultBatchTokens, s.MaxContextLength))
	fill(&s.BatchSizeSamples, defaultSamples)
	fill(&s.GradientAccumulationSteps, 1)
	fill(&s.MaxContextLength, c.MaxPositions)
	if len(s.LoraTargetModules) == 0 {
		s.LoraTargetModules = nil // as decoded from a checkpoint
	}
	if len(s.RewardWeights) == 0 {
		s.RewardWeights = nil
	}
	return s, nil
}

// fill sets a field that is 0 to its default.
func fill[T int | float64](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// modules are the projections that an adapter is applied to: those named, or all.
func modules(s engines.TrainSettings) []llama.Module {
	var out []llama.Module
	for _, name := range s.LoraTargetModules {
		if m, ok := llama.ModuleNamed(name); ok {
			out = append(out, m)
		}
	}
	if len(out) == 0 {
		for m := range llama.Modules {
			out = append(out, m)
		}
	}
	return out
}

// cores is the number of cores an order may use.
func cores(order engines.TrainRequest) int {
	if order.Parallelism > 0 {
		return order.Parallelism
	}
	return max(1, runtime.GOMAXPROCS(0)-1)
}
