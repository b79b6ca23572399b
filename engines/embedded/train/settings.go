package train

import (
	"cmp"
	"math"
	"runtime"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/llama"
)

// Defaults of settings that are 0. They suit a few hundred short rows: many small steps with a high
// learning rate. The rates apply to a hidden size of rateWidth. Above that, rates are proportional
// to 1/width, as is the largest stable learning rate (Yang et al., "Tensor Programs V", 2022).
const (
	defaultLoraRate    = 3e-3
	defaultFullRate    = 1e-3
	rateWidth          = 128
	defaultBatchTokens = 2048
	defaultSamples     = 8
	// defaultReplayedSamples is the number of samples in a micro-batch to which as many replayed
	// responses are added.
	defaultReplayedSamples = 4
	evaluations            = 10 // number of evaluations in a training run with held-out rows
	// patience is the number of evaluations without improvement, or of chunks without a signal,
	// before an early stop.
	patience = 3
)

// Defaults of preference and reinforcement learning. The rates are lower than those of supervised
// training, because no likelihood term keeps the model near given texts.
const (
	defaultPreferenceRate = 5e-4 // learning rate for an adapter
	defaultFullNudgeRate  = 1e-4
	defaultScoredSamples  = 32   // number of scored samples in a micro-batch
	defaultScoredTokens   = 8192 // number of tokens of scored samples in a micro-batch
	defaultKLBeta         = 0.04 // from Shao et al. 2024, section 4.2
	defaultOutput         = 512  // maximum number of tokens of a response
	defaultRollouts       = 32
	defaultEvaluations    = 8
)

// defaultRate returns the default learning rate of a method, at a hidden size of rateWidth.
func defaultRate(method string, rank int) float64 {
	switch {
	case method == engines.Supervised && rank > 0:
		return defaultLoraRate
	case method == engines.Supervised:
		return defaultFullRate
	case rank > 0:
		return defaultPreferenceRate
	}
	return defaultFullNudgeRate
}

// resolve sets defaults and validates the settings. It returns InvalidArgument with all violations.
func resolve(request engines.TrainRequest, c *llama.Config) (engines.TrainSettings, error) {
	s := request.Settings
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
	v.Require(s.LoraAlpha >= 0 && s.LoraAlpha <= math.MaxFloat32, "loraAlpha",
		"must be 0 or more and finite as float32, is %g", s.LoraAlpha)
	v.Require(s.LoraDropout >= 0 && s.LoraDropout < 1, "loraDropout", "must be at least 0 and below 1, is %g",
		s.LoraDropout)
	v.Require(s.OptimizerWeightDecay >= 0 && s.OptimizerWeightDecay <= 1, "optimizerWeightDecay", "must be 0 to 1, is %g",
		s.OptimizerWeightDecay)
	v.Require(finite(s.ReplayWeight) && s.ReplayWeight >= 0 && s.ReplayWeight <= domain.MaxReplayWeight, "replayWeight",
		"must be 0 to %d, is %g", domain.MaxReplayWeight, s.ReplayWeight)
	v.Require(s.ReplayWeight == 0 || request.Method == engines.Supervised, "replayWeight",
		"is %g, but only supervised training replays responses: leave it out", s.ReplayWeight)
	v.Require(s.MaxContextLength >= 0 && s.MaxContextLength <= c.MaxPositions, "maxContextLength",
		"must be at most the model's context length of %d tokens, is %d", c.MaxPositions, s.MaxContextLength)
	for _, name := range s.LoraTargetModules {
		_, known := llama.ModuleNamed(name)
		v.Require(known, "loraTargetModules",
			"%q is not a projection of this model: use q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj or down_proj", name)
	}
	s.Loss = resolveLoss(&v, request.Method, s.Loss)
	scored := request.Method == engines.Reinforcement || request.Method == engines.RLOR
	if request.Method == engines.Reinforcement {
		s.Rollouts = resolveRollouts(&v, s.Rollouts)
	}
	if err := v.Err(); err != nil {
		return s, err
	}
	fill(&s.Epochs, 1)
	if scored {
		fill(&s.BatchSizeTokens, max(defaultScoredTokens, s.MaxContextLength))
		fill(&s.BatchSizeSamples, defaultScoredSamples)
	}
	scale := cmp.Or(s.LearningRateMultiplier, 1)
	fill(&s.LearningRate, scale*defaultRate(request.Method, s.LoraRank)*min(1, rateWidth/float64(c.HiddenSize)))
	fill(&s.LoraAlpha, engines.DefaultLoraAlpha(s.LoraRank))
	fill(&s.BatchSizeTokens, max(defaultBatchTokens, s.MaxContextLength))
	if s.ReplayWeight > 0 {
		fill(&s.BatchSizeSamples, defaultReplayedSamples)
	}
	fill(&s.BatchSizeSamples, defaultSamples)
	fill(&s.GradientAccumulationSteps, 1)
	fill(&s.MaxContextLength, c.MaxPositions)
	if len(s.LoraTargetModules) == 0 {
		s.LoraTargetModules = nil // an empty list becomes nil, as it is in a checkpoint
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

// modules returns the projections that an adapter modifies: those of the settings, or all if the
// settings have none.
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

// cores returns the number of cores that a request may use.
func cores(request engines.TrainRequest) int {
	if request.Parallelism > 0 {
		return request.Parallelism
	}
	return max(1, runtime.GOMAXPROCS(0)-1)
}
