package coordinator

import (
	"hash/fnv"
	"iter"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
	"anneal/projections/live"
)

// A job is what the coordinator knows of a job of any kind.
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

// jobNamed returns the job of a name; false when there is none.
func jobNamed(v *projections.View, name domain.Name) (job, bool) {
	row, ok := v.Job(name)
	if !ok {
		return job{}, false
	}
	return jobOf(row), true
}

// jobs yields every job of every kind.
func jobs(v *projections.View) iter.Seq[job] {
	return func(yield func(job) bool) {
		for row := range v.Jobs() {
			if !yield(jobOf(row)) {
				return
			}
		}
	}
}

// progress is how far the job is; false when nothing was reported of it, but
// perhaps of one that had its name before.
func (j job) progress(v *projections.View) (live.Progress, bool) {
	progress, ok := v.Live.Progress(j.Name)
	return progress, ok && progress.Made.Equal(j.CreateTime)
}

// jobOf returns a job as the coordinator sees it.
func jobOf(row projections.Row[domain.Job]) job {
	spec := row.State.Spec()
	j := job{
		Name: row.Name, Life: row.State.Life(), Version: row.Version, CreateTime: row.CreateTime,
		Event:       row.CreateEvent,
		DisplayName: spec.DisplayName, Method: spec.Method,
		BaseModel: domain.Name(spec.Config.BaseModel), Adapter: domain.Name(spec.Config.WarmStartFrom),
		Dataset: domain.Name(spec.Dataset), EvaluationData: domain.Name(spec.EvaluationDataset),
		OutputModel: spec.Config.OutputModel, Settings: settingsOf(&spec), KeepRank: spec.Config.LoraRank == nil,
		Waits: spec.Waits, Evaluator: domain.Name(spec.Evaluator),
	}
	if in := j.Life.Inputs; in != nil { // the platform has held rows back: the engine must not
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

// settingsOf hands an engine what the caller set; 0 stays the engine's default.
func settingsOf(spec *domain.JobSpec) engines.TrainSettings {
	c := &spec.Config
	s := engines.TrainSettings{
		Epochs: c.Epochs, LearningRate: c.LearningRate, BatchSizeTokens: c.BatchSize,
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
		s.Rollouts = &engines.Rollouts{ChunkSize: r.ChunkSize, MaxConcurrent: r.MaxConcurrent,
			MaxConcurrentEvaluations: r.MaxConcurrentEvaluations}
		if r.InferenceParameters != nil {
			s.Rollouts.InferenceParameters = *r.InferenceParameters
		}
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
