package api

import (
	"anneal/domain"
	"anneal/engines"
)

// TrainingConfig is how a job trains, on the wire.
type TrainingConfig struct {
	domain.TrainingConfig
	TrainingFacts
}

// TrainingFacts are what the trainer makes of the settings of a job.
type TrainingFacts struct {
	TrainerShardingScheme *ShardingScheme `json:"trainerShardingScheme,omitempty" api:"output"`
	LoraAlpha             *float64        `json:"loraAlpha,omitempty" api:"output"`
	LoraDropout           *float64        `json:"loraDropout,omitempty" api:"output"`
	LoraTargetModules     []string        `json:"loraTargetModules,omitempty" api:"output"`
}

// ShardingScheme is how the model of a training is spread over devices; 1 is
// not at all.
type ShardingScheme struct {
	TensorParallelism   int  `json:"tensorParallelism" api:"output"`
	PipelineParallelism int  `json:"pipelineParallelism" api:"output"`
	ContextParallelism  int  `json:"contextParallelism" api:"output"`
	ExpertParallelism   int  `json:"expertParallelism" api:"output"`
	SequenceParallelism bool `json:"sequenceParallelism" api:"output"`
}

func shownTraining(t domain.TrainingConfig) TrainingConfig {
	return TrainingConfig{t, trainingFacts(t)}
}

// trainingFacts are true of every trainer that a worker has: none spreads a
// model, and each gets only the rank of an adapter. An adapter that is gone on
// with keeps its own alpha and modules, which its model shows.
func trainingFacts(t domain.TrainingConfig) TrainingFacts {
	facts := TrainingFacts{TrainerShardingScheme: &ShardingScheme{1, 1, 1, 1, false}}
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
