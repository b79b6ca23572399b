package coordinator

import (
	"cmp"
	"hash/fnv"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
	"anneal/projections/live"
)

// A job has those fields of a job of any kind that the coordinator needs.
type job struct {
	Name           domain.Name
	Life           *domain.JobLife // shared with the view, so it must not be changed
	Version        uint64
	CreateTime     time.Time // tells the job from an earlier one with the same name
	Event          string    // ID of the event that created the job; it is part of the keys of the job's files
	DisplayName    string
	Method         string
	BaseModel      domain.Name // model that the job trains; "" when it trains Adapter further instead
	Adapter        domain.Name // addon that the job trains further; "" when it trains BaseModel
	Dataset        domain.Name
	EvaluationData domain.Name
	OutputModel    string // ID of the output model in the account of the job
	Settings       engines.TrainSettings
	KeepRank       bool // the trained addon gets the LoRA rank of Adapter
	// after each train step, the job waits for another train step (reinforcement learning only)
	Waits     bool
	Service   bool        // the attempts serve training runs on Base
	Base      domain.Name // base model of the training runs
	Evaluator domain.Name // evaluator that scores completions of the job; "" for none
	Seed      uint64      // random seed, the same for all attempts
}

// jobNamed returns the job with a name; false when it does not exist.
func jobNamed(v *projections.View, name domain.Name) (job, bool) {
	row, ok := v.Job(name)
	if !ok {
		return job{}, false
	}
	return jobOf(row), true
}

// progress returns the progress of the job in the live status; false when the live status has none
// of this job.
func (j job) progress(v *projections.View) (live.Progress, bool) {
	progress, ok := v.Live.Progress(j.Name)
	return progress, ok && progress.Made.Equal(j.CreateTime)
}

// jobOf returns the job in a row.
func jobOf(row projections.Row[domain.Job]) job {
	spec := row.State.Spec()
	j := job{
		Name: row.Name, Life: row.State.Life(), Version: row.Version, CreateTime: row.CreateTime,
		Event:       row.CreateEvent,
		DisplayName: spec.DisplayName, Method: spec.Method,
		BaseModel: domain.Name(spec.Config.BaseModel), Adapter: domain.Name(spec.Config.WarmStartFrom),
		Dataset: domain.Name(spec.Dataset), EvaluationData: domain.Name(spec.EvaluationDataset),
		OutputModel: spec.Config.OutputModel, Settings: settingsOf(&spec), KeepRank: spec.Config.LoraRank == nil,
		Waits: spec.Waits, Service: spec.Service,
		Base:      domain.Name(cmp.Or(spec.Config.BaseModel, spec.Config.WarmStartFrom)),
		Evaluator: domain.Name(spec.Evaluator), Seed: seedOf(row.Name, &spec),
	}
	// the control plane has split the rows into training and evaluation, so the engine must not
	if in := j.Life.Inputs; in != nil {
		j.Dataset, j.EvaluationData, j.Settings.EvalAutoCarveout = in.Train, in.Evaluation, false
	}
	if spec.StepDataset != "" && spec.StepDataset != spec.Dataset {
		j.Dataset = domain.Name(spec.StepDataset)
	}
	if spec.From != "" {
		j.BaseModel, j.Adapter, j.KeepRank = "", spec.From, true
	}
	return j
}

// settingsOf returns the training settings for the engine. 0 means the engine's default.
func settingsOf(spec *domain.JobSpec) engines.TrainSettings {
	c := &spec.Config
	s := engines.TrainSettings{
		Epochs: c.Epochs, LearningRate: c.LearningRate, LearningRateMultiplier: spec.LearningRateMultiplier,
		BatchSizeTokens:           c.BatchSize,
		BatchSizeSamples:          c.BatchSizeSamples,
		GradientAccumulationSteps: c.GradientAccumulationSteps, LearningRateWarmupSteps: c.LearningRateWarmupSteps,
		OptimizerWeightDecay: c.OptimizerWeightDecay, MaxContextLength: c.MaxContextLength,
		JinjaTemplate: c.JinjaTemplate,
	}
	s.EarlyStop, s.EvalAutoCarveout, s.Loss = spec.EarlyStop, spec.AutoCarveout, spec.Loss
	if c.LoraRank != nil {
		s.LoraRank = *c.LoraRank
	}
	if len(spec.RewardWeights) > 0 {
		s.RewardWeights = domain.RewardsOf(spec.RewardWeights)
	}
	if r := spec.Rollouts; r != nil {
		s.Rollouts = &engines.Rollouts{ChunkSize: r.ChunkSize, MaxReplicas: r.MaxReplicas,
			MaxConcurrent: r.MaxConcurrent, MaxConcurrentEvaluations: r.MaxConcurrentEvaluations}
		if r.InferenceParameters != nil {
			s.Rollouts.InferenceParameters = *r.InferenceParameters
		}
	}
	return s
}

// seedOf returns the random seed for all attempts of a job: the one in its spec or, when it has
// none, one that depends only on the job's name.
func seedOf(name domain.Name, spec *domain.JobSpec) uint64 {
	if spec.Seed != nil {
		return uint64(*spec.Seed)
	}
	hash := fnv.New64a()
	hash.Write([]byte(name))
	return hash.Sum64()
}
