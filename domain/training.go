package domain

import (
	"math/bits"
	"strings"
)

// TrackerConfig says where metrics are also sent. The key is sealed before it
// is recorded and absent from every answer.
type TrackerConfig struct {
	Enabled bool    `json:"enabled"`
	APIKey  *Sealed `json:"apiKey,omitempty"`
	Project string  `json:"project,omitempty"`
	Entity  string  `json:"entity,omitempty"`
	RunID   string  `json:"runId,omitempty"`
	URL     string  `json:"url,omitempty"`
}

// ObjectStoreConfig says with which credentials a job reads and writes an
// object store.
type ObjectStoreConfig struct {
	CredentialsSecret string `json:"credentialsSecret,omitempty"`
	IAMRoleARN        string `json:"iamRoleArn,omitempty"`
}

// DefaultBaseModel is what a job trains that names no model: the one that
// every installation has.
const DefaultBaseModel = "accounts/default/models/anneal-base"

// Defaults and limits of training settings.
const (
	DefaultEpochs   = 1
	MaxEpochs       = 1000
	DefaultLoraRank = 8
	MaxLoraRank     = 64
	MaxJobNodes     = 1024
)

// TrainingConfig is what all kinds of training jobs may set. Zero values mean
// the default; loraRank is a pointer because 0 trains all parameters.
type TrainingConfig struct {
	OutputModel               string  `json:"outputModel,omitempty"`
	BaseModel                 string  `json:"baseModel,omitempty"`
	WarmStartFrom             string  `json:"warmStartFrom,omitempty"`
	JinjaTemplate             string  `json:"jinjaTemplate,omitempty"`
	LearningRate              float64 `json:"learningRate,omitempty"`
	MaxContextLength          int     `json:"maxContextLength,omitempty"`
	LoraRank                  *int    `json:"loraRank,omitempty"`
	Region                    string  `json:"region,omitempty"`
	Epochs                    int     `json:"epochs,omitempty"`
	BatchSize                 int     `json:"batchSize,omitempty"` // tokens in one gradient batch
	GradientAccumulationSteps int     `json:"gradientAccumulationSteps,omitempty"`
	LearningRateWarmupSteps   int     `json:"learningRateWarmupSteps,omitempty"`
	BatchSizeSamples          int     `json:"batchSizeSamples,omitempty"`
	OptimizerWeightDecay      float64 `json:"optimizerWeightDecay,omitempty"`
}

// check names every violation of the settings; prefix is "" or "trainingConfig.".
func (c TrainingConfig) check(v *Violations, prefix string) {
	outputModel := c.OutputModel
	if name, ok := ParseName(outputModel, "models"); ok {
		outputModel = name.ID()
	}
	v.Require(outputModel == "" || ValidID(outputModel), prefix+"outputModel", IDRule)
	v.Require(c.BaseModel == "" || c.WarmStartFrom == "", prefix+"warmStartFrom", "give either baseModel or warmStartFrom, not both")
	reference(v, prefix+"baseModel", c.BaseModel, "models")
	reference(v, prefix+"warmStartFrom", c.WarmStartFrom, "models")
	v.Require(len(c.JinjaTemplate) <= 64<<10, prefix+"jinjaTemplate", "must have at most 64 KiB")
	v.Require(c.LearningRate >= 0 && c.LearningRate <= 1, prefix+"learningRate", "must be from 0 (the default) to 1")
	if c.LoraRank != nil {
		r := *c.LoraRank
		v.Require(r == 0 || r > 0 && r <= MaxLoraRank && bits.OnesCount(uint(r)) == 1, prefix+"loraRank",
			"must be 0 (all parameters) or a power of two up to %d", MaxLoraRank)
	}
	v.Require(c.Epochs >= 0 && c.Epochs <= MaxEpochs, prefix+"epochs", "must be from 0 (the default, %d) to %d", DefaultEpochs, MaxEpochs)
	v.Require(c.OptimizerWeightDecay >= 0 && c.OptimizerWeightDecay <= 1, prefix+"optimizerWeightDecay", "must be from 0 to 1")
	count := func(field string, n int) {
		v.Require(n >= 0 && n <= 1<<30, prefix+field, "must be from 0 (the default) to %d", 1<<30)
	}
	count("maxContextLength", c.MaxContextLength)
	count("batchSize", c.BatchSize)
	count("gradientAccumulationSteps", c.GradientAccumulationSteps)
	count("learningRateWarmupSteps", c.LearningRateWarmupSteps)
	count("batchSizeSamples", c.BatchSizeSamples)
	oneOf(v, prefix+"region", c.Region, Regions...)
}

// filled is the settings with their defaults.
func (c TrainingConfig) filled(jobID string) TrainingConfig {
	if c.BaseModel == "" && c.WarmStartFrom == "" {
		c.BaseModel = DefaultBaseModel
	}
	if c.LoraRank == nil && c.WarmStartFrom == "" { // an adapter continues with the rank that it has
		rank := DefaultLoraRank
		c.LoraRank = &rank
	}
	if c.Epochs == 0 {
		c.Epochs = DefaultEpochs
	}
	if name, ok := ParseName(c.OutputModel, "models"); ok {
		c.OutputModel = name.ID()
	}
	if c.OutputModel == "" {
		c.OutputModel = jobID
	}
	return c
}

func (t *TrackerConfig) check(v *Violations) {
	if t == nil || !t.Enabled {
		return
	}
	v.Require(t.APIKey != nil, "trackerConfig.apiKey", "is required when enabled")
	v.Require(strings.TrimSpace(t.Project) != "", "trackerConfig.project", "is required when enabled")
	v.Require(strings.TrimSpace(t.Entity) != "", "trackerConfig.entity", "is required when enabled")
}

// checkData names what is wrong with the form of what a job learns from.
func checkData(v *Violations, dataset, evaluation string, carveout bool) {
	reference(v, "dataset", dataset, "datasets")
	reference(v, "evaluationDataset", evaluation, "datasets")
	v.Require(evaluation == "" || !carveout, "evalAutoCarveout", "give either evaluationDataset or evalAutoCarveout, not both")
}
