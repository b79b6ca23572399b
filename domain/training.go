package domain

import "math/bits"

// TrackerConfig configures the run of a job in an experiment tracker, which receives the job's
// parameters, metrics and end state. The API key is sealed before it is recorded, and is never part
// of a response. URL is the address of the run, which only earlier versions recorded here: see
// JobTracking.
type TrackerConfig struct {
	Enabled bool    `json:"enabled"`
	APIKey  *Sealed `json:"apiKey,omitempty"`
	Project string  `json:"project,omitempty"`
	Entity  string  `json:"entity,omitempty"`
	RunID   string  `json:"runId,omitempty"`
	URL     string  `json:"url,omitempty"`
}

// ObjectStoreConfig holds the credentials with which a job accesses an object store.
type ObjectStoreConfig struct {
	CredentialsSecret string `json:"credentialsSecret,omitempty"`
	IAMRoleARN        string `json:"iamRoleArn,omitempty"`
}

// DefaultBaseModel is the base model of jobs whose spec names none. Every installation has this
// model.
const DefaultBaseModel = "accounts/default/models/anneal-base"

// Defaults and limits of training settings.
const (
	DefaultEpochs   = 1
	MaxEpochs       = 1000
	DefaultLoraRank = 8
	MaxLoraRank     = 64
	MaxJobNodes     = 1024
)

// TrainingConfig holds the settings that all kinds of training jobs have. A field of 0 or "" stands
// for its default. LoraRank is a pointer because a rank of 0 trains all parameters.
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
	BatchSize                 int     `json:"batchSize,omitempty"` // tokens in a gradient batch
	GradientAccumulationSteps int     `json:"gradientAccumulationSteps,omitempty"`
	LearningRateWarmupSteps   int     `json:"learningRateWarmupSteps,omitempty"`
	BatchSizeSamples          int     `json:"batchSizeSamples,omitempty"`
	OptimizerWeightDecay      float64 `json:"optimizerWeightDecay,omitempty"`
}

// check adds the violations of the settings to v. prefix is the path of the settings in the
// request: "" or "trainingConfig.".
func (c TrainingConfig) check(v *Violations, prefix string) {
	outputModel := c.OutputModel
	if name, ok := ParseName(outputModel, "models"); ok {
		outputModel = name.ID()
	}
	v.Require(outputModel == "" || ValidID(outputModel), prefix+"outputModel", IDRule)
	v.Require(c.BaseModel == "" || c.WarmStartFrom == "", prefix+"warmStartFrom",
		"give either baseModel or warmStartFrom, not both")
	reference(v, prefix+"baseModel", c.BaseModel, "models")
	reference(v, prefix+"warmStartFrom", c.WarmStartFrom, "models")
	v.Require(len(c.JinjaTemplate) <= 64<<10, prefix+"jinjaTemplate", "must have at most 64 KiB")
	v.Require(c.LearningRate >= 0 && c.LearningRate <= 1, prefix+"learningRate",
		"must be from 0 to 1; 0 stands for the default")
	if c.LoraRank != nil {
		r := *c.LoraRank
		v.Require(r == 0 || r > 0 && r <= MaxLoraRank && bits.OnesCount(uint(r)) == 1, prefix+"loraRank",
			"must be 0, which trains all parameters, or a power of two up to %d", MaxLoraRank)
	}
	v.Require(c.Epochs >= 0 && c.Epochs <= MaxEpochs, prefix+"epochs",
		"must be from 0 to %d; 0 stands for the default, %d", MaxEpochs, DefaultEpochs)
	v.Require(c.OptimizerWeightDecay >= 0 && c.OptimizerWeightDecay <= 1, prefix+"optimizerWeightDecay",
		"must be from 0 to 1")
	count := func(field string, n int) {
		v.Require(n >= 0 && n <= 1<<30, prefix+field, "must be from 0 to %d; 0 stands for the default", 1<<30)
	}
	count("maxContextLength", c.MaxContextLength)
	count("batchSize", c.BatchSize)
	count("gradientAccumulationSteps", c.GradientAccumulationSteps)
	count("learningRateWarmupSteps", c.LearningRateWarmupSteps)
	count("batchSizeSamples", c.BatchSizeSamples)
	oneOf(v, prefix+"region", c.Region, Regions...)
}

// withDefaults returns the settings with unset fields set to their defaults. The default of
// outputModel is jobID.
func (c TrainingConfig) withDefaults(jobID string) TrainingConfig {
	if c.BaseModel == "" && c.WarmStartFrom == "" {
		c.BaseModel = DefaultBaseModel
	}
	if c.LoraRank == nil && c.WarmStartFrom == "" { // training that starts from an adapter keeps the adapter's rank
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

// checkData adds violations to v for invalid names of a job's training and evaluation datasets.
// carveout is the field evalAutoCarveout.
func checkData(v *Violations, dataset, evaluation string, carveout bool) {
	reference(v, "dataset", dataset, "datasets")
	reference(v, "evaluationDataset", evaluation, "datasets")
	v.Require(evaluation == "" || !carveout, "evalAutoCarveout",
		"give either evaluationDataset or evalAutoCarveout, not both")
}
