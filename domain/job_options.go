package domain

import "unicode/utf8"

// Limits of job options. MaxSuffix leaves room for the other parts of the output model's ID.
const (
	MaxSuffix        = 40 // maximum length of the suffix in characters
	MaxMetadata      = 16 // maximum number of entries in the metadata
	MaxMetadataKey   = 64 // maximum length of a key in the metadata in characters
	MaxMetadataValue = 512
	MaxLearningScale = 1000
)

// JobOptions are the settings of a job that only the OpenAI API can set. A field of 0 stands for
// its default.
type JobOptions struct {
	Suffix string `json:"suffix,omitempty"` // text in the middle of the output model's ID
	Seed   *int   `json:"seed,omitempty"`   // random seed of all attempts; nil derives it from the job's name
	// LearningRateMultiplier scales the engine's default learning rate.
	LearningRateMultiplier float64           `json:"learningRateMultiplier,omitempty"`
	BatchSizeSamples       int               `json:"batchSizeSamples,omitempty"` // pairs in a gradient batch of a DPO job
	Metadata               map[string]string `json:"metadata,omitempty"`         // key-value pairs of the client
	// LoadAddon loads the resulting addon into a deployment of the account that serves its base
	// model with enableAddons, if there is one when the job completes.
	LoadAddon bool `json:"loadAddon,omitempty"`
}

// check adds the violations of the options to v.
func (o *JobOptions) check(v *Violations, config TrainingConfig) {
	if o == nil {
		return
	}
	v.Require(utf8.RuneCountInString(o.Suffix) <= MaxSuffix, "options.suffix", "must have at most %d characters, not %d",
		MaxSuffix, utf8.RuneCountInString(o.Suffix))
	v.Require(o.Seed == nil || *o.Seed >= 0 && *o.Seed <= MaxSeed, "options.seed", "must be from 0 to %d", MaxSeed)
	v.Require(o.LearningRateMultiplier >= 0 && o.LearningRateMultiplier <= MaxLearningScale,
		"options.learningRateMultiplier", "must be above 0 and at most %d", MaxLearningScale)
	v.Require(o.LearningRateMultiplier == 0 || config.LearningRate == 0, "options.learningRateMultiplier",
		"scales the default learning rate, so it cannot be set together with learningRate: leave one of them out")
	v.Require(o.BatchSizeSamples >= 0 && o.BatchSizeSamples <= 1<<30, "options.batchSizeSamples",
		"must be from 0 to %d; 0 stands for the default", 1<<30)
	o.checkMetadata(v)
}

func (o *JobOptions) checkMetadata(v *Violations) {
	v.Require(len(o.Metadata) <= MaxMetadata, "options.metadata", "must have at most %d entries, not %d", MaxMetadata,
		len(o.Metadata))
	for key, value := range o.Metadata {
		if utf8.RuneCountInString(key) > MaxMetadataKey || utf8.RuneCountInString(value) > MaxMetadataValue {
			v.Add("options.metadata", "a key must have at most %d characters, and a value at most %d", MaxMetadataKey,
				MaxMetadataValue)
			return
		}
	}
}

// withOptions returns l, the lifecycle state of a new job, with the options o.
func (l JobLife) withOptions(o *JobOptions) JobLife {
	l.Options = o
	return l
}

// apply sets the fields of spec from the options that the trainer uses.
func (o *JobOptions) apply(spec *JobSpec) {
	if o == nil {
		return
	}
	spec.Seed, spec.LearningRateMultiplier = o.Seed, o.LearningRateMultiplier
	if o.BatchSizeSamples > 0 {
		spec.Config.BatchSizeSamples = o.BatchSizeSamples
	}
}
