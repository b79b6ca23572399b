package rest

import (
	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// DPOJob is the wire type of a DPO job.
type DPOJob struct {
	Name string `json:"name" api:"output"`
	domain.DPOSpec
	TrainingConfig DPOTraining    `json:"trainingConfig"`
	TrackerConfig  *TrackerConfig `json:"trackerConfig,omitempty"`
	JobReport
}

// DPOTraining has the training settings of a DPO job.
type DPOTraining struct {
	OutputModel               string  `json:"outputModel,omitempty"`
	BaseModel                 string  `json:"baseModel,omitempty"`
	WarmStartFrom             string  `json:"warmStartFrom,omitempty"`
	JinjaTemplate             string  `json:"jinjaTemplate,omitempty"`
	LearningRate              float64 `json:"learningRate,omitempty"`
	MaxContextLength          int     `json:"maxContextLength,omitempty"`
	LoraRank                  *int    `json:"loraRank,omitempty"`
	Region                    string  `json:"region,omitempty"`
	Epochs                    int     `json:"epochs,omitempty"`
	BatchSize                 int     `json:"batchSize,omitempty"` // number of tokens in a gradient batch
	GradientAccumulationSteps int     `json:"gradientAccumulationSteps,omitempty"`
	LearningRateWarmupSteps   int     `json:"learningRateWarmupSteps,omitempty"`
	EffectiveTraining
}

func (t DPOTraining) config() domain.TrainingConfig {
	return trainingOf(domain.TrainingConfig{OutputModel: t.OutputModel, BaseModel: t.BaseModel,
		WarmStartFrom: t.WarmStartFrom, JinjaTemplate: t.JinjaTemplate,
		LearningRate: t.LearningRate, MaxContextLength: t.MaxContextLength, LoraRank: t.LoraRank, Region: t.Region,
		Epochs: t.Epochs, BatchSize: t.BatchSize,
		GradientAccumulationSteps: t.GradientAccumulationSteps, LearningRateWarmupSteps: t.LearningRateWarmupSteps})
}

func dpoTraining(t domain.TrainingConfig) DPOTraining {
	return DPOTraining{t.OutputModel, t.BaseModel, t.WarmStartFrom, t.JinjaTemplate, t.LearningRate, t.MaxContextLength,
		t.LoraRank,
		t.Region, t.Epochs, t.BatchSize, t.GradientAccumulationSteps, t.LearningRateWarmupSteps, effectiveTraining(t)}
}

var dpoJobs = &resource[domain.DPOJob, DPOJob]{
	kind: domain.DPOJobs, noun: "DPO job", requires: []string{"dataset"}, idParam: "dpoJobId", reads: request.Read,
	writes: request.Write,
	fields: storedFieldsOf[domain.DPOJob, DPOJob]("name", "displayName", "dataset", "lossConfig",
		"createTime", "updateTime", "completedTime", "state", "attempt"),
	local:     addQueue[domain.DPOJob, DPOJob],
	creator:   func(j *domain.DPOJob) string { return j.CreatedBy },
	dependent: dependentOfJobs[domain.DPOJob](),
	render: func(v *projections.View, row *projections.Row[domain.DPOJob], out *DPOJob) {
		j := &row.State
		*out = DPOJob{Name: string(row.Name), DPOSpec: j.DPOSpec, TrainingConfig: dpoTraining(j.DPOSpec.TrainingConfig),
			TrackerConfig: renderTracker(j.DPOSpec.TrackerConfig, j.Tracking), JobReport: reportOf(v, row, &row.State)}
	},
	create: func(c *call, q *creation[DPOJob]) (plan[domain.DPOJob, DPOJob], error) {
		spec := q.given.DPOSpec
		spec.TrainingConfig = q.given.TrainingConfig.config()
		key, err := c.requireInputs(&q.p.Violations, q.name, jobInputs{prefix: "trainingConfig.",
			training: &spec.TrainingConfig, dataset: q.given.Dataset, tracker: q.given.TrackerConfig,
			options: q.options})
		spec.TrackerConfig = q.given.TrackerConfig.stored(key)
		return plan[domain.DPOJob, DPOJob]{
			command: domain.CreateDPOJob{DPOSpec: spec, ID: q.name.ID(), CreatedBy: string(c.Principal.Key),
				Deadline: jobDeadline(c), Options: q.options},
			respond: func(out *DPOJob) { out.TrackerConfig.addKeyOf(q.given.TrackerConfig) },
		}, err
	},
	remove: removeJob[domain.DPOJob](domain.DPOJobs),
}

var _ = register(dpoJobs.operations, jobOperations(dpoJobs))
