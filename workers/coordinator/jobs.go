package coordinator

import (
	"hash/fnv"
	"iter"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
)

// A job is what every kind of job shows to the desk.
type job struct {
	Name           domain.Name
	Life           *domain.JobLife // shared with the view: do not change
	Version        uint64
	CreateTime     time.Time // tells it from one that had its name before
	Event          string    // that created it; its folders are named by it
	DisplayName    string
	Method         string
	BaseModel      domain.Name // "" when Adapter names what is trained on
	Adapter        domain.Name // an addon to continue from, or ""
	Dataset        domain.Name
	EvaluationData domain.Name
	OutputModel    string // id in the job's account
	Settings       engines.TrainSettings
	KeepRank       bool        // go on with the rank that Adapter has
	Waits          bool        // for its next step when this one is done
	Evaluator      domain.Name // that scores its answers, or ""
}

// shownAs is how the desk sees each kind of job.
var shownAs = projections.JobShown[job]{Supervised: supervised, Preference: preference, Reinforcement: reinforcement, Trainer: trainer}

// jobNamed is the job of a name; false when there is none.
func jobNamed(v *projections.View, name domain.Name) (job, bool) { return shownAs.Named(v, name) }

// jobs yields every job of every kind.
func jobs(v *projections.View) iter.Seq[job] { return shownAs.All(v) }

// progress is how far the job is; false when nothing was reported of it, but
// perhaps of one that had its name before.
func (j job) progress(v *projections.View) (projections.Progress, bool) {
	progress, ok := v.Live.Progress(j.Name)
	return progress, ok && progress.Made.Equal(j.CreateTime)
}

func supervised(row *projections.Row[domain.SupervisedJob]) job {
	s := &row.State
	settings := settingsOf(s.TrainingConfig)
	settings.EarlyStop, settings.EvalAutoCarveout = s.EarlyStop, s.EvalAutoCarveout
	return withInputs(job{
		Name: row.Name, Life: &s.JobLife, Version: row.Version, CreateTime: row.CreateTime, Event: row.CreateEvent, DisplayName: s.DisplayName, Method: engines.Supervised,
		BaseModel: domain.Name(s.BaseModel), Adapter: domain.Name(s.WarmStartFrom), Dataset: domain.Name(s.Dataset),
		EvaluationData: domain.Name(s.EvaluationDataset), OutputModel: s.OutputModel, Settings: settings, KeepRank: s.LoraRank == nil,
	})
}

// withInputs is the job with the datasets that were made of its own, if any
// were: its trainer then holds no rows back by itself.
func withInputs(j job) job {
	if in := j.Life.Inputs; in != nil {
		j.Dataset, j.EvaluationData, j.Settings.EvalAutoCarveout = in.Train, in.Evaluation, false
	}
	return j
}

func preference(row *projections.Row[domain.DPOJob]) job {
	s := &row.State
	j := trained(job{Name: row.Name, Life: &s.JobLife, Version: row.Version, CreateTime: row.CreateTime, Event: row.CreateEvent, DisplayName: s.DisplayName, Method: engines.DPO,
		Dataset: domain.Name(s.Dataset)}, s.TrainingConfig, false)
	j.Settings.Loss = s.LossConfig
	return j
}

func reinforcement(row *projections.Row[domain.ReinforcementJob]) job {
	s := &row.State
	j := trained(job{Name: row.Name, Life: &s.JobLife, Version: row.Version, CreateTime: row.CreateTime, Event: row.CreateEvent, DisplayName: s.DisplayName, Method: engines.Reinforcement,
		Dataset: domain.Name(s.Dataset), EvaluationData: domain.Name(s.EvaluationDataset), Evaluator: domain.Name(s.Evaluator)}, s.TrainingConfig, s.EvalAutoCarveout)
	j.Settings.Loss = s.LossConfig
	j.Settings.Rollouts = &engines.Rollouts{ChunkSize: s.ChunkSize, MaxConcurrent: s.MaxConcurrentRollouts, MaxConcurrentEvaluations: s.MaxConcurrentEvaluations}
	if s.InferenceParameters != nil {
		j.Settings.Rollouts.InferenceParameters = *s.InferenceParameters
	}
	return j
}

func trainer(row *projections.Row[domain.TrainerJob]) job {
	s := &row.State
	j := trained(job{Name: row.Name, Life: &s.JobLife, Version: row.Version, CreateTime: row.CreateTime, Event: row.CreateEvent, DisplayName: s.DisplayName, Method: engines.RLOR,
		Dataset: domain.Name(s.Dataset), EvaluationData: domain.Name(s.EvaluationDataset), Waits: s.Waits()}, s.TrainingConfig, s.EvalAutoCarveout)
	j.Settings.RewardWeights, j.Settings.Loss = s.Rewards(), s.LossConfig
	if s.Step.Number > 0 {
		j.OutputModel = s.Step.OutputModel
		if s.Step.Dataset != s.Dataset {
			j.Dataset = domain.Name(s.Step.Dataset)
		}
	}
	if from := s.From(); from != "" {
		j.BaseModel, j.Adapter, j.KeepRank = "", from, true
	}
	return j
}

// trained is the job with what all kinds of training are set by.
func trained(j job, c domain.TrainingConfig, carveout bool) job {
	j.BaseModel, j.Adapter, j.OutputModel, j.Settings = domain.Name(c.BaseModel), domain.Name(c.WarmStartFrom), c.OutputModel, settingsOf(c)
	j.Settings.EvalAutoCarveout, j.KeepRank = carveout, c.LoraRank == nil
	return withInputs(j)
}

// settingsOf hands an engine what the caller set; 0 stays the engine's default.
func settingsOf(c domain.TrainingConfig) engines.TrainSettings {
	s := engines.TrainSettings{
		Epochs: c.Epochs, LearningRate: c.LearningRate, BatchSizeTokens: c.BatchSize, BatchSizeSamples: c.BatchSizeSamples,
		GradientAccumulationSteps: c.GradientAccumulationSteps, LearningRateWarmupSteps: c.LearningRateWarmupSteps,
		OptimizerWeightDecay: c.OptimizerWeightDecay, MaxContextLength: c.MaxContextLength, JinjaTemplate: c.JinjaTemplate,
	}
	if c.LoraRank != nil {
		s.LoraRank = *c.LoraRank
	}
	return s
}

// seedOf is the same for every attempt of a job, and for the job made again
// under its name.
func seedOf(name domain.Name) uint64 {
	hash := fnv.New64a()
	hash.Write([]byte(name))
	return hash.Sum64()
}
