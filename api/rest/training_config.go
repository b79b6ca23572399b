package rest

import (
	"anneal/domain"
	"anneal/engines"
)

// TrainingConfig is the wire type of the training settings of a job.
type TrainingConfig struct {
	domain.TrainingConfig
	EffectiveTraining
}

// EffectiveTraining has the settings that the trainer derives from the training settings of a job.
type EffectiveTraining struct {
	TrainerShardingScheme *ShardingScheme `json:"trainerShardingScheme,omitempty" api:"output"`
	LoraAlpha             *float64        `json:"loraAlpha,omitempty" api:"output"`
	LoraDropout           *float64        `json:"loraDropout,omitempty" api:"output"`
	LoraTargetModules     []string        `json:"loraTargetModules,omitempty" api:"output"`
}

// ShardingScheme has the degree of each kind of parallelism of a training; 1 means no parallelism.
type ShardingScheme struct {
	TensorParallelism   int  `json:"tensorParallelism" api:"output"`
	PipelineParallelism int  `json:"pipelineParallelism" api:"output"`
	ContextParallelism  int  `json:"contextParallelism" api:"output"`
	ExpertParallelism   int  `json:"expertParallelism" api:"output"`
	SequenceParallelism bool `json:"sequenceParallelism" api:"output"`
}

func renderTraining(t domain.TrainingConfig) TrainingConfig {
	return TrainingConfig{t, effectiveTraining(t)}
}

// effectiveTraining returns the settings that trainers derive from t. All degrees of parallelism
// are 1, because no trainer shards a model. Alpha and target modules follow from the rank of the
// adapter; with warmStartFrom they are absent, because the addon that it names shows them.
func effectiveTraining(t domain.TrainingConfig) EffectiveTraining {
	facts := EffectiveTraining{TrainerShardingScheme: &ShardingScheme{1, 1, 1, 1, false}}
	if t.LoraRank == nil || *t.LoraRank == 0 {
		return facts
	}
	facts.LoraDropout = new(float64)
	if t.WarmStartFrom == "" {
		alpha := engines.DefaultLoraAlpha(*t.LoraRank)
		facts.LoraAlpha, facts.LoraTargetModules = &alpha, engines.DefaultLoraModules()
	}
	return facts
}
